"""A query that asks no server, beside a cluster that still writes manifests into the store."""

import asyncio
from pathlib import Path

import pytest

from magnetar.arrow.stored import stored_topics
from magnetar.arrow.stored.errors import DataLossError
from magnetar.arrow.stored.object_options import read_object_options
from magnetar.arrow.stored.options import OptionReader
from magnetar.arrow.stored.source_options import Selection
from magnetar.arrow.stored.stored_topics import StoredTopics
from magnetar.ledger.errors import ObjectMissingError
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase, ObjectState
from magnetar.ledger.offloading.log_manifest import (
    LogManifest,
    manifest_directory,
    manifest_key,
    read_manifest,
)
from magnetar.ledger.offloading.object_store import ObjectStore
from magnetar.sdk.wire.topic_name import TopicName

INSTANCE = "5f0c"
TOPIC = TopicName.parse("flights")


def log_of(topic: TopicName) -> str:
    return f"/managed-ledgers/{topic.storage_name}"


def write(store: Path, ledgers: int, topic: TopicName = TOPIC) -> Path:
    """The manifest of a log that has so many ledgers, all of them in objects."""
    objects = [
        LedgerObject(ObjectState.ONLY, f"{each:032x}", 0, 9, 9, 9) for each in range(ledgers)
    ]
    node = LogMetadata(
        tuple(LogLedger(each, 10, 1_000, 1, found) for each, found in enumerate(objects)),
        object_bases=(ObjectBase("main", f"{INSTANCE}/"),),
    )
    key = manifest_key(
        manifest_directory("", INSTANCE, log_of(topic)),
        through=ledgers - 1,
        version=ledgers,
        written_ms=1,
    )
    path = store / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(LogManifest(INSTANCE, log_of(topic), ledgers, 1, node).to_json())
    return path


def topics_in(store: Path, topic: TopicName = TOPIC) -> StoredTopics:
    options = read_object_options(OptionReader({"objects": store.as_uri()}))
    assert options is not None
    return StoredTopics(options, Selection((topic,)), skips_holes=False, key_file="")


def replace_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch, store: Path, *, times: int
) -> list[str]:
    """Have each of the first reads of a manifest find that a newer one took its place."""
    path, reads = write(store, 1), list[str]()

    async def read(opened: ObjectStore, key: str) -> LogManifest:
        nonlocal path
        reads.append(key)
        if len(reads) <= times:
            newer = await asyncio.to_thread(write, store, len(reads) + 1)
            path.unlink()
            path = newer
        return await read_manifest(opened, key)

    monkeypatch.setattr(stored_topics, "read_manifest", read)
    return reads


def test_a_manifest_that_a_newer_one_replaced_meanwhile_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_while_it_is_read(monkeypatch, tmp_path, times=2)
    topics = topics_in(tmp_path)
    found = topics.read()
    topics.close()
    assert len(found[str(TOPIC)].ledgers) == 3


def test_manifests_that_are_gone_whenever_they_are_read_end_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = replace_while_it_is_read(monkeypatch, tmp_path, times=100)
    topics = topics_in(tmp_path)
    with pytest.raises(DataLossError, match="deleted meanwhile") as raised:
        topics.read()
    topics.close()
    assert isinstance(raised.value.__cause__, ObjectMissingError)
    assert len(reads) == stored_topics.LISTS_MAX


def test_a_partition_without_a_manifest_is_told_of_to_who_reads_the_topic(tmp_path: Path) -> None:
    write(tmp_path, 2, TOPIC.partition(1))
    topics = topics_in(tmp_path)
    found = topics.read()
    topics.close()
    assert found.keys() == {str(TOPIC.partition(0)), str(TOPIC.partition(1))}
    assert "no manifest" in found[str(TOPIC.partition(0))].unread


def test_who_reads_one_partition_is_told_of_no_other(tmp_path: Path) -> None:
    write(tmp_path, 2, TOPIC.partition(1))
    topics = topics_in(tmp_path, TOPIC.partition(1))
    found = topics.read()
    topics.close()
    assert found.keys() == {str(TOPIC.partition(1))}
