"""The Java V5 client at work while a test changes its topic and brokers (`java_v5/Through.java`).

The program publishes and consumes until it is told to stop, tells how far it is, and judges in the
end what its consumers got. A test waits for what it tells, never for a time.
"""

import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.waiting import wait_until

WAIT_S = 120.0
_END_S = 400.0
_MESSAGES = 200


class JavaStory:
    """One run of the program. A context manager: it is killed at the end, whatever happened."""

    def __init__(self, place: Path, url: str, topic: str) -> None:
        """`place`: a folder with the program, and below it `lib` with all that it needs."""
        environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            ["java", "-cp", "lib/*", "Through.java", url, topic],
            cwd=place,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.numbers: dict[str, int] = {}
        """The newest numbers that it told, by what they are of."""
        self.lines: list[str] = []
        """All other lines."""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def __enter__(self) -> "JavaStory":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reading.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.rstrip()
            name, _, number = text.rpartition(" ")
            if name.startswith(("confirmed", "got ", "longest")) and number.isdecimal():
                self.numbers[name] = int(number)
            elif not text.startswith("fault") or text not in self.lines:
                self.lines.append(text)

    def tell(self, command: str) -> None:
        """Give a command, and wait until it is carried out."""
        before = self.lines.count(done := f"done {command}")
        self._write(command)
        self._until(lambda: self.lines.count(done) > before, f"{command} is done")

    def join(self, *names: str) -> None:
        """Stream consumers come, and each of them gets messages."""
        for name in names:
            self.tell(f"join {name}")
        self.goes_on(*(f"got {name}" for name in names))

    def goes_on(self, *whom: str) -> None:
        """Return when messages were confirmed, and received by all: by the consumers named, or by
        each kind of them."""
        names = ("confirmed", *(whom or ("got queue", "got checkpoint")))
        before = {name: self.numbers.get(name, 0) for name in names}
        self._until(
            lambda: all(self.numbers.get(each, 0) >= before[each] + _least(each) for each in names),
            f"messages come for {', '.join(names)}",
        )

    def stop(self) -> None:
        """Have it judge, and end."""
        self._write("stop")
        status = self._process.wait(_END_S)
        self._reading.join()
        assert status == 0, self._told()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _until(self, is_so: Callable[[], bool], what: str) -> None:
        try:
            wait_until(lambda: is_so() or self._is_wrong(), what, within_s=WAIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self._told()}") from error
        assert not self._is_wrong(), f"{what}: {self._told()}"

    def _is_wrong(self) -> bool:
        has_fault = any(each.startswith("fault") for each in self.lines)
        return has_fault or self._process.poll() is not None

    def _told(self) -> str:
        return "\n".join([str(self.numbers), *self.lines[-60:]])


def _least(name: str) -> int:
    """How many messages show that somebody is at work: a consumer may have few keys."""
    return _MESSAGES if name == "confirmed" else _MESSAGES // 10
