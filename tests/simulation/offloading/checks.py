"""Invariants of offloading: O1 to O6, and O10, on the history of a run.

The history has every write of the log's node and of ledgers' metadata, and every object that came
or went. So what was where is known at each of its places.

Source: tiered storage, section 24.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from magnetar.ledger.digest import codec_for
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectState
from magnetar.ledger.offloading.object_format import (
    HEADER_BYTES,
    ObjectFooter,
    ObjectName,
    check_header,
    decode_footer,
    open_run,
)
from tests.simulation.cluster.events import NodeWrote, ObjectGone, ObjectPut, ObjectRotted
from tests.simulation.history import History, LogAppended, Wrote


@dataclass(slots=True)
class World:
    """What is stored at one place of the history."""

    path: str
    node: LogMetadata | None = None
    ledgers: dict[int, LedgerMetadata] = field(default_factory=dict)
    """The ledgers that have metadata."""
    objects: dict[str, bytes] = field(default_factory=dict)
    appended: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """Ledger, entry: what was confirmed."""
    puts: dict[str, int] = field(default_factory=dict)
    """By which call each key was written."""
    reads_are_true: bool = False
    """Whether what is read of an object is always what is stored."""

    def key(self, ledger: LogLedger, found: LedgerObject) -> str:
        assert self.node is not None
        return self.node.object_bases[found.base].key(ledger.ledger_id, found.attempt)

    def named(self) -> set[str]:
        """The keys that the node names."""
        return {
            self.node.object_bases[ledger.object.base].key(ledger.ledger_id, attempt)
            for ledger in (self.node.ledgers if self.node is not None else ())
            if self.node is not None and ledger.object is not None
            for attempt in (ledger.object.attempt, ledger.object.next)
            if attempt
        }


def problems(history: History, path: str, *, reads_are_true: bool = False) -> Iterator[str]:
    """What does not hold, each with the invariant's name.

    `reads_are_true`: the store had no faults by which a whole object looks damaged or gone.
    """
    world = World(path, reads_are_true=reads_are_true)
    for time_s, actor, event in history.entries:
        where = f"at {time_s:.6f} {actor}"
        match event:
            case LogAppended(payload, ledger_id, entry_id, "") if ledger_id >= 0:
                world.appended.setdefault(ledger_id, {})[entry_id] = payload
            case ObjectPut(key, data, put):
                if world.puts.setdefault(key, put) != put:
                    yield f"O4 {where}: {key} is written by a second call"
                world.objects[key] = data
            case ObjectRotted(key, data):
                world.objects[key] = data
            case ObjectGone(key):
                world.objects.pop(key, None)
                if actor != "objects" and key in world.named():
                    yield f"O3 {where}: {key} is deleted, and the node names it"
            case Wrote(ledger_id, _, metadata):
                yield from _on_ledger(world, ledger_id, metadata, where)
            case NodeWrote(written, _, value) if written == path and value is not None:
                after = LogMetadata.from_json(value, path=path)
                yield from _on_node(world, after, where)
                world.node = after


def _on_ledger(
    world: World, ledger_id: int, metadata: LedgerMetadata | None, where: str
) -> Iterator[str]:
    if metadata is not None:
        world.ledgers[ledger_id] = metadata
        return
    world.ledgers.pop(ledger_id, None)
    for ledger in world.node.ledgers if world.node is not None else ():
        holds = ledger.entries or world.appended.get(ledger_id)
        if ledger.ledger_id == ledger_id and not ledger.is_in_object_only and holds:
            yield f"O1 {where}: ledger {ledger_id} is deleted, and the node says {ledger}"


def _on_node(world: World, after: LogMetadata, where: str) -> Iterator[str]:
    before = {ledger.ledger_id: ledger for ledger in world.node.ledgers} if world.node else {}
    for ledger in after.ledgers:
        known = before.get(ledger.ledger_id, LogLedger(ledger.ledger_id))
        if known.object == ledger.object:
            continue
        yield from (f"O5 {where}: {text}" for text in _wrong_move(known.object, ledger.object))
        metadata = world.ledgers.get(ledger.ledger_id)
        if metadata is None or metadata.state is not LedgerState.CLOSED:
            yield f"O6 {where}: {ledger}, its ledger is {metadata and metadata.state}"
    bases = world.node.object_bases if world.node is not None else ()
    if after.object_bases[: len(bases)] != bases:
        yield f"O5 {where}: bases {after.object_bases} after {bases}"
    world.node = after
    for ledger in after.ledgers:
        found = ledger.object
        known_object = before[ledger.ledger_id].object if ledger.ledger_id in before else None
        if found is None or found == known_object:
            continue
        if found.next:
            yield from (f"O10 {where}: {text}" for text in _wrong_replacement(world, ledger))
            continue
        if found.state is ObjectState.ONLY:
            yield from (f"O2 {where}: {text}" for text in wrong_in_object(world, ledger))
        elif found.state is ObjectState.COPIED and world.key(ledger, found) not in world.objects:
            yield f"O2 {where}: there is no object of {ledger}"


def _wrong_move(before: LedgerObject | None, after: LedgerObject | None) -> Iterator[str]:
    if after is None:
        yield f"{before} is forgotten"
        return
    if before is None:
        is_right = after.state is ObjectState.COPYING
    elif before.state is ObjectState.COPYING:
        is_copied = after.state is ObjectState.COPIED and after.attempt == before.attempt
        is_right = after.state is ObjectState.COPYING or is_copied
    else:
        is_replaced = after.state is before.state and after.attempt == before.next
        is_same = after.attempt == before.attempt
        is_right = is_replaced or (
            is_same
            and (
                after.state is before.state
                or (before.state is ObjectState.COPIED and after.state is ObjectState.ONLY)
            )
        )
    if not is_right:
        yield f"{before} becomes {after}"


def _wrong_replacement(world: World, ledger: LogLedger) -> Iterator[str]:
    """An object that is whole is not replaced because a store gave no answer."""
    assert ledger.object is not None
    metadata = world.ledgers.get(ledger.ledger_id)
    data = world.objects.get(world.key(ledger, ledger.object))
    if world.reads_are_true and metadata is not None:
        name = ObjectName(ledger.ledger_id, bytes.fromhex(ledger.object.attempt))
        if is_whole(data, name, metadata):
            yield f"{ledger} is to be replaced, and its object is whole"


def is_whole(data: bytes | None, name: ObjectName, metadata: LedgerMetadata) -> bool:
    """Whether an object is there, and each byte of it is as it was written."""
    if data is None:
        return False
    try:
        check_header(data[:HEADER_BYTES], name)
        payloads_of(data, name, metadata)
    except LedgerError:
        return False
    return True


def wrong_in_object(world: World, ledger: LogLedger) -> Iterator[str]:
    """Why the object of a ledger is not the ledger."""
    assert ledger.object is not None
    key = world.key(ledger, ledger.object)
    data = world.objects.get(key)
    metadata = world.ledgers.get(ledger.ledger_id)
    if data is None or metadata is None:
        yield f"object {data and len(data)}, metadata {metadata} of {ledger}"
        return
    name = ObjectName(ledger.ledger_id, bytes.fromhex(ledger.object.attempt))
    try:
        payloads = payloads_of(data, name, metadata)
    except LedgerError as error:
        yield f"{key}: {error}"
        return
    if len(payloads) != metadata.last_entry_id + 1:
        yield f"{key} has {len(payloads)} entries, its ledger {metadata.last_entry_id + 1}"
    for entry_id, payload in world.appended.get(ledger.ledger_id, {}).items():
        if entry_id >= len(payloads) or payloads[entry_id] != payload:
            yield f"{key}: entry {entry_id} is not {payload!r}"


def payloads_of(data: bytes, name: ObjectName, metadata: LedgerMetadata) -> list[bytes]:
    """All payloads of an object, each checked.

    Raises:
        LedgerError
    """
    footer = decode_footer(data, name, len(data))
    assert isinstance(footer, ObjectFooter)
    codec = codec_for(metadata)
    payloads: list[bytes] = []
    for number, place in enumerate(footer.runs):
        block = open_run(data[place.offset : place.offset + place.size_bytes], footer, number)
        opened, error = codec.open_payloads(block, place.first_entry_id, place.entries)
        if error is not None:
            raise error
        payloads += opened
    return payloads
