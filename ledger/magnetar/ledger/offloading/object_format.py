"""The layout of a ledger's object, and the checks of all bytes read from one. Pure.

Layout: docs/formats/object.md. Bytes from an object store are trusted only after their checksums
were verified: the footer's own, that of each run, and then the digest of each packet.

Source: tiered storage, section 15.
"""

import base64
import json
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import google_crc32c

from magnetar.ledger.digest import PacketCodec
from magnetar.ledger.errors import (
    BookieProtocolError,
    FutureObjectVersionError,
    InvalidLedgerMetadataError,
    ObjectDamagedError,
    ObjectKeyError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.offloading.object_encryption import (
    TAG_BYTES,
    WRAPPED_BYTES,
    ObjectIdentity,
    ObjectKeyRing,
    RunCipher,
    WrappedKey,
)
from magnetar.ledger.wire import EntryBlock, decode_block

MAGIC = b"MGNTOBJT"
VERSION = 1
"""Version of plain objects. Stored on disk, never renumber."""
ENCRYPTED_VERSION = 2
"""Version of encrypted objects. Releases that know only plain objects refuse it by the number: they
do not look at flags."""
ENCRYPTED = 1
"""Flag of encrypted objects. Stored on disk, never renumber."""
_FLAGS = {VERSION: 0, ENCRYPTED_VERSION: ENCRYPTED}
"""Flags of each version that this release reads."""

ATTEMPT_BYTES = 16

RUN_ENTRIES_MAX = 4_096
RUN_BYTES = 1 << 20
"""Size of a run, in bytes: the entry that reaches it ends the run."""

TAIL_BYTES = 128 << 10
"""Bytes read first from the end of an object: nearly always the whole footer."""

RUNS_MAX = 1 << 24
"""Most runs of an object; a footer that names more is damaged."""

HEADER = struct.Struct(">8sHHIq16s20x")
HEADER_BYTES = HEADER.size + 4

RUN_HEAD = struct.Struct(">IIq")
"""Number of the run, bytes of its block, first entry id."""

INDEX_ITEM = struct.Struct(">qIQIIq")

TRAILER = struct.Struct(">QIIIIIIqHHI4x")
TRAILER_BYTES = TRAILER.size + 4 + len(MAGIC)

U32 = struct.Struct(">I")
_NAME = struct.Struct(f">q{ATTEMPT_BYTES}s")

crc32c_of, extend_crc32c = google_crc32c.value, google_crc32c.extend


class ObjectName(NamedTuple):
    """The identity of an object."""

    ledger_id: int
    attempt: bytes
    """16 random bytes of one attempt to write the ledger."""

    def __str__(self) -> str:
        return f"object {self.attempt.hex()} of ledger {self.ledger_id}"

    @property
    def checksum(self) -> int:
        """Start value of the checksums of the object's parts: no part passes for that of another
        object."""
        value: int = crc32c_of(_NAME.pack(*self))
        return value


class RunPlace(NamedTuple):
    """One run, as the index describes it."""

    first_entry_id: int
    entries: int
    offset: int
    """Byte offset in the object."""
    size_bytes: int
    checksum: int
    publish_ms_max: int
    """Largest publish time of its messages, ms since 1970; -1 if unknown."""

    @property
    def last_entry_id(self) -> int:
        return self.first_entry_id + self.entries - 1


@dataclass(frozen=True, slots=True)
class ObjectDescription:
    """The description in an object's footer. It names the ledger in the object, even for a reader
    without access to the cluster."""

    instance_id: str
    """Instance id of the cluster."""
    log: str
    """Path of the managed log."""
    ledger: Mapping[str, Any]
    """The ledger's metadata in its JSON form, without the password."""
    first_publish_ms: int = -1
    last_publish_ms: int = -1
    schema_versions: tuple[int, ...] = ()
    made_by: str = ""
    encryption: WrappedKey | None = None
    """The wrapped data key; None if the object is plain."""

    @property
    def version(self) -> int:
        """Version of the described object."""
        return VERSION if self.encryption is None else ENCRYPTED_VERSION

    def encode(self) -> bytes:
        value: dict[str, Any] = {
            "format": self.version,
            "instance_id": self.instance_id,
            "log": self.log,
            "ledger": dict(self.ledger),
            "first_publish_ms": self.first_publish_ms,
            "last_publish_ms": self.last_publish_ms,
            "schema_versions": list(self.schema_versions),
            "made_by": self.made_by,
        }
        if self.encryption is not None:
            wrapped = base64.b64encode(self.encryption.wrapped).decode()
            value["encryption"] = {"key_id": self.encryption.key_id, "wrapped_key": wrapped}
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


@dataclass(frozen=True, slots=True)
class ObjectFooter:
    """All that is known of an object before any of its runs is read."""

    name: ObjectName
    runs: tuple[RunPlace, ...]
    description: ObjectDescription
    check: int
    """Checksum of the content: CRC over the checksums of all runs."""
    size_bytes: int
    """Size of the whole object."""

    @property
    def entries(self) -> int:
        return self.runs[-1].last_entry_id + 1 if self.runs else 0

    def cipher(self, keys: ObjectKeyRing) -> RunCipher | None:
        """Return the cipher of the runs; None if they are plain.

        Raises:
            ObjectKeyError: the key is not among these.
        """
        described = self.description
        if described.encryption is None:
            return None
        identity = ObjectIdentity(described.instance_id, described.log, *self.name)
        return keys.cipher(described.encryption, identity)

    def run_of(self, entry_id: int) -> int:
        """Return the number of the run that holds an entry.

        Raises:
            IndexError: there is no such entry.
        """
        if not 0 <= entry_id < self.entries:
            raise IndexError(f"{self.name} has entries 0 to {self.entries - 1}, not {entry_id}")
        return bisect_right(self.runs, entry_id, key=lambda run: run.first_entry_id) - 1

    def run_after(self, publish_ms: int) -> int:
        """Return the first run that may hold a message published at or after that time; the number
        of runs if none can."""
        for number, run in enumerate(self.runs):
            if run.publish_ms_max < 0 or run.publish_ms_max >= publish_ms:
                return number
        return len(self.runs)


class MoreOfTail(NamedTuple):
    """Result of decoding a tail that is shorter than the footer."""

    size_bytes: int
    """Bytes of the object's end that are needed."""


def encode_header(name: ObjectName, version: int = VERSION) -> bytes:
    """Return the first 64 bytes of an object."""
    head = HEADER.pack(MAGIC, version, HEADER_BYTES, _FLAGS[version], *name)
    return head + U32.pack(crc32c_of(head))


def check_header(data: bytes, name: ObjectName) -> None:
    """Check the header of an object.

    Raises:
        ObjectDamagedError: it is not the header of that object.
        FutureObjectVersionError
    """
    head = data[: HEADER.size]
    if len(data) < HEADER_BYTES or not head.startswith(MAGIC):
        raise ObjectDamagedError(f"{name}: no header of an object in its {len(data)} first bytes")
    if crc32c_of(head) != U32.unpack_from(data, HEADER.size)[0]:
        raise ObjectDamagedError(f"{name}: the checksum of its header is wrong")
    _, version, size, flags, ledger_id, attempt = HEADER.unpack(head)
    _check_version(name, version, flags)
    if size != HEADER_BYTES or (ledger_id, attempt) != name:
        found = ObjectName(ledger_id, attempt)
        raise ObjectDamagedError(f"{name}: its header is that of {found}")


def _check_version(name: ObjectName, version: int, flags: int) -> None:
    if _FLAGS.get(version) != flags:
        raise FutureObjectVersionError(
            f"{name} is version {version} with flags {flags:#x}; this release reads versions "
            f"{VERSION} (plain) and {ENCRYPTED_VERSION} (encrypted): use a newer one"
        )


def encode_footer(
    name: ObjectName, runs: Sequence[RunPlace], description: ObjectDescription, end: int
) -> bytes:
    """Return index, description and trailer; `end` is the offset where the last run ends."""
    index = b"".join(INDEX_ITEM.pack(*run) for run in runs)
    text = description.encode()
    trailer = TRAILER.pack(
        end,
        len(index),
        len(text),
        crc32c_of(index),
        crc32c_of(text),
        check_of(runs),
        len(runs),
        sum(run.entries for run in runs),
        description.version,
        TRAILER_BYTES,
        _FLAGS[description.version],
    )
    checksum = extend_crc32c(name.checksum, trailer)
    return b"".join((index, text, trailer, U32.pack(checksum), MAGIC))


def check_of(runs: Sequence[RunPlace]) -> int:
    """Return the checksum over the checksums of all runs, which the log's node keeps."""
    value: int = crc32c_of(b"".join(U32.pack(run.checksum) for run in runs))
    return value


def decode_footer(tail: bytes, name: ObjectName, size_bytes: int) -> ObjectFooter | MoreOfTail:
    """Decode the footer of an object of `size_bytes` from its last bytes.

    Raises:
        ObjectDamagedError: it is not that object, or was changed or cut off.
        FutureObjectVersionError
    """
    if len(tail) < TRAILER_BYTES or not tail.endswith(MAGIC):
        raise ObjectDamagedError(f"{name}: {size_bytes} bytes without a trailer at their end")
    at = len(tail) - TRAILER_BYTES
    trailer = tail[at : at + TRAILER.size]
    (
        index_at,
        index_bytes,
        text_bytes,
        index_crc,
        text_crc,
        check,
        count,
        entries,
        version,
        trailer_bytes,
        flags,
    ) = TRAILER.unpack(trailer)
    # The checksum first, as in the header: a changed bit of the version does not mean a newer
    # release.
    if extend_crc32c(name.checksum, trailer) != U32.unpack_from(tail, at + TRAILER.size)[0]:
        raise ObjectDamagedError(f"{name}: the checksum of its trailer is wrong, or not its own")
    _check_version(name, version, flags)
    footer_bytes = index_bytes + text_bytes + trailer_bytes
    is_consistent = (
        trailer_bytes == TRAILER_BYTES
        and count <= RUNS_MAX
        and index_bytes == count * INDEX_ITEM.size
        and index_at + footer_bytes == size_bytes
    )
    if not is_consistent:
        raise ObjectDamagedError(f"{name}: {size_bytes} bytes, but its trailer speaks of others")
    if footer_bytes > len(tail):
        return MoreOfTail(footer_bytes)
    index = tail[at - text_bytes - index_bytes : at - text_bytes]
    text = tail[at - text_bytes : at]
    if crc32c_of(index) != index_crc or crc32c_of(text) != text_crc:
        raise ObjectDamagedError(f"{name}: the checksum of its index or description is wrong")
    runs = tuple(RunPlace(*item) for item in INDEX_ITEM.iter_unpack(index))
    description = _described(text, name)
    if description.version != version:
        raise ObjectDamagedError(f"{name} is version {version}, and described as another one")
    footer = ObjectFooter(name, runs, description, check, size_bytes)
    if not _follow_each_other(runs, index_at) or footer.entries != entries:
        raise ObjectDamagedError(f"{name}: its index leaves something out, or names it twice")
    if check_of(runs) != check:
        raise ObjectDamagedError(f"{name}: its index does not belong to its trailer")
    return footer


def _follow_each_other(runs: Sequence[RunPlace], end: int) -> bool:
    firsts = [run.first_entry_id for run in runs]
    ends = [run.first_entry_id + run.entries for run in runs]
    starts = [run.offset for run in runs]
    stops = [run.offset + run.size_bytes for run in runs]
    return (
        all(run.entries > 0 for run in runs)
        and firsts == [0, *ends][: len(firsts)]
        and [*starts, end] == [HEADER_BYTES, *stops]
    )


def _described(text: bytes, name: ObjectName) -> ObjectDescription:
    try:
        value = json.loads(text)
        return ObjectDescription(
            instance_id=str(value["instance_id"]),
            log=str(value["log"]),
            ledger=dict(value["ledger"]),
            first_publish_ms=int(value["first_publish_ms"]),
            last_publish_ms=int(value["last_publish_ms"]),
            schema_versions=tuple(map(int, value["schema_versions"])),
            made_by=str(value["made_by"]),
            encryption=_wrapped_key(value.get("encryption")),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ObjectDamagedError(f"{name}: its description is none: {error!r}") from error


def _wrapped_key(value: Mapping[str, Any] | None) -> WrappedKey | None:
    if value is None:
        return None
    key_id, wrapped = str(value["key_id"]), base64.b64decode(value["wrapped_key"], validate=True)
    if len(wrapped) != WRAPPED_BYTES:
        raise ValueError(f"a wrapped key of {len(wrapped)} bytes")
    return WrappedKey(key_id, wrapped)


def encode_run(
    name: ObjectName,
    number: int,
    first_entry_id: int,
    block: EntryBlock,
    cipher: RunCipher | None = None,
) -> bytes:
    """Return the bytes of a run; the last four are its checksum.

    `cipher` encrypts the block; None leaves it plain.
    """
    head = RUN_HEAD.pack(number, len(block.data), first_entry_id)
    body = block.data if cipher is None else cipher.seal(number, head, block.data)
    checksum = extend_crc32c(extend_crc32c(name.checksum, head), body)
    return b"".join((head, body, U32.pack(checksum)))


def check_run(data: bytes, footer: ObjectFooter, number: int) -> None:
    """Check that the bytes of a run are those that were written. Decodes no packet, and needs no
    key.

    Raises:
        ObjectDamagedError
    """
    place = footer.runs[number]
    where = _where(footer, number)
    if len(data) != place.size_bytes:
        raise ObjectDamagedError(f"{where}: {len(data)} bytes where {place.size_bytes} were wanted")
    end = len(data) - U32.size
    (checksum,) = U32.unpack_from(data, end)
    if checksum != place.checksum or extend_crc32c(footer.name.checksum, data[:end]) != checksum:
        raise ObjectDamagedError(f"{where}: its checksum is wrong")


def _where(footer: ObjectFooter, number: int) -> str:
    place = footer.runs[number]
    return f"{footer.name}, run {number} (entries {place.first_entry_id} to {place.last_entry_id})"


def open_run(
    data: bytes, footer: ObjectFooter, number: int, cipher: RunCipher | None = None
) -> EntryBlock:
    """Return the packets of a run, after checking that it is the right run and unchanged.

    `cipher`: that of the footer, if the object is encrypted.

    Raises:
        ObjectDamagedError
        ObjectKeyError: the object is encrypted, and no cipher was given.
    """
    check_run(data, footer, number)
    place, where = footer.runs[number], _where(footer, number)
    end = len(data) - U32.size
    found, block_bytes, first_entry_id = RUN_HEAD.unpack_from(data)
    if (found, first_entry_id) != (number, place.first_entry_id):
        raise ObjectDamagedError(f"{where}: it is run {found}, from entry {first_entry_id} on")
    body = data[RUN_HEAD.size : end]
    if footer.description.encryption is not None:
        body = _decrypted(data[: RUN_HEAD.size], body, footer, number, cipher)
    try:
        block = decode_block(body)
    except BookieProtocolError as error:
        raise ObjectDamagedError(f"{where}: {error}") from error
    if len(block.data) != block_bytes or len(block.lengths) != place.entries:
        raise ObjectDamagedError(f"{where}: {len(block.lengths)} entries")
    return block


def _decrypted(
    head: bytes, sealed: bytes, footer: ObjectFooter, number: int, cipher: RunCipher | None
) -> bytes:
    if cipher is None:
        assert footer.description.encryption is not None
        key_id = footer.description.encryption.key_id
        raise ObjectKeyError(
            f"{footer.name} is encrypted with the key {key_id!r}, and is read without keys",
            key_id=key_id,
        )
    opened = cipher.open(number, head, sealed)
    if opened is None:
        raise ObjectDamagedError(
            f"{_where(footer, number)}: its checksum is right, but its {len(sealed)} bytes are not "
            f"what was encrypted (with {TAG_BYTES} bytes of tag): somebody changed the run, or the "
            "description of its object"
        )
    return opened


def run_payloads(
    data: bytes,
    footer: ObjectFooter,
    number: int,
    codec: PacketCodec,
    cipher: RunCipher | None = None,
) -> list[bytes]:
    """Return the payloads of a run, after all checks: the run's own, its encryption if it has one,
    and each packet's digest and ids.

    Raises:
        ObjectDamagedError
        ObjectKeyError: the object is encrypted, and no cipher was given.
    """
    place = footer.runs[number]
    block = open_run(data, footer, number, cipher)
    payloads, error = codec.open_payloads(block, place.first_entry_id, place.entries)
    if error is not None:
        raise ObjectDamagedError(f"{footer.name}, run {number}: {error}") from error
    return payloads


class ObjectVerifier:
    """Reads an object back, run by run, and compares it with the ledger that it is to replace.

    The ledger may be deleted once `finish` has returned, and not before (rule 16, step 6).
    """

    def __init__(
        self,
        footer: ObjectFooter,
        metadata: LedgerMetadata,
        codec: PacketCodec,
        check: int,
        cipher: RunCipher | None = None,
    ) -> None:
        """Check the footer, and prepare to read the runs.

        `check`: the value computed from the packets when they were copied. `cipher`: that of the
        footer, if the object is encrypted.

        Raises:
            ObjectDamagedError: the footer is not that of the whole ledger.
            InvalidLedgerMetadataError: the ledger is another one, or is not closed.
        """
        self._footer = footer
        self._metadata = metadata
        self._codec = codec
        self._cipher = cipher
        self._next = 0
        self._length = 0
        check_footer(footer, metadata, check)

    @property
    def next_run(self) -> RunPlace | None:
        """The next run to read; None if all were read."""
        runs = self._footer.runs
        return runs[self._next] if self._next < len(runs) else None

    def add(self, data: bytes) -> None:
        """Check the bytes of the next run, as the store returned them.

        Raises:
            ObjectDamagedError: a checksum, or the digest of a packet, is wrong.
        """
        payloads = run_payloads(data, self._footer, self._next, self._codec, self._cipher)
        self._length += sum(map(len, payloads))
        self._next += 1

    def finish(self) -> None:
        """Check that all runs were read, and have all bytes of the ledger.

        Raises:
            ObjectDamagedError: the object does not have all bytes of the ledger.
        """
        if self._next != len(self._footer.runs) or self._length != self._metadata.length:
            raise ObjectDamagedError(
                f"{self._footer.name}: {self._length} payload bytes in {self._next} of "
                f"{len(self._footer.runs)} runs; the ledger has {self._metadata.length}"
            )


def check_footer(footer: ObjectFooter, metadata: LedgerMetadata, check: int) -> None:
    """Check that an object claims to hold all of a closed ledger, and what was copied from it.

    Raises:
        ObjectDamagedError
        InvalidLedgerMetadataError: the ledger is another one, or is not closed.
    """
    if metadata.state is not LedgerState.CLOSED or metadata.ledger_id != footer.name.ledger_id:
        raise InvalidLedgerMetadataError(
            f"{footer.name} is compared with ledger {metadata.ledger_id}, {metadata.state.value}"
        )
    if footer.entries != metadata.last_entry_id + 1:
        raise ObjectDamagedError(
            f"{footer.name} has {footer.entries} entries, its ledger ends with "
            f"{metadata.last_entry_id}"
        )
    if footer.check != check:
        raise ObjectDamagedError(
            f"{footer.name}: check {footer.check:08x}, {check:08x} was written"
        )


def ranges_of(runs: Sequence[RunPlace], bytes_max: int) -> list[tuple[int, int]]:
    """Return the byte ranges (start, end) to request for consecutive runs: as few as the bound
    allows, each at least one run."""
    assert all(one.offset + one.size_bytes == other.offset for one, other in pairwise(runs))
    ranges: list[tuple[int, int]] = []
    for run in runs:
        end = run.offset + run.size_bytes
        if ranges and end - ranges[-1][0] <= bytes_max:
            ranges[-1] = ranges[-1][0], end
        else:
            ranges.append((run.offset, end))
    return ranges
