"""A file system of a few megabytes, to be filled by a test.

It is a tmpfs. Root mounts it; another user gets it in a mount namespace of its own, which a process
keeps alive and into which servers are started (`command_prefix`).
"""

import os
import subprocess
from pathlib import Path
from types import TracebackType

_CHUNK = bytes(1 << 16)


class SmallDisk:
    """Context manager. `path` is where servers see it, `path_here` where the test does."""

    def __init__(self, path: Path, *, size_bytes: int) -> None:
        self.path = path
        self.path_here = path
        self.command_prefix: list[str] = []
        self._size_bytes = size_bytes
        self._holder: subprocess.Popen[str] | None = None

    def __enter__(self) -> "SmallDisk":
        self.path.mkdir(parents=True, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={self._size_bytes}", "none", str(self.path)]
        if os.geteuid() == 0:
            subprocess.run(mount, check=True)
        else:
            self._mount_in_namespace(mount)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._holder is None:
            subprocess.run(["umount", "--lazy", str(self.path)], check=True)
        else:
            self._holder.communicate("")  # Its `read` ends, and the namespace with it.

    def fill(self) -> None:
        """Leave not a byte free."""
        with (self.path_here / "ballast").open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(_CHUNK)
            except OSError:
                pass  # No space left on device: as wanted.

    def make_room(self) -> None:
        """Undo `fill`."""
        (self.path_here / "ballast").unlink()

    def _mount_in_namespace(self, mount: list[str]) -> None:
        script = '"$@" && echo mounted && read line'
        self._holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", *mount],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "mounted\n", (
            "this test needs root, or a kernel that lets users have namespaces of their own"
        )
        pid = self._holder.pid
        self.path_here = Path(f"/proc/{pid}/root{self.path}")
        self.command_prefix = [
            *("nsenter", "--target", str(pid), "--user", "--mount"),
            *("--preserve-credentials", f"--wd={Path.cwd()}"),
        ]
