"""Objects of ledgers for tests, with any split of the entries into runs."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from magnetar.ledger.digest import codec_for
from magnetar.ledger.ledger_metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.offloading.object_format import (
    U32,
    ObjectDescription,
    ObjectFooter,
    ObjectName,
    RunPlace,
    decode_footer,
    encode_footer,
    encode_header,
    encode_run,
)
from magnetar.ledger.wire import encode_block

NAME = ObjectName(7, bytes(range(16)))


def closed_ledger(
    values: Sequence[bytes],
    *,
    digest_type: DigestType = DigestType.CRC32C,
    password: bytes = b"",
) -> LedgerMetadata:
    """Return the metadata of a closed ledger with these payloads."""
    return LedgerMetadata(
        ledger_id=NAME.ledger_id,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        state=LedgerState.CLOSED,
        last_entry_id=len(values) - 1,
        length=sum(map(len, values)),
        ensembles=(Fragment(0, ("b1",)),),
        digest_type=digest_type,
        password=password,
        created_ms=1,
        creation_token=1,
    )


def object_of(
    values: Sequence[bytes],
    split: Sequence[int] = (),
    *,
    digest_type: DigestType = DigestType.CRC32C,
    password: bytes = b"",
    publish_ms: Sequence[int] = (),
    described: dict[str, object] | None = None,
) -> bytes:
    """Build an object of `NAME`.

    Args:
        split: entries per run; the remaining entries are in runs of one.
        publish_ms: publish time of each run; unknown for the remaining ones.
        described: values that replace those of the ledger in the description.
    """
    metadata = closed_ledger(values, digest_type=digest_type, password=password)
    packets = codec_for(metadata).seal(0, -1, 0, values) if values else []
    pieces = [encode_header(NAME)]
    runs: list[RunPlace] = []
    end, first = len(pieces[0]), 0
    for count in _counts(len(packets), split):
        block = encode_block(packets[first : first + count])
        piece = encode_run(NAME, len(runs), first, block)
        (checksum,) = U32.unpack_from(piece, len(piece) - U32.size)
        time_ms = publish_ms[len(runs)] if len(runs) < len(publish_ms) else -1
        runs.append(RunPlace(first, count, end, len(piece), checksum, time_ms))
        pieces.append(piece)
        end += len(piece)
        first += count
    ledger = json.loads(metadata.to_json())
    del ledger["password"]
    ledger |= described or {}
    description = ObjectDescription(instance_id="i", log="l", ledger=ledger, made_by="test")
    return b"".join([*pieces, encode_footer(NAME, runs, description, end)])


def footer_in(data: bytes) -> ObjectFooter:
    """Return the footer of an object that `object_of` built."""
    footer = decode_footer(data, NAME, len(data))
    assert isinstance(footer, ObjectFooter)
    return footer


def _counts(entries: int, split: Sequence[int]) -> Iterator[int]:
    left = iter(split)
    while entries:
        count = min(next(left, 1), entries)
        yield count
        entries -= count


def objects_in(directory: Path) -> list[Path]:
    """Return the ledgers' objects in a store that is a directory, while servers write and delete
    there. `Path.rglob` fails if a folder disappears meanwhile."""
    return sorted(
        Path(folder) / name
        for folder, _, names in os.walk(directory)
        for name in names
        if name.endswith(".mgo")
    )
