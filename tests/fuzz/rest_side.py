"""Odd requests to the HTTP interface of a real server.

What is asked rightly in the table of endpoints (tests/integration/broker/http/endpoints) is the
seed of all: mostly with something wrong in it, in its body, path or query. Requests of a case go
over one connection in one write. Each is answered, and none with a 5xx, but for what other cases
delete or move at that moment: such a 503 asks to try again, and is gone then. After each round of
cases everything that was made is deleted again, and the server is looked at.
"""

import asyncio
import json
import random
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from tests.fuzz.findings import Findings
from tests.fuzz.fuzzed_server import FuzzedServer
from tests.fuzz.json_mutations import ODD_VALUES, spoil_json, spoil_text, text_of
from tests.fuzz.patience import within
from tests.fuzz.pipelined_http import Answer, PipelinedHttp, Request, tried_again
from tests.integration.broker.http.endpoints import schemas, topics, upper
from tests.integration.broker.http.endpoints.rows import NAMESPACE, NS, PARTED, PLAIN, TENANT, Row
from tests.integration.broker.raw_connection import RawConnection, send_frame
from tests.processes import HOST

INPUTS_PER_CASE = 20
CASES_PER_SERVER = 5_000
_CASES_PER_ROUND = 500
_CASES_AT_ONCE = 4
_CASE_TIMEOUT_S = 120
_MESSAGES = 4

_ROWS: tuple[Row, ...] = tuple(
    row
    for table in (
        *(upper.CLUSTERS, upper.BROKERS, upper.BOOKIES, upper.TENANTS, upper.NAMESPACES),
        *(upper.POLICIES_OF_NAMESPACES, upper.RESOURCES, topics.LOOKUPS, topics.LIFE),
        *(topics.MESSAGES, topics.STATISTICS, topics.SUBSCRIPTIONS, topics.NON_PERSISTENT),
        *(topics.POLICIES_OF_TOPICS, schemas.SCHEMAS),
    )
    for row in table
    if "shutdown" not in row.path and row.status < 500
)
"""All but what ends the server, and what is answered with a 503 by design: no functions worker."""
_SEGMENTS = (
    *("", ".", "..", "ü", "a b", "\x00", "%", "a/b", "x" * 300, "-1", "0", "99999999999999999999"),
    *("plain", "parted", "parted-partition-0", "missing", "s", "shop", "acme", "public", "default"),
    *("persistent", "non-persistent", "0x00000000_0x40000000", "0x0_0x1", "latest", "earliest"),
)
_QUERY_NAMES = ("force", "authoritative", "bundle", "position", "applied", "key", "global", "x")
_QUERY_VALUES = ("true", "false", "", "1", "-1", "x", "ü", "\x00", "99999999999999999999", "1e3")
_METHODS = ("GET", "PUT", "POST", "DELETE", "HEAD", "PATCH", "OPTIONS")
_KEPT_TENANTS = ("public", "pulsar", "sample")


def requests_of(seed: int, *, broker: str, first: tuple[int, int]) -> list[Request]:
    """What one case asks; `first` is the ledger and the entry of the first message."""
    chance = random.Random(seed)

    def filled(path: str) -> str:
        ledger, entry = map(str, first)
        for name, value in (("{broker}", broker), ("{ledger}", ledger), ("{entry}", entry)):
            path = path.replace(name, value)
        return path

    requests: list[Request] = []
    while len(requests) < INPUTS_PER_CASE:
        row = chance.choice(_ROWS)
        for method, path, body in row.before if chance.random() < 0.3 else ():
            requests.append(Request(method, filled(path), _body(body)))
        requests.append(_one(chance, row, filled(row.path)))
    return requests[:INPUTS_PER_CASE]


def _one(chance: random.Random, row: Row, path: str) -> Request:
    lot = chance.random()
    method, body = row.method, _body(row.body)
    if lot < 0.2:
        return Request(method, path, body)
    if lot < 0.25:
        return Request(chance.choice(_METHODS), path, body)
    if lot < 0.45:
        return Request(method, _spoiled_path(chance, path), body)
    if row.body is None and lot < 0.6:
        return Request(method, _spoiled_path(chance, path), None)
    if lot < 0.85:
        value = row.body if row.body is not None else chance.choice(ODD_VALUES)
        for _ in range(chance.choice((1, 1, 2, 3))):
            value = spoil_json(chance, value)
        return Request(method, path, text_of(value))
    return Request(method, path, spoil_text(chance, body or b"{}"))


def _body(value: object) -> bytes | None:
    return None if value is None else text_of(value)


def _spoiled_path(chance: random.Random, path: str) -> str:
    path, _, query = path.partition("?")
    segments = path.split("/")[1:]
    pairs = query.split("&") if query else []
    if chance.random() < 0.6:
        at = chance.randrange(len(segments))
        segments[at : at + chance.choice((1, 1, 1, 0, 2))] = [
            quote(chance.choice(_SEGMENTS), safe="%" if chance.random() < 0.1 else "")
        ]
    else:
        name = chance.choice((*_QUERY_NAMES, *(pair.partition("=")[0] for pair in pairs)))
        pairs.append(f"{quote(name)}={quote(chance.choice(_QUERY_VALUES))}")
        chance.shuffle(pairs)
    return f"/{'/'.join(segments)}" + (f"?{'&'.join(pairs)}" if pairs else "")


class _Target:
    """The server, and what was found there."""

    def __init__(self, server: FuzzedServer, findings: Findings) -> None:
        self._server = server
        self._findings = findings
        self._http = PipelinedHttp(server.http_port)
        self._first = (0, 0)

    async def run(self, seed: int, http: PipelinedHttp) -> None:
        """One case."""
        broker = f"{HOST}:{self._server.http_port}"
        left = requests_of(seed, broker=broker, first=self._first)
        self._findings.inputs += len(left)
        while left and self._server.is_alive:
            try:
                answers = await within(_CASE_TIMEOUT_S, http.ask(left))
            except TimeoutError:
                await http.close()
                self._findings.add(f"seed {seed}: not answered in time: one of {left[0]}, …")
                return
            for request, answer in zip(left, answers, strict=False):
                answer = await tried_again(self._server.http_port, request, answer)
                if answer.status >= 500:
                    text = answer.body[:300].decode("utf-8", "replace")
                    self._findings.add(f"seed {seed}: {request}: {answer.status} {text}")
            if not answers:
                self._findings.add(f"seed {seed}: no answer to {left[0]}")
                return
            left = left[len(answers) :]

    async def round(self, seeds: range) -> None:
        await self._make()
        waiting = list(reversed(seeds))

        async def some() -> None:
            http = PipelinedHttp(self._server.http_port)
            while waiting and not self._findings.is_full:
                seed = waiting.pop()
                try:
                    await self.run(seed, http)
                except OSError as error:
                    self._findings.add(f"seed {seed}: the server cannot be reached: {error}")
                    waiting.clear()
            await http.close()

        await asyncio.gather(*(some() for _ in range(_CASES_AT_ONCE)))
        if self._server.is_alive:
            await self._tidy_up()
        await self._http.close()
        self._server.look(f"seeds {seeds.start} to {seeds.stop - 1}")

    async def _make(self) -> None:
        """What the table of endpoints is about."""
        for path, body in (
            (f"/admin/v2/tenants/{TENANT}", {"allowedClusters": ["standalone"]}),
            (NS, None),
            (PLAIN, None),
            (f"{PARTED}/partitions", 3),
            (f"{PLAIN}/subscription/s", None),
            (f"{PARTED}/subscription/s", None),
        ):
            answer = await self._ask("PUT", path, body)
            if answer.status not in (204, 409):
                self._findings.add(f"cannot make {path}: {answer.status} {answer.body!r}")
                return
        with RawConnection(self._server.port) as connection:
            connection.connect()
            connection.open_producer(f"persistent://{NAMESPACE}/plain")
            for number in range(_MESSAGES):
                connection.send(send_frame(b"%d" % number, sequence_id=number))
                connection.receive()
        found = json.loads((await self._ask("GET", f"{PLAIN}/messageid/0")).body)
        self._first = (found["ledgerId"], found["entryId"])

    async def _tidy_up(self) -> None:
        admin = "/admin/v2"
        await self._delete(f"{admin}/tenants", _KEPT_TENANTS, query="?force=true")
        for tenant in _KEPT_TENANTS[:1]:
            listed = await self._listed(f"{admin}/namespaces/{tenant}")
            for namespace in listed:
                if namespace != "public/default":
                    await self._ask("DELETE", f"{admin}/namespaces/{namespace}?force=true")
        await self._delete(f"{admin}/clusters", ("standalone",))
        await self._delete(f"{admin}/resourcegroups", ())
        values = await self._ask("GET", f"{admin}/brokers/configuration/values")
        for name in json.loads(values.body):
            await self._ask("DELETE", f"{admin}/brokers/configuration/{quote(name, safe='')}")

    async def _delete(self, path: str, keep: Iterable[str], *, query: str = "") -> None:
        for name in await self._listed(path):
            if name in keep:
                continue
            answer = await self._ask("DELETE", f"{path}/{quote(name, safe='')}{query}")
            if answer.status not in (200, 204, 404):
                self._findings.add(f"cannot delete {path}/{name}: {answer.status} {answer.body!r}")

    async def _listed(self, path: str) -> list[str]:
        return list(json.loads((await self._ask("GET", path)).body))

    async def _ask(self, method: str, path: str, body: object = None) -> Answer:
        """What the fuzzer itself wants; cases whose connections have ended may still go on."""
        request = Request(method, path, _body(body))
        (answer,) = await within(_CASE_TIMEOUT_S, self._http.ask([request]))
        return await tried_again(self._server.http_port, request, answer)


async def fuzz(seeds: range, directory: Path, findings: Findings) -> None:
    """Run the cases of these seeds against a server of their own."""
    with FuzzedServer(directory, findings) as server, findings.of_loop():
        target = _Target(server, findings)
        for first in range(seeds.start, seeds.stop, _CASES_PER_ROUND):
            await target.round(range(first, min(first + _CASES_PER_ROUND, seeds.stop)))
            if findings.texts or not server.is_alive:
                break
