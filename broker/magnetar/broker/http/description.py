"""The OpenAPI 3.1 description of the HTTP interface, and the page that shows it.

The answers that all routes share are added afterwards; as models of FastAPI they would double the
time that a broker takes to start. The description is built once, in a thread, at its first request:
it takes longer than the event loop may be blocked.

The page is one file without external parts. A broker's network may have no way out, and scripts of
another site could send requests to the broker in the visitor's name.
"""

import asyncio
import copy
import json
import re
from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>HTTP interface - Magnetar</title>
<style>
  :root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
  body { max-width: 60rem; margin: 0 auto; padding: 1rem; }
  input { width: 100%; padding: .5rem; font: inherit; box-sizing: border-box; }
  h2 { margin: 2rem 0 .5rem; text-transform: capitalize; }
  details { border-top: 1px solid #8884; padding: .35rem 0; }
  summary { cursor: pointer; overflow-wrap: anywhere; }
  code, pre { font: .85rem/1.4 ui-monospace, monospace; }
  pre { overflow-x: auto; background: #8881; padding: .5rem; }
  b { display: inline-block; min-width: 4rem; font: 600 .85rem ui-monospace, monospace; }
  td { vertical-align: top; padding-right: 1rem; }
</style>
<h1>HTTP interface</h1>
<p>Pulsar's lookup and admin interface of this broker, and what is beside it.
The same for programs: <a href="openapi.json">openapi.json</a>.</p>
<label>Find <input id="find" type="search" placeholder="retention, subscription, POST ..."></label>
<p id="count" role="status">Loading.</p>
<main></main>
<script>
const make = (tag, text) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  return node;
};
const shown = (schema) => make("pre", JSON.stringify(schema, null, 1));
function operation(verb, path, each) {
  const box = make("details"), head = make("summary"), table = make("table");
  head.append(make("b", verb.toUpperCase()), make("code", path), make("span", " " + each.summary));
  box.append(head, make("p", each.description || ""));
  for (const one of each.parameters || []) {
    const row = table.insertRow();
    row.append(make("td", one.name), make("td", one.in), make("td", one.description || ""));
  }
  box.append(table);
  for (const body of Object.values(each.requestBody?.content || {}))
    box.append(make("h3", "Body"), shown(body.schema));
  const answers = make("table");
  for (const [status, answer] of Object.entries(each.responses)) {
    const row = answers.insertRow();
    row.append(make("td", status), make("td", answer.description || ""));
  }
  box.append(make("h3", "Answers"), answers);
  box.dataset.text = (verb + " " + path + " " + each.summary).toLowerCase();
  return box;
}
async function load() {
  const answer = await fetch("openapi.json");
  if (!answer.ok) throw new Error("the broker answered " + answer.status);
  const { paths } = await answer.json(), groups = new Map();
  for (const [path, item] of Object.entries(paths))
    for (const [verb, each] of Object.entries(item)) {
      const tag = (each.tags || ["broker"])[0];
      if (!groups.has(tag)) groups.set(tag, make("section"));
      groups.get(tag).append(operation(verb, path, each));
    }
  const main = document.querySelector("main"), count = document.querySelector("#count");
  for (const [tag, group] of [...groups].sort()) {
    group.prepend(make("h2", tag));
    main.append(group);
  }
  const find = document.querySelector("#find");
  const filter = () => {
    const words = find.value.toLowerCase().split(/\\s+/);
    let left = 0;
    for (const box of main.querySelectorAll("details")) {
      box.hidden = !words.every((word) => box.dataset.text.includes(word));
      left += !box.hidden;
    }
    for (const group of main.children)
      group.hidden = !group.querySelector("details:not([hidden])");
    count.textContent = left + " operations";
  };
  find.addEventListener("input", filter);
  filter();
}
load().catch((error) => {
  document.querySelector("#count").textContent = "Nothing to show: " + error.message;
});
</script>
</html>
"""


_PATH = "/openapi.json"
_VERBS = ("get", "put", "post", "delete")
_SUMMARY = "Pulsar's lookup and admin interface (v2), health and metrics of a Magnetar broker."

_PARAMETER = re.compile(r"\{(\w+)\}")

_REFUSALS = {
    "307": "Redirect to another broker, which `Location` names",
    "400": "The request is malformed",
    "401": "Credentials are missing or not valid",
    "403": "The caller may not do this",
    "404": "Something in the path does not exist",
    "405": "This cannot be done with an object of this kind",
    "406": "The number of partitions is not valid",
    "409": "It already exists, is in use, or is in progress",
    "412": "A value is not valid or too large, or a precondition is not met",
    "413": "The body is too large",
    "422": "The topic has more partitions already, or the number is too large",
    "503": "This cannot be done now: try again",
}
# Answered before FastAPI is reached, or even loaded (`http/app.py`).
_PROBES = {
    "/health": {
        "get": {
            "summary": "Health",
            "description": "200 while the broker serves clients and can write and read; else 503, "
            "and why.",
            "operationId": "health",
            "responses": {
                "200": {
                    "description": "The broker is healthy",
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Health"}}
                    },
                }
            },
        }
    },
    "/metrics": {
        "get": {
            "summary": "Metrics",
            "description": "Prometheus' text format. With authorization it takes a super user, or "
            "a setting.",
            "operationId": "metrics",
            "responses": {
                "200": {
                    "description": "The page",
                    "content": {"text/plain": {"schema": {"type": "string"}}},
                }
            },
        }
    },
}
_HEALTH = {
    "title": "Health",
    "description": "`status`: ok; or in words why not: starting, no lease, stopping, what a "
    "heartbeat failed at.",
    "type": "object",
    "properties": {
        "status": {"type": "string"},
        "version": {"type": "string"},
        "service_url": {"type": "string"},
        "topics": {"type": "integer"},
        "connections": {"type": "integer"},
    },
    "required": ["status", "version", "service_url", "topics", "connections"],
}
_REFUSAL = {
    "title": "Refusal",
    "description": "Why a request was refused.",
    "type": "object",
    "properties": {"reason": {"type": "string"}, "detail": {"type": "string"}},
    "required": ["reason"],
}


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the whole description."""
    found = get_openapi(title=app.title, version=app.version, summary=_SUMMARY, routes=app.routes)
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    schemas |= {"Refusal": _REFUSAL, "Health": _HEALTH}
    found["paths"] = copy.deepcopy(_PROBES) | found["paths"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    refusals = {
        status: {"description": text, "content": content} for status, text in _REFUSALS.items()
    }
    for path, item in found["paths"].items():
        for verb in _VERBS:
            if verb in item:
                operation = item[verb]
                _add_path_parameters(operation, path)
                operation["responses"].pop("422", None)  # FastAPI's own; here it is 400.
                operation["responses"] = {**refusals, **operation["responses"]}
                if "operationId" in operation:
                    operation["operationId"] = _operation_id(verb, path)
    return found


def _add_path_parameters(operation: dict[str, Any], path: str) -> None:
    """Describe the path parameters that a route reads itself."""
    known = operation.setdefault("parameters", [])
    described = {each["name"] for each in known if each["in"] == "path"}
    for name in _PARAMETER.findall(path):
        if name not in described:
            schema = {"type": "string", "title": name.capitalize()}
            known.append({"name": name, "in": "path", "required": True, "schema": schema})


def _operation_id(verb: str, path: str) -> str:
    """Return an operation id that is unique per route; names of functions are not unique."""
    return verb + "".join(each if each.isalnum() else "_" for each in path)


def add_description(app: FastAPI) -> None:
    """Serve the description at /openapi.json, and as a page at /docs."""
    made: list[bytes] = []
    making = asyncio.Lock()

    @app.get(_PATH, include_in_schema=False)
    async def description() -> Response:
        async with making:
            if not made:
                made.append(await asyncio.to_thread(lambda: json.dumps(describe(app)).encode()))
        return Response(made[0], media_type="application/json")

    @app.get("/docs", include_in_schema=False)
    async def page() -> HTMLResponse:
        headers = {"Content-Security-Policy": CONTENT_SECURITY_POLICY}
        return HTMLResponse(PAGE, headers=headers)
