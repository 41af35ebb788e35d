"""Classification of failures: those that mean that a ledger directory's disk is broken. Pure.

A full disk, or a process at a limit, may recover in a moment: the failed operation is retried. Any
other error of a write or a sync is final, since the kernel may have dropped data that it could not
write (rule 3.6, defect B18): the bookie ends, and its next start finds out what is stored.

Source: storage sheet, section 11.
"""

import errno

_MAY_PASS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EINTR,
}

_TEXTS = {
    "No space left": errno.ENOSPC,
    "quota exceeded": errno.EDQUOT,
    "Too many open files": errno.EMFILE,
    "Cannot allocate memory": errno.ENOMEM,
}
"""Texts in RocksDB's errors, which have no number."""


def is_disk_broken(error: BaseException) -> bool:
    """Return whether this failure of a write to a ledger directory is final."""
    return _errno_of(error) not in _MAY_PASS


def is_out_of_room(error: BaseException) -> bool:
    """Return whether a write failed because bytes, inodes or a quota are used up."""
    return _errno_of(error) in (errno.ENOSPC, errno.EDQUOT)


def _errno_of(error: BaseException) -> int | None:
    """Return the error number of the system, if it is known."""
    cause: BaseException | None = error
    text = ""
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return cause.errno
        text += str(cause)
        cause = cause.__cause__ or cause.__context__
    return next((number for known, number in _TEXTS.items() if known in text), None)
