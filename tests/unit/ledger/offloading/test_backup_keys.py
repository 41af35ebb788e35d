"""Keys of backups (`backup_keys.py`)."""

import pytest

from magnetar.ledger.offloading.backup_keys import (
    BACKUP_NAME_CHARS_MAX,
    BackupFolder,
    BackupKey,
    backups_prefix,
    end_of,
    files_that_may_name,
    is_backup_name,
    parse_backup_key,
)
from magnetar.ledger.offloading.object_keys import object_base
from magnetar.ledger.offloading.object_store import is_key

SHORT = "/managed-ledgers/public/default/persistent/flights"
LONG = "/managed-ledgers/public/default/persistent/" + "%C3%A9" * 200
FOLDER = BackupFolder(backups_prefix("p/", "5f0c"), "daily")


@pytest.mark.parametrize("log", [SHORT, LONG])
def test_the_key_of_an_object_says_which_file_would_name_it(log: str) -> None:
    key = object_base("main", "p/", "5f0c", log).key(7, "ab" * 16)
    assert files_that_may_name([key]) == {end_of(FOLDER.log_key(log))}
    assert is_key(FOLDER.log_key(log))


def test_keys_that_are_no_ledgers_name_no_file() -> None:
    assert files_that_may_name(["p/5f0c/owner.json"]) == set()


def test_the_files_of_a_backup_are_told_apart() -> None:
    assert FOLDER.cluster_key == "p/5f0c/backups/daily/cluster.json"
    assert parse_backup_key(FOLDER.cluster_key) == BackupKey("daily", is_cluster=True)
    assert parse_backup_key(FOLDER.log_key(SHORT)) == BackupKey("daily", is_cluster=False)
    assert parse_backup_key("p/5f0c/backups/daily/other.txt") is None
    assert end_of("p/5f0c/manifests/a/b/1.json") == ""


def test_names_of_backups_fit_a_key_and_a_command_line() -> None:
    assert is_backup_name("20260101T000000Z")
    assert is_backup_name("a" * BACKUP_NAME_CHARS_MAX)
    for name in ("", "-a", ".", "..", "a/b", "a b", "a" * (BACKUP_NAME_CHARS_MAX + 1)):
        assert not is_backup_name(name)
