import errno
import os

import pytest

from magnetar.bookie.disks.disk_errors import is_disk_broken, is_out_of_room
from magnetar.bookie.errors import StorageIOError


def flush_failed_by(cause: Exception) -> BaseException:
    try:
        try:
            raise cause
        except Exception as error:
            raise StorageIOError(f"flush failed: {error}") from error
    except StorageIOError as error:
        return error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENOMEM])
def test_what_may_pass_is_tried_again(number: int) -> None:
    assert not is_disk_broken(OSError(number, "it happens"))
    assert not is_disk_broken(flush_failed_by(OSError(number, "it happens")))


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV])
def test_b18_any_other_error_of_a_disk_is_final(number: int) -> None:
    assert is_disk_broken(OSError(number, "it is broken"))
    assert is_disk_broken(flush_failed_by(OSError(number, "it is broken")))


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM]
)
def test_an_index_tells_what_may_pass_as_text(number: int) -> None:
    error = flush_failed_by(Exception(f"IO error: While appending to file: {os.strerror(number)}"))
    assert not is_disk_broken(error)
    assert is_out_of_room(error) == (number in (errno.ENOSPC, errno.EDQUOT))


def test_b18_an_index_tells_a_broken_disk_as_text() -> None:
    assert is_disk_broken(flush_failed_by(Exception("IO error: Input/output error")))


def test_only_want_of_room_is_want_of_room() -> None:
    assert is_out_of_room(flush_failed_by(OSError(errno.EDQUOT, "quota")))
    assert not is_out_of_room(flush_failed_by(OSError(errno.EMFILE, "files")))
    assert not is_out_of_room(flush_failed_by(OSError(errno.EIO, "broken")))
