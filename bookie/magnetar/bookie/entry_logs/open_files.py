"""Files that are kept open by a number, the ones used last, up to a bound."""

from collections import OrderedDict

from magnetar.ledger.ports import File


class OpenFiles:
    """Open files by log or ledger id. Whoever holds it owns them."""

    def __init__(self, files_max: int) -> None:
        assert files_max > 0
        self._files_max = files_max
        self._files: OrderedDict[int, File] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, number: int) -> bool:
        return number in self._files

    def get(self, number: int) -> File | None:
        """The open file; it counts as used just now."""
        file = self._files.get(number)
        if file is not None:
            self._files.move_to_end(number)
        return file

    def put(self, number: int, file: File) -> None:
        """Keep a file; one that was kept under the number, or the one unused for longest, is
        closed."""
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
