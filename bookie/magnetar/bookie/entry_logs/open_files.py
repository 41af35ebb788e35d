"""An LRU cache of open files, keyed by number."""

from collections import OrderedDict

from magnetar.ledger.ports import File


class OpenFiles:
    """Open files by log or ledger id. The holder of this object owns them."""

    def __init__(self, files_max: int) -> None:
        assert files_max > 0
        self._files_max = files_max
        self._files: OrderedDict[int, File] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, number: int) -> bool:
        return number in self._files

    def get(self, number: int) -> File | None:
        """Return an open file and mark it as the last one used; None if it is not open."""
        file = self._files.get(number)
        if file is not None:
            self._files.move_to_end(number)
        return file

    def put(self, number: int, file: File) -> None:
        """Keep a file; close a former one with this number, and the least recently used one over
        the limit."""
        self.forget(number)
        self._files[number] = file
        if len(self._files) > self._files_max:
            self.forget(next(iter(self._files)))

    def forget(self, number: int) -> None:
        """Close the file, if it is open."""
        file = self._files.pop(number, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for number in list(self._files):
            self.forget(number)
