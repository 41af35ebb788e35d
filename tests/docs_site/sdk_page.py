"""The SDK reference of the docs site: one entry for each public name, filled in by mkdocstrings."""

from importlib import import_module

_INTRODUCTION = """# SDK

All public names of the Python client. [Producing](../guide/producing.md) and
[consuming](../guide/consuming.md) show how to use them,
[coming from pulsar-client](../coming-from-pulsar-client.md) names what the official client calls
them. This page is made from the docstrings of the release that it belongs to.
"""

_PARTS = {
    "magnetar.sdk": "`from magnetar.sdk import …`: the asyncio client and its settings.",
    "magnetar.sdk.blocking": "`from magnetar.sdk.blocking import …`: the client without asyncio.",
    "magnetar.sdk.schemas": "`from magnetar.sdk.schemas import …`: values in place of bytes.",
    "magnetar.sdk.web_socket": "`from magnetar.sdk.web_socket import …`: over WebSocket.",
    "magnetar.sdk.taskiq": "`from magnetar.sdk.taskiq import …`: a broker for Taskiq.",
    "magnetar.arrow": "`from magnetar import arrow`: topics for pandas, polars and DuckDB.",
}


def sdk_page() -> str:
    """Return the page, with a directive of mkdocstrings for each public name."""
    lines = [_INTRODUCTION]
    for part, text in _PARTS.items():
        lines += [f"## {part}", "", text, ""]
        lines += [f"::: {home}\n" for home in homes(part)]
    lines += ["## Errors", "", "Each error tells by `retryable` whether a retry can help.", ""]
    lines += [f"::: {home}\n" for home in _classes("magnetar.sdk.errors")]
    return "\n".join(lines)


def homes(part: str) -> list[str]:
    """Return the full names of what a package makes public, each by the module that defines it."""
    package = import_module(part)
    names = getattr(package, "__all__", None) or [
        name for name, each in vars(package).items() if getattr(each, "__module__", "") == part
    ]
    found: dict[str, None] = {}
    for name in names:
        value = getattr(package, name)
        module = getattr(value, "__module__", "")
        if callable(value) and module.startswith("magnetar.") and not name.startswith("_"):
            found[f"{module}.{value.__name__}"] = None
    return list(found)


def _classes(module: str) -> list[str]:
    found = vars(import_module(module)).items()
    return [
        f"{module}.{name}"
        for name, each in found
        if isinstance(each, type) and each.__module__ == module and not name.startswith("_")
    ]
