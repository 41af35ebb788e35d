"""Cost of encryption when building and reading an object: CPU time, without store and bookie.

    python -m tests.bench.object_encryption_bench [--mib 256]

Packets are built into an object in memory and opened again, plain and encrypted in turns. Each line
is the best of the rounds, in MiB of payload per second of CPU time.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence

from magnetar.ledger.digest import codec_for
from magnetar.ledger.offloading.object_builder import ObjectBuilder
from magnetar.ledger.offloading.object_encryption import NO_KEYS, ObjectKeyRing
from magnetar.ledger.offloading.object_format import run_payloads
from magnetar.ledger.wire import EntryBlock, encode_block
from tests.ledger_objects import NAME, closed_ledger, footer_in

_ENTRY_BYTES = 64 << 10
_BLOCK_ENTRIES = 16
_ROUNDS = 5

RINGS = {
    "plain": NO_KEYS,
    "encrypted": ObjectKeyRing({"k": bytes(32)}, "k", random_bytes=os.urandom),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="What encryption of objects costs.")
    parser.add_argument("--mib", type=int, default=256, help="payload of the object")
    mib: int = parser.parse_args(arguments).mib
    values = [os.urandom(_ENTRY_BYTES)] * (mib * (1 << 20) // _ENTRY_BYTES)
    packets = codec_for(closed_ledger(values)).seal(0, -1, 0, values)
    blocks = [
        encode_block(packets[at : at + _BLOCK_ENTRIES])
        for at in range(0, len(packets), _BLOCK_ENTRIES)
    ]
    best: dict[str, tuple[float, float]] = {}
    for _ in range(_ROUNDS):
        for name, ring in RINGS.items():
            found = _round(values, blocks, ring)
            before = best.get(name, found)
            best[name] = min(before[0], found[0]), min(before[1], found[1])
    for name, (build_s, read_s) in best.items():
        sys.stdout.write(
            f"{name}: built {mib / build_s:.0f} MiB/s, read {mib / read_s:.0f} MiB/s of CPU time\n"
        )


def _round(
    values: Sequence[bytes], blocks: Sequence[EntryBlock], ring: ObjectKeyRing
) -> tuple[float, float]:
    """Return the CPU seconds of building an object and of reading it."""
    metadata = closed_ledger(values)
    codec = codec_for(metadata)
    start_s = time.process_time()
    building = ObjectBuilder(
        metadata, codec, NAME.attempt, instance_id="i", log="l", made_by="bench", keys=ring
    )
    pieces = [piece for block in blocks for piece in building.add(block)]
    pieces += building.finish()
    built_s = time.process_time()
    data = b"".join(pieces)
    joined_s = time.process_time()
    footer = footer_in(data)
    cipher = footer.cipher(ring)
    for number, run in enumerate(footer.runs):
        run_payloads(data[run.offset : run.offset + run.size_bytes], footer, number, codec, cipher)
    return built_s - start_s, time.process_time() - joined_s


if __name__ == "__main__":
    main()
