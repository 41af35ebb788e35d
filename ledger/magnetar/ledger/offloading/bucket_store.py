"""Objects in a bucket of S3, GCS or Azure, or in memory, by obstore.

Credentials come from the environment, where obstore finds them. This module neither keeps nor shows
them.

The parts of an upload that a crash cut off stay in the bucket, invisible but billed: give it a
lifecycle rule that aborts such uploads after two days.

obstore is an optional dependency: only a process that opens a bucket imports this module.

Source: tiered storage, sections 9, 10 and 12.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from magnetar.ledger.errors import (
    ObjectDamagedError,
    ObjectError,
    ObjectMissingError,
    ObjectStoreConfigError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from magnetar.ledger.offloading.bucket_errors import (
    CREATE_RACE,
    FOREIGN,
    NO_BUCKET,
    NO_OBJECT,
    answer_in,
    credentials_hint,
    is_beyond_end,
    is_whole_object,
    shortened,
    translated,
)
from magnetar.ledger.offloading.multipart import Upload
from magnetar.ledger.offloading.object_store import ObjectTail, StoredObject, is_key
from magnetar.ledger.offloading.settings import ObjectStoreSettings
from magnetar.ledger.offloading.store_url import StoreUrl, parse_store_url

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, RetryConfig, S3Config
    from obstore.store import ObjectStore as Bucket

PARTS_PLANNED_MAX = 9_000
"""Most parts of an object of the expected size; stores take 10,000, and an estimate may be too
low."""
KEYS_PER_DELETE_MAX = 1_000
DELETES_AT_ONCE_MAX = 16

_LISTED_AT_ONCE = 1_000
_CREATE_TRIES = 3
_BACKOFF_FIRST_MS = 100
_BACKOFF_MS_MAX = 15_000


class BucketStore:
    """An `ObjectStore` below a prefix in a bucket."""

    def __init__(self, bucket: "Bucket", url: StoreUrl, settings: ObjectStoreSettings) -> None:
        self._bucket = bucket
        self._url = url
        self._part_bytes = settings.part_bytes
        self._abandon_timeout_s = settings.timeout_s
        self._abandoning: set[asyncio.Task[None]] = set()

    @classmethod
    def open(cls, settings: ObjectStoreSettings) -> "BucketStore":
        """Open the store that the settings name. Makes no request.

        Raises:
            ObjectStoreConfigError: obstore refuses a setting, or a variable of the environment.
        """
        url = parse_store_url(settings.url)
        try:
            return cls(_bucket_of(url, settings), url, settings)
        except (BaseError, ValueError) as error:
            # Not `from error`: its text may show a variable of the environment.
            raise ObjectStoreConfigError(
                f"store {settings.name} ({url}) cannot be opened: {shortened(error)}. "
                f"{credentials_hint(url)}"
            ) from None

    def __repr__(self) -> str:
        return f"BucketStore({self._url})"

    async def put(self, key: str, pieces: AsyncIterator[bytes], *, expected_bytes: int = 0) -> int:
        path = self._path(key)
        part_bytes = max(self._part_bytes, -(-expected_bytes // PARTS_PLANNED_MAX))
        first: list[bytes] = []
        first_bytes = 0
        async for piece in pieces:
            first.append(piece)
            first_bytes += len(piece)
            if first_bytes > part_bytes:
                return await self._put_in_parts(path, first, pieces, part_bytes)
        try:
            # One request, where a multipart upload takes at least three.
            await obstore.put_async(self._bucket, path, b"".join(first), use_multipart=False)
        except FOREIGN as error:
            raise self._error(error, f"put of {key}") from None
        return first_bytes

    async def create(self, key: str, body: bytes) -> bool:
        path = self._path(key)
        for _ in range(_CREATE_TRIES):
            try:
                await obstore.put_async(
                    self._bucket, path, body, mode="create", use_multipart=False
                )
            except AlreadyExistsError as error:
                if answer_in(error).code not in CREATE_RACE:
                    return False
            except FOREIGN as error:
                raise self._error(error, f"create of {key}") from None
            else:
                return True
        raise ObjectStoreUnavailableError(
            f"{self._url}: create of {key} failed: other requests for it were under way at each "
            f"of {_CREATE_TRIES} tries. It may succeed later."
        )

    async def get(self, key: str, start: int, end: int) -> bytes:
        path = self._path(key)
        if start == end:
            await self._size_bytes(key)  # raises if there is no object
            return b""
        try:
            data = await obstore.get_range_async(self._bucket, path, start=start, end=end)
        except FOREIGN as error:
            if is_beyond_end(error):
                raise ObjectDamagedError(
                    f"{self._url}: {key} ends before byte {start}, where {end - start} were wanted"
                ) from None
            raise await self._read_error(error, key) from None
        return self._whole(key, bytes(data), start=start, wanted_bytes=end - start)

    async def tail(self, key: str, size_bytes: int) -> ObjectTail:
        path = self._path(key)
        if self._url.scheme == "az" or size_bytes == 0:
            return await self._tail_by_size(key, size_bytes)  # Azure has no ranges of a suffix
        try:
            found = await obstore.get_async(
                self._bucket, path, options={"range": {"suffix": size_bytes}}
            )
            size = found.meta["size"]
            data = await found.bytes_async()
        except FOREIGN as error:
            if is_beyond_end(error) or is_whole_object(error):
                # An empty object has no suffix; the answer may be either of these.
                return await self._tail_by_size(key, size_bytes)
            raise await self._read_error(error, key) from None
        wanted = min(size, size_bytes)
        return ObjectTail(
            self._whole(key, bytes(data), start=size - wanted, wanted_bytes=wanted), size
        )

    async def list(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        # obstore lists a folder. The rest of the prefix is compared here.
        folder = prefix.rpartition("/")[0]
        last = ""
        pages = obstore.list(self._bucket, folder or None, chunk_size=_LISTED_AT_ONCE)
        while True:
            try:
                page = await anext(pages)
            except StopAsyncIteration:
                return
            except FOREIGN as error:
                raise self._error(error, f"list of {prefix!r}") from None
            last = self._last_of([each["path"] for each in page], last)
            if found := [_listed(each) for each in page if each["path"].startswith(prefix)]:
                yield found
            elif last > prefix:
                return  # Keys come in order: matching ones would have come before.

    async def folders(self, prefix: str) -> Sequence[str]:
        try:
            found = await obstore.list_with_delimiter_async(
                self._bucket, prefix.rstrip("/") or None
            )
        except FOREIGN as error:
            raise self._error(error, f"list of folders in {prefix!r}") from None
        return sorted(each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"])

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [*dict.fromkeys(map(self._path, keys))]
        for at in range(0, len(paths), KEYS_PER_DELETE_MAX):
            some = paths[at : at + KEYS_PER_DELETE_MAX]
            try:
                # obstore checks the result of each key, and raises the first failure.
                await obstore.delete_async(self._bucket, some)
            except FileNotFoundError as error:
                if answer_in(error).code in NO_BUCKET:
                    raise self._error(error, f"delete of {len(some)} objects") from None
                # GCS and Azure: one was missing, and others may not have been deleted.
                await self._delete_singly(some)
            except FOREIGN as error:
                raise self._error(error, f"delete of {len(some)} objects") from None

    async def close(self) -> None:
        """Wait, at most `timeout_s`, until the store has dropped the parts of abandoned uploads."""
        if self._abandoning:
            await asyncio.wait(self._abandoning)

    def _path(self, key: str) -> str:
        if not is_key(key):
            raise ObjectStoreRefusedError(f"{key!r} cannot be the key of an object")
        return key

    def _error(self, error: Exception, doing: str) -> ObjectError:
        return translated(error, self._url, doing)

    async def _read_error(self, error: Exception, key: str) -> ObjectError:
        """Return the error for a failed read; only the store itself can say that an object does not
        exist."""
        code = answer_in(error).code
        if not isinstance(error, FileNotFoundError) or code in NO_BUCKET:
            return self._error(error, f"get of {key}")
        if code not in NO_OBJECT and self._url.scheme != "memory":
            # A 404 without a reason: the answer to a HEAD has none, and something other than the
            # store may have sent it. Only the store can list the bucket.
            try:
                await anext(obstore.list(self._bucket, chunk_size=1))
            except StopAsyncIteration:
                pass
            except FOREIGN as failure:
                return self._error(failure, f"list, after get of {key},")
        return ObjectMissingError(f"{self._url}: there is no object {key}")

    def _whole(self, key: str, data: bytes, *, start: int, wanted_bytes: int) -> bytes:
        if len(data) != wanted_bytes:
            raise ObjectDamagedError(
                f"{self._url}: {len(data)} bytes of {key} from {start} on where {wanted_bytes} "
                "were wanted"
            )
        return data

    async def _size_bytes(self, key: str) -> int:
        try:
            found = await obstore.head_async(self._bucket, self._path(key))
        except FOREIGN as error:
            raise await self._read_error(error, key) from None
        return found["size"]

    async def _tail_by_size(self, key: str, size_bytes: int) -> ObjectTail:
        size = await self._size_bytes(key)
        start = max(0, size - size_bytes)
        data = b"" if start == size else await self.get(key, start, size)
        return ObjectTail(data, size)

    def _last_of(self, paths: Sequence[str], last: str) -> str:
        """Return the last path of a page that follows `last`.

        Raises:
            ObjectStoreRefusedError: they are not in order, as in S3's directory buckets.
        """
        for path in paths:
            if path <= last:
                raise ObjectStoreRefusedError(
                    f"{self._url}: the store lists {path} after {last}, and so not in the order of "
                    "keys. Use an S3 general purpose bucket, GCS or Azure."
                )
            last = path
        return last

    async def _put_in_parts(
        self, key: str, first: Sequence[bytes], rest: AsyncIterator[bytes], part_bytes: int
    ) -> int:
        upload = Upload(self._bucket, key, part_bytes)
        try:
            size = await upload.give_all(first, rest)
            failure = await upload.wait_end()
        except BaseException as error:
            abandoning = asyncio.ensure_future(upload.abandon(self._abandon_timeout_s))
            self._abandoning.add(abandoning)
            abandoning.add_done_callback(self._abandoning.discard)
            if isinstance(error, Exception):  # a cancelled caller does not wait for it
                await asyncio.shield(abandoning)
            raise
        if failure is None:
            return size
        if isinstance(failure, FOREIGN):
            raise self._error(failure, f"put of {key}") from None
        raise failure

    async def _delete_singly(self, paths: Sequence[str]) -> None:
        for at in range(0, len(paths), DELETES_AT_ONCE_MAX):
            some = paths[at : at + DELETES_AT_ONCE_MAX]
            results = await asyncio.gather(
                *(obstore.delete_async(self._bucket, path) for path in some),
                return_exceptions=True,
            )
            for path, result in zip(some, results, strict=True):
                if isinstance(result, FOREIGN):
                    is_missing = isinstance(result, FileNotFoundError)
                    if not is_missing or answer_in(result).code in NO_BUCKET:
                        raise self._error(result, f"delete of {path}") from None
                elif result is not None:
                    raise result


def _listed(each: "ObjectMeta") -> StoredObject:
    written_ms = round(each["last_modified"].timestamp() * 1_000)
    return StoredObject(each["path"], each["size"], written_ms)


def _bucket_of(url: StoreUrl, settings: ObjectStoreSettings) -> "Bucket":
    if url.scheme == "memory":
        return MemoryStore()
    client: ClientConfig = {
        "allow_http": settings.allow_http,
        "connect_timeout": timedelta(seconds=settings.connect_timeout_s),
        "timeout": timedelta(seconds=settings.timeout_s),
    }
    retries: RetryConfig = {
        "max_retries": settings.retries_max,
        "retry_timeout": timedelta(seconds=settings.retry_time_max_s),
        "backoff": {
            "init_backoff": timedelta(milliseconds=_BACKOFF_FIRST_MS),
            "max_backoff": timedelta(milliseconds=_BACKOFF_MS_MAX),
            "base": 2,
        },
    }
    prefix = url.path or None
    if url.scheme == "gs":
        gcs: GCSConfig = {"base_url": settings.endpoint} if settings.endpoint else {}
        return GCSStore(
            url.bucket, prefix=prefix, config=gcs, client_options=client, retry_config=retries
        )
    if url.scheme == "az":
        azure: AzureConfig = {"endpoint": settings.endpoint} if settings.endpoint else {}
        return AzureStore(
            url.bucket, prefix=prefix, config=azure, client_options=client, retry_config=retries
        )
    s3: S3Config = {"virtual_hosted_style_request": not settings.path_style}
    if settings.endpoint:
        s3["endpoint"] = _endpoint_of(url, settings)
    if settings.region:
        s3["region"] = settings.region
    return S3Store(
        url.bucket, prefix=prefix, config=s3, client_options=client, retry_config=retries
    )


def _endpoint_of(url: StoreUrl, settings: ObjectStoreSettings) -> str:
    """Return the endpoint for obstore, which wants the bucket in the host name unless it is in the
    path."""
    if settings.path_style:
        return settings.endpoint
    parts = urlsplit(settings.endpoint)
    return parts._replace(netloc=f"{url.bucket}.{parts.netloc}").geturl()
