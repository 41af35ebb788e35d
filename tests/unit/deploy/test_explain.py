import errno
from pathlib import Path

import pytest

from magnetar.bookie.errors import (
    CookieError,
    DirectoryLockedError,
    DiskLostError,
    JournalCorruptError,
    JournalFileMissingError,
    OpenToAllError,
    PortTakenError,
    StorageCorruptError,
    StorageIOError,
)
from magnetar.broker.base.errors import ListenError
from magnetar.deploy.errors import DeployError
from magnetar.deploy.explain import explain, explained
from magnetar.ledger.errors import (
    ClocksApartError,
    InvalidLedgerMetadataError,
    InvalidPathError,
    LedgerLayoutError,
    MetadataUnavailableError,
    NoNodeError,
    NoSuchLedgerError,
)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (PortTakenError("port 3181 is taken"), 3),
        (ListenError("port 6650 is taken"), 3),
        (OSError(errno.EADDRINUSE, "in use"), 3),
        (DirectoryLockedError("locked"), 4),
        (CookieError("another cluster's"), 5),
        (MetadataUnavailableError("no answer"), 6),
        (JournalCorruptError("damaged"), 7),
        (DiskLostError("/data/ledgers cannot be used any more"), 7),
        (PermissionError(errno.EACCES, "Permission denied", "/data/lock"), 7),
        (InvalidPathError("no URL"), 2),
        (OpenToAllError("refusing to listen on 0.0.0.0"), 2),
        (NoSuchLedgerError("ledger 7 has no metadata"), 2),
        (LedgerLayoutError("another manager's"), 2),
        (ClocksApartError("a day apart"), 2),
        (NoNodeError("/ledgers"), 2),
        (InvalidLedgerMetadataError("no JSON"), 10),
    ],
)
def test_each_cause_has_its_exit_status(error: Exception, status: int) -> None:
    explanation = explain(error, data=Path("/data"), metadata_url="zk://host/")
    assert explanation is not None
    assert explanation.exit_status == status
    assert "\n" not in str(explanation)


@pytest.mark.parametrize(
    ("url", "question"),
    [("zk://host/", "is it running?"), ("embedded:/data/metadata.db", "is its disk full")],
)
def test_a_metadata_store_that_cannot_be_used_comes_with_what_to_look_at(
    url: str, question: str
) -> None:
    error = MetadataUnavailableError("/data/metadata.db: disk I/O error")
    assert question in str(explain(error, metadata_url=url))


def test_an_unexpected_error_keeps_its_traceback() -> None:
    assert explain(KeyError("bug"), data=Path("/data")) is None
    with pytest.raises(KeyError), explained():
        raise KeyError("bug")


def test_an_error_with_several_lines_becomes_one() -> None:
    with pytest.raises(DeployError, match="first second"), explained():
        raise CookieError("first\n  second")


def test_a_group_of_errors_is_told_by_its_first_cause() -> None:
    with pytest.raises(DeployError, match="taken"), explained():
        raise ExceptionGroup("starting", [PortTakenError("taken")])


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (JournalCorruptError("the record at 64 is damaged"), "move the journal directory away"),
        (JournalFileMissingError("a file is missing"), "integrity_stamp_missing_cookies=true"),
        (StorageCorruptError("the index has lost records"), "bookie-tool rebuild-index"),
        (StorageIOError("index /i: MANIFEST-1: No such file"), "bookie-tool rebuild-index"),
    ],
)
def test_damage_comes_with_what_to_do(error: Exception, advice: str) -> None:
    explanation = explain(error, data=Path("/data"))
    assert explanation is not None
    assert str(error) in str(explanation)
    assert advice in str(explanation)
