"""Scripted workloads: each leads the storage through one kind of moments, in some hundred steps."""

from tests.simulation.storing.workload import Do

CHECKPOINT, SETTLE = Do("checkpoint"), Do("settle")


def _interleaved(ledgers: range, rounds: int, count: int, size: int) -> list[Do]:
    """Ledgers written in turn."""
    return [
        Do("add", ledger, at * count, count, size) for at in range(rounds) for ledger in ledgers
    ]


SCRIPTS: dict[str, list[Do]] = {
    # Rolls journal files and entry logs; a checkpoint in the middle of the adds, and one behind.
    "adds": [
        *_interleaved(range(1, 4), 6, 2, 60),
        Do("wait", entries=2),
        Do("checkpoint_soon"),
        *_interleaved(range(1, 4), 2, 1, 300),
        *[
            each
            for at in range(12, 20)
            for each in (Do("add", 1, at, 1, 200), Do("wait", entries=1), Do("add", 4, at, 1, 20))
        ],
        SETTLE,
        CHECKPOINT,
        *_interleaved(range(5, 8), 3, 3, 100),
        SETTLE,
        Do("checkpoint_soon"),
        *_interleaved(range(5, 8), 1, 3, 500),
        CHECKPOINT,
        Do("add", 1, 20, 2, 40),
    ],
    # States that change without any entry, between checkpoints and beside them (B1, B4).
    "states": [
        Do("add", 1, 0, 3),
        Do("add", 2, 0, 3),
        SETTLE,
        CHECKPOINT,
        Do("fence", 1),
        SETTLE,
        CHECKPOINT,
        Do("lac", 2, 1),
        SETTLE,
        CHECKPOINT,
        Do("fence", 3),
        Do("checkpoint_soon"),
        Do("lac", 2, 2),
        Do("fence", 2),
        SETTLE,
        Do("recover", 1, 3, 2),
        Do("add", 1, 5, 1),
        Do("recover", 3, 0, 1),
        SETTLE,
        CHECKPOINT,
        Do("fence", 4),
        SETTLE,
        Do("add", 2, 3, 1),
        Do("fence", 3),
        SETTLE,
    ],
    # The same entries again, over runs of every age: memory, being flushed, in the index (C5).
    "again": [
        Do("add", 1, 0, 10, 40),
        Do("add", 1, 5, 3, 50),
        SETTLE,
        CHECKPOINT,
        Do("recover", 1, 3, 4, 60),
        Do("sparse", 1, 0, 4, 30),
        Do("checkpoint_soon"),
        Do("recover", 1, 2, 2, 20),
        Do("sparse", 2, 1, 5, 30),
        Do("read", 1, 0, 12, 1000),
        SETTLE,
        CHECKPOINT,
        Do("add", 1, 0, 1, 10),
        Do("add", 1, 9, 4, 10),
        Do("read", 1, 0, 12, 1000),
        SETTLE,
        CHECKPOINT,
        Do("read", 1, 3, 9, 200),
        Do("sparse", 1, 0, 5, 90),
        Do("add", 2, 0, 16, 10),
        SETTLE,
        CHECKPOINT,
        Do("read", 2, 0, 16, 1000),
    ],
    # Deletions, and ledgers beside them in the same logs (C6, B25).
    "deletes": [
        *_interleaved(range(1, 5), 3, 2, 80),
        SETTLE,
        CHECKPOINT,
        Do("delete", 1),
        Do("add", 2, 6, 2),
        CHECKPOINT,
        Do("delete", 2),
        Do("fence", 3),
        Do("checkpoint_soon"),
        Do("delete", 4),
        SETTLE,
        CHECKPOINT,
        Do("collect"),
        *_interleaved(range(5, 8), 4, 2, 80),
        SETTLE,
        Do("delete", 6),
        CHECKPOINT,
        Do("collect"),
        Do("read", 3, 0, 6, 1000),
        Do("add", 7, 8, 3),
        SETTLE,
    ],
    # Flushes that belong to no checkpoint, and checkpoints with nothing to flush.
    "flushes": [
        Do("add", 1, 0, 4),
        Do("flush"),
        Do("add", 1, 4, 4),
        Do("flush"),
        SETTLE,
        Do("add", 2, 0, 1, 700),
        Do("flush"),
        CHECKPOINT,
        CHECKPOINT,
        Do("fence", 2),
        Do("flush"),
        SETTLE,
        Do("add", 3, 0, 8, 400),
        Do("checkpoint_soon"),
        Do("add", 1, 8, 8, 300),
        Do("flush"),
        SETTLE,
        Do("wait", entries=50),
        Do("add", 3, 8, 1),
        CHECKPOINT,
    ],
}
