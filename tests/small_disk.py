"""A file system of a few megabytes, for tests that fill it.

It is a tmpfs, made in one of three ways. A user with the right to mount mounts it. Another user
gets it in a mount namespace, which a process keeps alive and in which servers are started
(`command_prefix`). Where neither is allowed, as in most containers, a small /dev/shm is used.
"""

import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

_SHM = Path("/dev/shm")
_CHUNK = bytes(1 << 16)


class SmallDisk:
    """A small disk, as a context manager. Servers see it at `path`, the test at `path_here`."""

    def __init__(self, path: Path, *, size_bytes: int, beside: "SmallDisk | None" = None) -> None:
        """`size_bytes` is its largest size; /dev/shm may be smaller.

        `beside`: another disk in use that the same servers must see.
        """
        self.path = path
        self.path_here = path
        self.command_prefix: list[str] = list(beside.command_prefix) if beside else []
        self._root_here: Path = beside._root_here if beside else Path("/")
        """Root of the servers' file systems, as the test sees it."""
        self._is_mounted = False
        self._size_bytes = size_bytes
        self._undo = ExitStack()

    def __enter__(self) -> "SmallDisk":
        self.path.mkdir(parents=True)
        if not (
            self._mount()
            or (not self.command_prefix and self._mount_in_namespace())
            or self._use_shared_memory()
        ):
            raise AssertionError(
                "this test needs a small file system: run it as root, or where users may have "
                f"namespaces of their own, or with a {_SHM} of at most {self._size_bytes} bytes"
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._undo.close()

    def fill(self) -> None:
        """Leave not a byte free. A repeated call takes space that was freed meanwhile."""
        if self._is_mounted:
            # Shrink it first: space that it does not have needs no memory to fill.
            self._remount(shutil.disk_usage(self.path_here).used)
        with (self.path_here / "ballast").open("ab", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(_CHUNK)
            except OSError:
                pass  # no space left on device: as intended

    def make_room(self) -> None:
        """Undo `fill`."""
        (self.path_here / "ballast").unlink()
        if self._is_mounted:
            self._remount(self._size_bytes)

    @property
    def _command(self) -> list[str]:
        size = f"size={self._size_bytes}"
        return ["mount", "-t", "tmpfs", "-o", size, "none", str(self.path)]

    def _mount(self) -> bool:
        command = [*self.command_prefix, *self._command]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return False
        self._is_mounted = True
        self.path_here = self._root_here / self.path.relative_to("/")
        undo = [*self.command_prefix, "umount", "--lazy", str(self.path)]
        self._undo.callback(subprocess.run, undo, check=True)
        return True

    def _remount(self, size_bytes: int) -> None:
        """Change the size; without effect if more than that is in use by now."""
        options = f"remount,size={max(size_bytes, 1 << 20)}"
        command = [*self.command_prefix, "mount", "-o", options, str(self.path)]
        subprocess.run(command, capture_output=True, check=False)

    def _mount_in_namespace(self) -> bool:
        script = '"$@" && echo mounted && read line'
        holder = subprocess.Popen(
            [
                *("unshare", "--user", "--map-root-user", "--mount"),
                *("sh", "-c", script, "sh", *self._command),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert holder.stdout is not None
        if holder.stdout.readline() != "mounted\n":
            holder.communicate()
            return False
        self._undo.callback(holder.communicate, "\n")  # ends the holder, and the namespace with it
        self._is_mounted = True
        self._root_here = Path(f"/proc/{holder.pid}/root")
        self.path_here = self._root_here / self.path.relative_to("/")
        self.command_prefix = [
            *("nsenter", "--target", str(holder.pid), "--user", "--mount"),
            *("--preserve-credentials", f"--wd={Path.cwd()}"),
        ]
        return True

    def _use_shared_memory(self) -> bool:
        if not os.access(_SHM, os.W_OK) or shutil.disk_usage(_SHM).free > self._size_bytes:
            return False
        folder = tempfile.mkdtemp(dir=_SHM)
        self._undo.callback(shutil.rmtree, folder)
        self.path.rmdir()
        self.path.symlink_to(folder)
        return True
