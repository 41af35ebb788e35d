"""Encrypted objects in tasks: read with the key file, or told in words, or read by a broker."""

import asyncio
import pickle
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.arrow.stored import slice_reader
from magnetar.arrow.stored.errors import UnreachableError
from magnetar.arrow.stored.object_reads import ObjectLedgerReads
from magnetar.arrow.stored.slice_reader import FallbackReads
from magnetar.arrow.stored.slices import LedgerPart, ObjectPart, ReadSettings, Slice
from magnetar.ledger.offloading.directory_store import DirectoryStore
from magnetar.ledger.offloading.settings import ObjectStoreSettings
from tests.unit.arrow.stored.test_fallback_reads import NEVER, Scripted, everything, taken
from tests.unit.ledger.offloading.recorded_objects import (
    ENCRYPTED,
    KEY_ID,
    RECORDED_NAME,
    SECRET,
    VALUES,
)

KEY = f"i/ledgers/00/l/{RECORDED_NAME.ledger_id:020}-{RECORDED_NAME.attempt.hex()}.mgo"
WRONG = bytes(32)


@pytest.fixture
def part(tmp_path: Path) -> LedgerPart:
    """Of a ledger that lies in an encrypted object only."""

    async def put() -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield ENCRYPTED

        await DirectoryStore(tmp_path / "store").put(KEY, pieces())

    asyncio.run(put())
    store = ObjectStoreSettings(name="main", url=(tmp_path / "store").as_uri())
    place = ObjectPart(store.model_dump_json(), KEY)
    return LedgerPart(RECORDED_NAME.ledger_id, 0, len(VALUES) - 1, (), 0, object=place)


def key_file(path: Path, secret: bytes = SECRET, mode: int = 0o600) -> str:
    path.write_text(f"{KEY_ID} {secret.hex()}\n")
    path.chmod(mode)
    return str(path)


def read(part: LedgerPart, path: str) -> list[bytes]:
    reads = ObjectLedgerReads(request_bytes=1 << 20, key_file=path)
    try:
        return [each for _, run in reads.entries(part) for each in run]
    finally:
        reads.close()


def test_a_task_with_the_key_file_reads_an_encrypted_object(
    tmp_path: Path, part: LedgerPart
) -> None:
    assert read(part, key_file(tmp_path / "keys")) == VALUES


def test_a_task_without_a_key_file_is_told_which_option_names_it(part: LedgerPart) -> None:
    with pytest.raises(UnreachableError, match=f"the key '{KEY_ID}'.* objectKeyFile names"):
        read(part, "")


@pytest.mark.parametrize(
    ("secret", "mode", "reason"),
    [(WRONG, 0o600, "does not open it"), (SECRET, 0o644, "chmod 600"), (b"", 0o600, "line 1")],
)
def test_a_key_file_that_does_not_help_is_told_without_a_key(
    tmp_path: Path, part: LedgerPart, secret: bytes, mode: int, reason: str
) -> None:
    path = key_file(tmp_path / "keys", secret, mode)
    with pytest.raises(UnreachableError, match=reason) as caught:
        read(part, path)
    assert SECRET.hex() not in str(caught.value)
    assert "objectKeyFile" in str(caught.value)


def test_a_missing_key_file_is_told(tmp_path: Path, part: LedgerPart) -> None:
    with pytest.raises(UnreachableError, match="objectKeyFile: cannot read"):
        read(part, str(tmp_path / "none"))


def test_what_a_task_has_no_key_for_a_broker_reads(
    monkeypatch: pytest.MonkeyPatch, part: LedgerPart
) -> None:
    brokers = Scripted(NEVER, UnreachableError("never"))
    monkeypatch.setattr(slice_reader, "BrokerReads", lambda *_: brokers)
    settings = ReadSettings(service_url="pulsar://broker")
    reads = FallbackReads(Slice("persistent://a/b/c", -1, (part,), settings=settings))
    assert taken(reads, [part, part]) == everything(part) * 2
    reads.close()


def test_if_no_broker_answers_either_both_reasons_are_told(
    monkeypatch: pytest.MonkeyPatch, part: LedgerPart
) -> None:
    brokers = Scripted(0, UnreachableError("the broker refused"))
    monkeypatch.setattr(slice_reader, "BrokerReads", lambda *_: brokers)
    settings = ReadSettings(service_url="pulsar://broker")
    reads = FallbackReads(Slice("persistent://a/b/c", -1, (part,), settings=settings))
    with pytest.raises(UnreachableError, match=f"'{KEY_ID}'.*nor through brokers: the broker re"):
        taken(reads, [part])
    reads.close()


def test_a_plan_holds_the_path_of_the_keys_and_none_of_them(
    tmp_path: Path, part: LedgerPart
) -> None:
    settings = ReadSettings(object_key_file=key_file(tmp_path / "keys"))
    plan = pickle.dumps(Slice("persistent://a/b/c", -1, (part,), settings=settings))
    assert str(tmp_path / "keys").encode() in plan
    assert SECRET not in plan
    assert SECRET.hex().encode() not in plan
