"""Runs of offloading whose owners also write manifests, and a sweep of them.

OM1  A manifest says what the node has said, and names no object that was never complete.
OM2  No manifest is deleted that is the newest of its log.
OM3  In the end there is one manifest, and it names the objects that the node names.

They are runs of their own: requests for manifests change the course of a seed.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from magnetar.ledger.errors import LedgerError, LogFencedError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.offloading.log_manifest import (
    LogManifest,
    ManifestSchema,
    manifests_prefix,
    parse_manifest_key,
)
from magnetar.ledger.offloading.manifest_sweep import ManifestSweep
from magnetar.ledger.offloading.manifest_writer import ManifestWriter
from magnetar.ledger.offloading.sweeper import Sweeper
from tests.simulation.clients import SimClient
from tests.simulation.cluster.events import NodeWrote, ObjectGone, ObjectPut
from tests.simulation.history import Said
from tests.simulation.logs import PATH
from tests.simulation.offloading.objects import ObjectServer, OneStore
from tests.simulation.offloading.run import GRACE_S, INSTANCE, OffloadRun
from tests.simulation.simulation import Simulation

INTERVAL_S = 0.3
_LOOK_S = 0.03
_TRIES_S_MAX = 30.0


async def no_schemas() -> Sequence[ManifestSchema]:
    return ()


@dataclass(slots=True)
class ManifestRun(OffloadRun):
    """One run."""

    async def _offload(self, client: SimClient, log: ManagedLog, random: Random) -> None:
        writing = asyncio.get_running_loop().create_task(self._write(client, log))
        try:
            await OffloadRun._offload(self, client, log, random)
        finally:
            writing.cancel()

    def _writer(self, client: SimClient, log: ManagedLog) -> ManifestWriter:
        stores = OneStore(self.objects.open(client.process))
        return ManifestWriter(log, stores, "", interval_s=INTERVAL_S, clock=client.clock)

    async def _write(self, client: SimClient, log: ManagedLog) -> None:
        """Write manifests when they are due, also as an owner that does not know that it is none
        any more."""
        writer = self._writer(client, log)
        while True:
            try:
                if writer.is_due():
                    await writer.write(INSTANCE, no_schemas)
            except LedgerError as error:
                client.record(Said(f"manifest: {type(error).__name__}: {error}"))
            await asyncio.sleep(_LOOK_S)

    def _sweepers(self, client: SimClient) -> Sequence[Sweeper | ManifestSweep]:
        return [
            *OffloadRun._sweepers(self, client),
            ManifestSweep(
                self.objects.open(client.process),
                client.store,
                manifests_prefix("", INSTANCE),
                clock=client.clock,
                grace_s=GRACE_S,
            ),
        ]

    async def _read(self, client: SimClient, log: ManagedLog) -> None:
        """Of the last owner, whose work is done: its manifest is written, too."""
        writer = self._writer(client, log)
        deadline_s = self.sim.loop.time() + _TRIES_S_MAX
        while writer.is_due() and self.sim.loop.time() < deadline_s:
            try:
                await client.run(writer.write(INSTANCE, no_schemas))
            except LogFencedError:
                break
        await OffloadRun._read(self, client, log)

    def judge(self) -> None:
        self._judge_manifests()
        left = {key for key in self.objects.objects if parse_manifest_key(key)}
        self._judge_end(left)
        for key in left:
            del self.objects.objects[key]
        OffloadRun.judge(self)

    def _judge_manifests(self) -> None:
        nodes: set[bytes] = set()
        puts: set[str] = set()
        manifests: set[str] = set()
        for time_s, actor, event in self.sim.history.entries:
            where = f"at {time_s:.6f} {actor}"
            match event:
                case NodeWrote(path, _, value) if path == PATH and value is not None:
                    nodes.add(LogMetadata.from_json(value, path=PATH).to_json())
                case ObjectPut(key, data, _) if parse_manifest_key(key):
                    manifests.add(key)
                    self.problems += [
                        f"OM1 {where}: {key} {text}"
                        for text in wrong_in(LogManifest.from_json(data, key=key), nodes, puts)
                    ]
                case ObjectPut(key, _, _):
                    puts.add(key)
                case ObjectGone(key) if key in manifests:
                    manifests.remove(key)
                    if key > max(manifests, default=""):
                        self.problems.append(f"OM2 {where}: {key} was the newest")

    def _judge_end(self, left: set[str]) -> None:
        node = LogMetadata.from_json(self.sim.store.tree.get(PATH).value, path=PATH)
        if not node.object_bases:
            return
        if len(left) != 1:
            self.problems.append(f"OM3: {len(left)} manifests are left: {sorted(left)}")
            return
        (key,) = left
        found = LogManifest.from_json(self.objects.objects[key], key=key)
        if keys_in(found.node) != keys_in(node):
            self.problems.append(f"OM3: {key} names {keys_in(found.node)}, {keys_in(node)} are")


def wrong_in(manifest: LogManifest, nodes: set[bytes], puts: set[str]) -> list[str]:
    """Why a manifest cannot be, after these nodes and these objects."""
    wrong = [f"names {key}, which was never there" for key in keys_in(manifest.node) - puts]
    if manifest.node.to_json() not in nodes:
        wrong.append("says what the node never did")
    return wrong


def keys_in(node: LogMetadata) -> set[str]:
    """The keys of the objects that readers of a node use."""
    return {
        node.object_bases[ledger.object.base].key(ledger.ledger_id, ledger.object.attempt)
        for ledger in node.ledgers
        if ledger.object is not None and ledger.is_in_object
    }


def execute(seed: int) -> ManifestRun:
    """Run a seed to its end, and judge it."""
    sim = Simulation(bookies=4, seed=f"manifests/{seed}")
    objects = ObjectServer(sim.loop, sim.history, seed=f"manifests/{seed}")
    run = ManifestRun(seed, sim, Random(f"manifests/{seed}"), objects)
    sim.run(run.story())
    run.judge()
    return run
