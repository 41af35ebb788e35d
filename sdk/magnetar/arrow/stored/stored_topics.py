"""Topics as described by their manifests in an object store: for queries that use no server.

The driver lists manifests, takes the newest of each log, and reads it once. It reads objects only
to find a publish time. Executors get the same slices as with brokers, but with objects alone.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote_plus

import re2

from magnetar.arrow.stored.admin_client import Json
from magnetar.arrow.stored.errors import (
    CorruptDataError,
    DataLossError,
    OptionError,
    TopicNotFoundError,
    UnreachableError,
)
from magnetar.arrow.stored.manifest_states import schema_answer, state_of_manifest
from magnetar.arrow.stored.object_options import ObjectOptions
from magnetar.arrow.stored.source_options import Selection
from magnetar.arrow.stored.topic_states import LedgerState, TopicState
from magnetar.ledger.errors import (
    LedgerError,
    ObjectDamagedError,
    ObjectMissingError,
    ObjectStoreConfigError,
)
from magnetar.ledger.offloading.log_manifest import (
    LogManifest,
    manifests_folder,
    newest_manifests,
    read_manifest,
)
from magnetar.ledger.offloading.object_encryption import NO_KEYS
from magnetar.ledger.offloading.object_format import ObjectName
from magnetar.ledger.offloading.object_key_file import read_object_keys
from magnetar.ledger.offloading.object_keys import name_of_key, parse_key
from magnetar.ledger.offloading.object_reader import ObjectReader, ObjectReads
from magnetar.ledger.offloading.object_store import FolderStore
from magnetar.ledger.offloading.settings import ObjectStoreSettings
from magnetar.ledger.offloading.stores import open_object_store
from magnetar.ledger.settings import ObjectReadSettings
from magnetar.ledger.system import SystemClock
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.errors import MalformedPayloadError, TopicNameError
from magnetar.sdk.wire.frames import split_payload
from magnetar.sdk.wire.topic_name import TopicName

T = TypeVar("T")

_ROOT = "/managed-ledgers"
_READS_AT_ONCE = 16
_READ_BYTES = 1 << 20
LISTS_MAX = 5
"""Most attempts to list a folder of manifests when each manifest found is gone at its read."""
_INSTANCES_MAX = 100
"""Most folders of a store that are searched for manifests: the store may hold other folders."""


class StoredTopics:
    """The topics of one query. For one thread, in which no event loop runs.

    Methods raise, beside what is named:
        OptionError: the store cannot be opened, or has no manifests, or those of several clusters.
        UnreachableError: the store does not answer, or refuses this process.
        CorruptDataError: a manifest is not what was written.
    """

    def __init__(
        self, options: ObjectOptions, selection: Selection, *, skips_holes: bool, key_file: str
    ) -> None:
        """
        Args:
            skips_holes: whether to skip ledgers that are in no object.
            key_file: local path of the keys of encrypted objects; empty if there are none.
        """
        self._options = options
        self._selection = selection
        self._expression = re2.compile(selection.pattern) if selection.pattern else None
        self._skips_holes = skips_holes
        self._key_file = key_file
        self._loop = asyncio.new_event_loop()
        self._at_once = asyncio.Semaphore(_READS_AT_ONCE)
        self._open: dict[str, FolderStore] = {}
        self._reads: ObjectReads | None = None
        self._manifests: dict[TopicName, LogManifest] | None = None

    def close(self) -> None:
        """Close what was opened. Closing twice is fine."""
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._close())
            self._loop.close()

    async def _close(self) -> None:
        if self._reads is not None:
            await self._reads.close()
        for store in self._open.values():
            await store.close()

    # For the driver

    def read(self, *, missing_ok: bool = False, hold_s: int = 0) -> dict[str, TopicState]:
        """Return all topics and partitions of the query, by name, by their manifests at the first
        call.

        Args:
            hold_s: ignored: there is no server to hold the topics.

        Raises:
            TopicNotFoundError: a named topic has no manifest (unless `missing_ok`), or none
                matches the pattern.
            DataLossError: a ledger in no object is before one that is in an object.
        """
        manifests = self._read_manifests()
        self._check_found(manifests, missing_ok)
        states = {
            str(topic): state_of_manifest(
                topic, manifest, self._options.find, skips_holes=self._skips_holes
            )
            for topic, manifest in manifests.items()
        }
        for topic in filter(self._selects, _missing_partitions(manifests)):
            unread = "it has no manifest: none of its ledgers was moved, or it does not exist"
            states[str(topic)] = TopicState(str(topic), topic.partition_index, unread=unread)
        return states

    def selects(self, name: str) -> bool:
        """Return whether the query reads this topic, or the topic of this partition."""
        return self._selects(TopicName.parse(name))

    def schemas(
        self, topics: Iterable[TopicName], *, every: bool
    ) -> dict[TopicName, Sequence[Json]]:
        """Return the newest schema of each topic, or all its versions.

        Partitions have the schemas of their topic, from the newest manifest of one of them.
        """
        found: dict[TopicName, LogManifest] = {}
        for topic, manifest in self._read_manifests().items():
            known = found.get(topic.partitioned)
            if known is None or manifest.written_ms > known.written_ms:
                found[topic.partitioned] = manifest
        return {
            topic: [
                schema_answer(each)
                for each in (found[topic].schemas if topic in found else ())[0 if every else -1 :]
            ]
            for topic in topics
        }

    def first_since(self, states: Mapping[str, TopicState], time_ms: int) -> dict[str, MessageId]:
        """Return the offset before each topic's first message that was published at this time or
        later.

        Publish times are assumed to ascend, as for a seek of a consumer.

        Raises:
            DataLossError: an object is gone.
        """
        return self._run(self._first_since(states, time_ms))

    # Manifests

    def _read_manifests(self) -> dict[TopicName, LogManifest]:
        if self._manifests is None:
            self._manifests = self._run(self._find_manifests())
        return self._manifests

    async def _find_manifests(self) -> dict[TopicName, LogManifest]:
        stores = {name: self._store(text) for name, text in self._options.stores.items()}
        instance_id = self._options.instance or await self._instance_of(stores)
        found: dict[TopicName, LogManifest] = {}
        for namespace in self._namespaces():
            folder = manifests_folder(
                self._options.prefix, instance_id, f"{_ROOT}/{namespace}/persistent"
            )
            for store in stores.values():
                folders = await store.folders(folder)
                wanted = [each for each in folders if self._may_be_wanted(namespace, each)]
                read = (self._newest(store, f"{folder}{each}/") for each in wanted)
                for manifest in await asyncio.gather(*read):
                    self._add(found, manifest)
        return found

    def _add(self, found: dict[TopicName, LogManifest], manifest: LogManifest | None) -> None:
        topic = _topic_of(manifest.log) if manifest is not None else None
        if topic is None or manifest is None or not self._selects(topic):
            return
        known = found.get(topic)
        if known is None or known.written_ms < manifest.written_ms:  # of several stores
            found[topic] = manifest

    async def _instance_of(self, stores: Mapping[str, FolderStore]) -> str:
        prefix, found = self._options.prefix, set[str]()
        for store in stores.values():
            for name in (await store.folders(prefix))[:_INSTANCES_MAX]:
                if "manifests" in await store.folders(f"{prefix}{name}/"):
                    found.add(name)
        if not found:
            raise OptionError(
                "objects",
                f"there are no manifests in {self._options.shown}, below {prefix!r}: give the "
                "brokers' object_prefix as objectsPrefix, or see that a topic was moved",
            )
        if len(found) > 1:
            raise OptionError(
                "objectsInstance",
                f"it is required: {self._options.shown} has objects of several clusters: "
                f"{', '.join(sorted(found))}",
            )
        return found.pop()

    async def _newest(self, store: FolderStore, directory: str) -> LogManifest | None:
        async with self._at_once:
            for left in reversed(range(LISTS_MAX)):
                keys = [each.key async for page in store.list(directory) for each in page]
                newest = newest_manifests(keys).get(directory)
                if newest is None:
                    return None
                try:
                    return await read_manifest(store, newest)
                except ObjectMissingError:
                    # A running cluster has written a newer one, and removed this one.
                    if not left:
                        raise
        return None

    # Names

    def _namespaces(self) -> list[str]:
        if self._expression is not None:
            return [self._selection.namespace]
        return list(dict.fromkeys(each.namespace_name for each in self._selection.topics))

    def _may_be_wanted(self, namespace: str, folder: str) -> bool:
        """Return whether a folder may be of a log of the query; a truncated name always may."""
        name = name_of_key(folder)
        if name is None:
            return True
        topic = _topic_of(f"{_ROOT}/{namespace}/persistent/{name}")
        return topic is not None and self._selects(topic)

    def _selects(self, topic: TopicName) -> bool:
        if self._expression is None:
            return bool({topic, topic.partitioned}.intersection(self._selection.topics))
        name = topic.partitioned
        return (
            name.namespace_name == self._selection.namespace
            and not name.local_name.startswith("__")
            and bool(self._expression.fullmatch(name.local_name))
        )

    def _check_found(self, manifests: Mapping[TopicName, LogManifest], missing_ok: bool) -> None:
        if missing_ok:
            return
        if self._expression is not None and not manifests:
            raise TopicNotFoundError(
                f"option topicsPattern: no topic of {self._selection.namespace} that has a "
                f"manifest in {self._options.shown} matches {self._selection.pattern!r}"
            )
        known = {*manifests, *(topic.partitioned for topic in manifests)}
        for topic in self._selection.topics:
            if topic not in known:
                raise TopicNotFoundError(
                    f"topic {topic} has no manifest in {self._options.shown}: none of its ledgers "
                    "was moved there, or it does not exist"
                )

    # Times

    async def _first_since(
        self, states: Mapping[str, TopicState], time_ms: int
    ) -> dict[str, MessageId]:
        names = list(states)
        found = await asyncio.gather(
            *(self._before_first_since(states[name], time_ms) for name in names)
        )
        return dict(zip(names, found, strict=True))

    async def _before_first_since(self, state: TopicState, time_ms: int) -> MessageId:
        """Return the offset before the first entry of a topic that is not older than a time."""
        async with self._at_once:
            low, high = 0, len(state.ledgers)
            while low < high:
                middle = (low + high) // 2
                if await self._is_older(state, state.ledgers[middle], time_ms):
                    low = middle + 1
                else:
                    high = middle
            for ledger in state.ledgers[low:]:
                entry_id = await self._first_in(state, ledger, time_ms)
                if entry_id is not None:
                    return MessageId(ledger.ledger_id, entry_id - 1)
            return state.end

    async def _is_older(self, state: TopicState, ledger: LedgerState, time_ms: int) -> bool:
        """Return whether all messages of a ledger were published before a time."""
        reader = await self._reader(state, ledger)
        try:
            return not reader.entries_after(time_ms)
        finally:
            await reader.close()

    async def _first_in(self, state: TopicState, ledger: LedgerState, time_ms: int) -> int | None:
        """Return the first entry of a ledger that is not older than a time, or has no time; else
        None."""
        reader = await self._reader(state, ledger)
        try:
            at, last = reader.entries_after(time_ms).start, ledger.entries - 1
            while at <= last:
                payloads = await reader.read(at, last, bytes_max=_READ_BYTES)
                for entry_id, payload in enumerate(payloads, at):
                    if not _is_published_before(payload, time_ms):
                        return entry_id
                at += len(payloads)
            return None
        finally:
            await reader.close()

    async def _reader(self, state: TopicState, ledger: LedgerState) -> ObjectReader:
        assert ledger.object is not None
        store, key = ledger.object
        parsed = parse_key(key)
        if parsed is None or parsed.ledger_id != ledger.ledger_id:
            raise ObjectDamagedError(f"{key} is no object of ledger {ledger.ledger_id}")
        if self._reads is None:
            keys = replace(NO_KEYS, source="objectKeyFile")
            if self._key_file:
                keys = read_object_keys(Path(self._key_file), source="objectKeyFile")
            self._reads = ObjectReads(ObjectReadSettings(), SystemClock(), keys=keys)
        name = ObjectName(parsed.ledger_id, bytes.fromhex(parsed.attempt))
        return await self._reads.open(self._store(state.stores[store]), key, name)

    # Stores

    def _store(self, settings: str) -> FolderStore:
        found = self._open.get(settings)
        if found is None:
            found = open_object_store(ObjectStoreSettings.model_validate_json(settings))
            self._open[settings] = found
        return found

    def _run(self, work: Coroutine[object, object, T]) -> T:
        try:
            return self._loop.run_until_complete(work)
        except ObjectStoreConfigError as error:
            raise OptionError("objects", str(error)) from None
        except ObjectMissingError as error:
            raise DataLossError(f"objects: {error}: it was deleted meanwhile") from error
        except ObjectDamagedError as error:
            raise CorruptDataError(f"objects: {error}") from error
        except LedgerError as error:
            raise UnreachableError(f"objects: {error}") from error


def _topic_of(log: str) -> TopicName | None:
    """Return the topic whose log has this path; None if the path is of no topic."""
    parts = log.split("/")
    if len(parts) != 6 or not log.startswith(f"{_ROOT}/") or parts[4] != "persistent":
        return None
    try:
        return TopicName.parse(f"persistent://{parts[2]}/{parts[3]}/{unquote_plus(parts[5])}")
    except TopicNameError:
        return None


def _missing_partitions(topics: Iterable[TopicName]) -> list[TopicName]:
    """Return partitions that must exist, because one with a higher number does."""
    counts: dict[TopicName, int] = {}
    known = set(topics)
    for topic in known:
        if topic.partition_index >= 0:
            counts[topic.partitioned] = max(
                counts.get(topic.partitioned, 0), topic.partition_index + 1
            )
    every = [topic.partition(index) for topic, count in counts.items() for index in range(count)]
    return [each for each in every if each not in known]


def _is_published_before(payload: bytes, time_ms: int) -> bool:
    try:
        metadata, _ = split_payload(payload)
    except MalformedPayloadError:
        return False  # the reader of the entry reports the error
    return bool(metadata.publish_time < time_ms)
