"""The small disks of the drill's bookies: one for the journal, one for the entry logs of each."""

from contextlib import ExitStack
from pathlib import Path

from tests.small_disk import SmallDisk

JOURNAL_BYTES = 192 << 20
LEDGERS_BYTES = 256 << 20
LEDGERS_BYTES_PER_STRIKE = 20 << 20
"""Nothing is ever deleted: the longer the play, the more is written."""
WRITER_BYTES_PER_S_MAX = 2_000_000
"""Of each writer: nothing but a strike shall fill a disk. A strike takes a second of the play."""


class BookieDisks:
    """The disks of one bookie. They live as long as the stack they were made on."""

    def __init__(self, directory: Path, opened: ExitStack, *, strikes: int) -> None:
        self.journal = opened.enter_context(
            SmallDisk(directory / "journal", size_bytes=JOURNAL_BYTES)
        )
        self.ledgers = opened.enter_context(
            SmallDisk(
                directory / "ledgers",
                size_bytes=LEDGERS_BYTES + strikes * LEDGERS_BYTES_PER_STRIKE,
                beside=self.journal,
            )
        )
        self._full: list[SmallDisk] = []

    @property
    def command_prefix(self) -> list[str]:
        return self.ledgers.command_prefix

    @property
    def is_full(self) -> bool:
        return bool(self._full)

    def fill(self, disk: SmallDisk) -> None:
        """Leave no room on one of the two; again, if some was given back."""
        disk.fill()
        if disk not in self._full:
            self._full.append(disk)

    def make_room(self) -> None:
        """Undo every `fill`."""
        for disk in self._full:
            disk.make_room()
        self._full.clear()
