"""Builds the object of a closed ledger from its packets, piece by piece. Pure.

The builder checks the digest of every packet before it takes it. The returned pieces, concatenated,
are the object; the builder keeps only the index of them.

Source: tiered storage, section 15.
"""

import json
from collections.abc import Sequence

from magnetar.ledger.digest import PacketCodec
from magnetar.ledger.errors import (
    DigestMismatchError,
    InvalidLedgerMetadataError,
    ObjectIncompleteError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.offloading.object_encryption import (
    NO_KEYS,
    ObjectIdentity,
    ObjectKeyRing,
    RunCipher,
    WrappedKey,
)
from magnetar.ledger.offloading.object_format import (
    ENCRYPTED_VERSION,
    RUN_BYTES,
    RUN_ENTRIES_MAX,
    U32,
    VERSION,
    ObjectDescription,
    ObjectName,
    RunPlace,
    check_of,
    encode_footer,
    encode_header,
    encode_run,
)
from magnetar.ledger.wire import EntryBlock, encode_block


class ObjectBuilder:
    """One attempt to write the object of one ledger."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        codec: PacketCodec,
        attempt: bytes,
        *,
        instance_id: str,
        log: str,
        made_by: str,
        keys: ObjectKeyRing = NO_KEYS,
    ) -> None:
        """Begin the object of a closed ledger.

        Args:
            keys: if it has a key for new objects, the object is encrypted.

        Raises:
            InvalidLedgerMetadataError: the ledger is not closed (rule O6).
        """
        if metadata.state is not LedgerState.CLOSED:
            raise InvalidLedgerMetadataError(
                f"ledger {metadata.ledger_id} is {metadata.state.value}: it has no end to copy to"
            )
        self.name = ObjectName(metadata.ledger_id, attempt)
        self._metadata = metadata
        self._codec = codec
        self._instance_id = instance_id
        self._log = log
        self._made_by = made_by
        self._runs: list[RunPlace] = []
        self._packets: list[bytes] = []
        self._packets_bytes = 0
        self._publish_ms: list[int] = []
        """Publish time of each packet in the run that is being filled; -1 if unknown."""
        self._publish_ms_first = self._publish_ms_last = -1
        self._schema_versions: set[int] = set()
        self._next_entry_id = 0
        self._length = 0
        # For this builder alone: another try for the same attempt must not reuse a nonce.
        sealing = keys.new_cipher(ObjectIdentity(instance_id, log, *self.name))
        self._wrapped_key: WrappedKey | None = None
        self._cipher: RunCipher | None = None
        if sealing is not None:
            self._wrapped_key, self._cipher = sealing
        self._header = encode_header(self.name, VERSION if sealing is None else ENCRYPTED_VERSION)
        self._end = len(self._header)

    @property
    def next_entry_id(self) -> int:
        """The id of the next entry to add."""
        return self._next_entry_id

    @property
    def check(self) -> int:
        """Checksum of the runs written so far, to compare with the one in the object."""
        return check_of(self._runs)

    @property
    def size_bytes(self) -> int:
        """Number of bytes returned so far."""
        return self._end

    def add(
        self,
        block: EntryBlock,
        *,
        publish_ms: Sequence[int] = (),
        schema_versions: Sequence[int] = (),
    ) -> list[bytes]:
        """Take the next packets; return the pieces of the object that are ready.

        `publish_ms`: the publish time of each entry in the block, empty if they are unknown;
        `schema_versions`: the versions that its messages name.

        Raises:
            DigestMismatchError: a packet is damaged, or is not the next one. No packet of the block
                was taken: another bookie may supply the same entries.
        """
        _, error = self._codec.open_payloads(block, self._next_entry_id, len(block.lengths))
        if error is not None:
            raise error
        count = len(block.lengths)
        if self._next_entry_id + count > self._metadata.last_entry_id + 1:
            raise DigestMismatchError(
                f"ledger {self.name.ledger_id} ends with entry {self._metadata.last_entry_id}; "
                f"entry {self._next_entry_id + count - 1} was given"
            )
        if publish_ms and len(publish_ms) != count:
            raise ValueError(f"{len(publish_ms)} publish times are given for {count} entries")
        if publish_ms:
            first = min(publish_ms)
            known = self._publish_ms_first >= 0
            self._publish_ms_first = min(first, self._publish_ms_first) if known else first
            self._publish_ms_last = max(*publish_ms, self._publish_ms_last)
        self._schema_versions.update(schema_versions)
        pieces = self._begun()
        for packet, time_ms in zip(block.packets(), publish_ms or [-1] * count, strict=True):
            self._packets.append(packet)
            self._publish_ms.append(time_ms)
            self._packets_bytes += len(packet)
            self._next_entry_id += 1
            is_full = self._packets_bytes >= RUN_BYTES or len(self._packets) >= RUN_ENTRIES_MAX
            if is_full:
                pieces.append(self._end_run())
        overhead = self._codec.overhead_bytes
        self._length += sum(block.lengths) - overhead * count
        return pieces

    def finish(self) -> list[bytes]:
        """Return the last pieces.

        Raises:
            ObjectIncompleteError: entries are missing, or the ledger has another length.
        """
        metadata = self._metadata
        is_whole = self._next_entry_id == metadata.last_entry_id + 1
        if not is_whole or self._length != metadata.length:
            raise ObjectIncompleteError(
                f"{self.name}: {self._next_entry_id} entries of {self._length} bytes; the ledger "
                f"has {metadata.last_entry_id + 1} of {metadata.length}"
            )
        pieces = self._begun()
        if self._packets:
            pieces.append(self._end_run())
        described = json.loads(metadata.to_json())
        described.pop("password", None)  # a secret: not for the object store
        description = ObjectDescription(
            instance_id=self._instance_id,
            log=self._log,
            ledger=described,
            first_publish_ms=self._publish_ms_first,
            last_publish_ms=self._publish_ms_last,
            schema_versions=tuple(sorted(self._schema_versions)),
            made_by=self._made_by,
            encryption=self._wrapped_key,
        )
        footer = encode_footer(self.name, self._runs, description, self._end)
        self._end += len(footer)
        pieces.append(footer)
        return pieces

    def _begun(self) -> list[bytes]:
        header, self._header = self._header, b""
        return [header] if header else []

    def _end_run(self) -> bytes:
        packets, self._packets = self._packets, []
        times, self._publish_ms = self._publish_ms, []
        self._packets_bytes = 0
        first_entry_id = self._next_entry_id - len(packets)
        block = encode_block(packets)
        run = encode_run(self.name, len(self._runs), first_entry_id, block, self._cipher)
        # A run with one unknown time has none: a search by time must not skip it.
        publish_ms_max = -1 if -1 in times else max(times)
        (checksum,) = U32.unpack_from(run, len(run) - U32.size)
        self._runs.append(
            RunPlace(first_entry_id, len(packets), self._end, len(run), checksum, publish_ms_max)
        )
        self._end += len(run)
        return run
