"""What can happen to the cluster: each fault strikes, lasts for a random while, and is over.

A fault returns what is worth telling; it raises nothing of its own, but adds to `problems` what
was seen with one's own eyes. Nothing here judges the messages: that is for the checker.
"""

import asyncio
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.chaos.cluster.field import CLIENTS
from tests.chaos.cluster.replication import wait_whole
from tests.chaos.cluster.stage import FULL_DISK, SESSION_S, Stage
from tests.chaos.cluster.witness import NotOpenedError, Testimony, Witness

_WHOLE_TIMEOUT_S = 120.0
_RIVAL_TIMEOUT_S = 60.0
_BEFORE_S = (0.3, 0.8)
"""For messages to come that a consumer has not wanted yet."""


@dataclass(slots=True)
class Scene:
    """What a fault has to do with."""

    stage: Stage
    random: random.Random
    number: int
    """Of the fault, in this drill."""
    topic: str = ""
    """The topic whose owner the fault strikes, where it strikes one."""
    problems: list[str] = field(default_factory=list)
    told: str = ""
    """What the broker said that had lost the topic."""

    def __post_init__(self) -> None:
        self.topic = self.random.choice(self.stage.topics)

    def owner(self) -> str:
        return self.stage.owner_of(self.topic)

    def last(self, least_s: float, most_s: float) -> None:
        """Let the fault last for a while."""
        self.stage.pass_time(self.random.uniform(least_s, most_s))


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    strike: Callable[[Scene], None]
    may_lose_acks: bool
    """Whether acknowledgements that are younger than the persist interval may be lost."""
    zookeepers_min: int = 1


def _owner_killed(scene: Scene) -> None:
    owner = scene.owner()
    scene.stage.kill(owner)
    scene.last(0, SESSION_S + 1)
    scene.stage.start(owner)


def _owner_paused(scene: Scene) -> None:
    """SIGSTOP for longer than the session: somebody else owns the topic when it wakes up."""
    stage, topic = scene.stage, scene.topic
    owner = scene.owner()
    pid = stage.cluster.process(owner).pid

    async def zombie() -> Testimony:
        address = stage.address(owner)
        witness = await Witness.open(address, topic, f"zombie-{scene.number}", stage.recorder)
        try:
            await asyncio.to_thread(scene.last, *_BEFORE_S)
            os.kill(pid, signal.SIGSTOP)
            try:
                witness.want()
                await asyncio.to_thread(scene.last, SESSION_S + 0.3, SESSION_S + 2)
                await _rival(scene, owner)
            finally:
                os.kill(pid, signal.SIGCONT)
            return await witness.listen()
        finally:
            await witness.close()

    testimony = stage.field.run(lambda: asyncio.run(zombie()))
    _judge(scene, owner, "was paused", testimony)


def _broker_cut_from_zookeeper(scene: Scene) -> None:
    """Clients and bookies still reach it; the metadata store says that others own its topics."""
    stage, topic = scene.stage, scene.topic
    owner = scene.owner()

    async def zombie() -> Testimony:
        address = stage.address(owner)
        witness = await Witness.open(address, topic, f"cut-off-{scene.number}", stage.recorder)
        try:
            await asyncio.to_thread(scene.last, *_BEFORE_S)
            stage.cut(owner, stage.zookeepers)
            try:
                await asyncio.to_thread(scene.last, SESSION_S + 0.3, SESSION_S + 2)
                witness.want()
                testimony = await witness.listen()
                await _rival(scene, owner)
                return testimony
            finally:
                stage.mend(owner, stage.zookeepers)
        finally:
            await witness.close()

    testimony = stage.field.run(lambda: asyncio.run(zombie()))
    _judge(scene, owner, "was cut off from ZooKeeper", testimony)


async def _rival(scene: Scene, former: str) -> None:
    """Somebody else owns the topic by now, and publishes to it. Whoever loses it meanwhile, as on a
    machine that stood still, is not asked twice but looked for anew.

    Raises:
        NoOwnerError, NotOpenedError
    """
    until_s = time.monotonic() + _RIVAL_TIMEOUT_S
    for attempt in itertools.count(1):
        rival = await scene.stage.find_owner(scene.topic, former=former)
        try:
            # A name of its own each time: nobody knows what has become of the messages before.
            await _publish_at(scene, rival, f"rival-{scene.number}-{attempt}")
            return
        except (OSError, TimeoutError, NotOpenedError, AssertionError) as error:
            if time.monotonic() > until_s:
                raise NotOpenedError(f"{scene.topic} at {rival}: {error}") from error


async def _publish_at(scene: Scene, broker: str, name: str) -> None:
    stage = scene.stage
    witness = await Witness.open(stage.address(broker), scene.topic, name, stage.recorder)
    try:
        await witness.publish()
    finally:
        await witness.close()


def _judge(scene: Scene, owner: str, what: str, testimony: Testimony) -> None:
    said = [f"{kind} x {times}" for kind, times in testimony.others.items()]
    scene.told = ", ".join(said + ["the end"] * testimony.has_ended) or "nothing"
    if testimony.forbidden:
        scene.problems.append(
            f"{owner} {what} for longer than its session, so that another broker may own "
            f"{scene.topic}, and still sent {testimony.forbidden}"
        )


def _broker_cut_from_bookies(scene: Scene) -> None:
    stage, owner = scene.stage, scene.owner()
    stage.cut(owner, stage.bookies)
    scene.last(0.5, 5)
    stage.mend(owner, stage.bookies)


def _broker_cut_from_clients(scene: Scene) -> None:
    stage, owner = scene.stage, scene.owner()
    stage.cut(owner, [CLIENTS])
    scene.last(0.5, 5)
    stage.mend(owner, [CLIENTS])


def _bookie_killed(scene: Scene) -> None:
    bookie = scene.random.choice(scene.stage.bookies)
    scene.stage.kill(bookie)
    scene.last(0.2, 4)
    scene.stage.start(bookie)


def _bookie_lost(scene: Scene) -> None:
    """Lose a bookie with its disk. Another one comes in its place; every ledger gets all its copies
    back."""
    stage = scene.stage
    bookie = scene.random.choice([each for each in stage.bookies if each != FULL_DISK])
    stage.lose_bookie(bookie)
    scene.last(0, 3)
    stage.start(bookie)
    short = wait_whole(stage, timeout_s=_WHOLE_TIMEOUT_S)
    if short:
        scene.problems.append(f"{_WHOLE_TIMEOUT_S:.0f} s after {bookie} was lost for good: {short}")


def _bookie_slow(scene: Scene) -> None:
    """The network to it, if that can be had; else it is stopped most of the time."""
    stage = scene.stage
    bookie = scene.random.choice(stage.bookies)
    if scene.random.random() < 0.5 and stage.field.slow_down(bookie):
        scene.last(2, 5)
        stage.field.speed_up(bookie)
        return
    pid = stage.cluster.process(bookie).pid
    until_s = time.monotonic() + scene.random.uniform(2, 5)
    while time.monotonic() < until_s:
        os.kill(pid, signal.SIGSTOP)
        scene.last(0.05, 0.6)
        os.kill(pid, signal.SIGCONT)
        scene.last(0.01, 0.1)


def _disk_full(scene: Scene) -> None:
    disk = scene.stage.small_disk
    until_s = time.monotonic() + scene.random.uniform(2, 5)
    while time.monotonic() < until_s:
        disk.fill()  # A bookie gives room back: files that a checkpoint made superfluous.
        scene.last(0.2, 0.4)
    disk.make_room()


def _zookeeper_restarted(scene: Scene) -> None:
    """All of ZooKeeper is away, at times for longer than the sessions."""
    stage = scene.stage
    stage.kill(*stage.zookeepers)
    scene.last(0.2, SESSION_S + 2)
    stage.start(*stage.zookeepers)


def _zookeeper_leader_killed(scene: Scene) -> None:
    stage = scene.stage
    leader = stage.zookeeper_leader()
    stage.kill(leader)
    scene.last(0.5, SESSION_S + 1)
    stage.start(leader)


def _rolling_restart(scene: Scene) -> None:
    """One after the other, in an orderly way; whoever leaves ends with status 0."""
    stage = scene.stage
    for kind in ("zookeeper", "bookie", "broker", "autorecovery"):
        for name in stage.names(kind):
            stage.restart(name)


FAULTS: Mapping[str, Fault] = {
    "owner-killed": Fault(_owner_killed, may_lose_acks=True),
    "owner-paused": Fault(_owner_paused, may_lose_acks=True),
    "bookie-killed": Fault(_bookie_killed, may_lose_acks=False),
    "bookie-lost": Fault(_bookie_lost, may_lose_acks=False),
    "bookie-slow": Fault(_bookie_slow, may_lose_acks=False),
    "broker-cut-from-zookeeper": Fault(_broker_cut_from_zookeeper, may_lose_acks=True),
    "broker-cut-from-bookies": Fault(_broker_cut_from_bookies, may_lose_acks=True),
    "broker-cut-from-clients": Fault(_broker_cut_from_clients, may_lose_acks=True),
    "zookeeper-restarted": Fault(_zookeeper_restarted, may_lose_acks=True),
    "zookeeper-leader-killed": Fault(
        _zookeeper_leader_killed, may_lose_acks=True, zookeepers_min=3
    ),
    "rolling-restart": Fault(_rolling_restart, may_lose_acks=True),
    "disk-full": Fault(_disk_full, may_lose_acks=False),
}
"""By name."""
