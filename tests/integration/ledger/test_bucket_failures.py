"""A store in a bucket whose server refuses, fails, is slow, or does not tell the truth."""

import asyncio
import ssl
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from magnetar.ledger.errors import (
    ObjectDamagedError,
    ObjectError,
    ObjectMissingError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from magnetar.ledger.offloading.multipart import PARTS_IN_FLIGHT_MAX
from magnetar.ledger.offloading.object_store import ObjectStore, ObjectTail
from magnetar.ledger.offloading.settings import ObjectStoreSettings
from magnetar.ledger.offloading.stores import check_store, open_object_store
from tests.certificates import Authority
from tests.processes import HOST, free_ports
from tests.s3_server import Request, answer, answering, refusal
from tests.waiting import settle, until

MIB = 1 << 20
PART_BYTES = 5 * MIB
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG",
    "AWS_SESSION_TOKEN": "FwoGZXIvYXdzEBYaDK",
}
NOTHING_LISTED = answer(200, b"<ListBucketResult></ListBucketResult>")
Use = Callable[[ObjectStore], Awaitable[object]]


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def opened(endpoint: str, **changes: float | str) -> ObjectStore:
    settings = {
        "name": "cold",
        "url": "s3://ledgers/prefix",
        "endpoint": endpoint,
        "allow_http": True,
        "part_bytes": PART_BYTES,
        "retries_max": 0,
        **changes,
    }
    return open_object_store(ObjectStoreSettings.model_validate(settings))


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for each in data:
        yield each


async def list_all(store: ObjectStore) -> list[str]:
    return [each.key async for some in store.list("") for each in some]


USES: dict[str, Use] = {
    "put": lambda store: store.put("a", pieces(b"x")),
    "put in parts": lambda store: store.put("a", pieces(bytes(6 * MIB))),
    "create": lambda store: store.create("a", b"x"),
    "get": lambda store: store.get("a", 0, 1),
    "get nothing": lambda store: store.get("a", 0, 0),
    "tail": lambda store: store.tail("a", 1),
    "list": list_all,
    "delete": lambda store: store.delete(["a"]),
}
READS = {name: use for name, use in USES.items() if name.startswith(("get", "tail"))}


def by(*answers: bytes) -> Callable[[Request], Awaitable[bytes]]:
    """Give these answers one after the other, and then the last one."""
    left = list(answers)

    async def reply(_: Request) -> bytes:
        return left.pop(0) if len(left) > 1 else left[0]

    return reply


async def failure_of(use: Use, reply: Callable[[Request], Awaitable[bytes]]) -> ObjectError:
    """The error of a use of a store that answers so."""
    async with answering(reply) as endpoint:
        store = opened(endpoint)
        with pytest.raises(ObjectError) as caught:
            await use(store)
        await store.close()
    return caught.value


@pytest.mark.parametrize("use", USES.values(), ids=USES)
async def test_refused_credentials_are_told_by_where_they_come_from_and_not_shown(
    use: Use,
) -> None:
    repeated = f"<CanonicalRequest>x-amz-security-token:{SECRETS['AWS_SESSION_TOKEN']}"
    error = await failure_of(
        use,
        by(
            refusal(
                403,
                "SignatureDoesNotMatch",
                f"The key {SECRETS['AWS_SECRET_ACCESS_KEY']} is wrong.",
                f"{repeated}</CanonicalRequest>",
            )
        ),
    )
    assert type(error) is ObjectStoreRefusedError
    assert not error.retryable
    assert "s3://ledgers/prefix" in str(error)
    assert "AWS_ACCESS_KEY_ID" in str(error)
    assert "AWS_WEB_IDENTITY_TOKEN_FILE" in str(error)
    shown = "".join([str(error), repr(error), *traceback.format_exception(error)])
    assert [name for name, value in SECRETS.items() if value in shown] == []


@pytest.mark.parametrize(
    ("status", "kind"), [(404, ObjectStoreRefusedError), (503, ObjectStoreUnavailableError)]
)
@pytest.mark.parametrize("use", USES.values(), ids=USES)
async def test_credentials_that_are_nowhere_are_told(
    use: Use, status: int, kind: type[ObjectError], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", *SECRETS):
        monkeypatch.delenv(name)
    async with answering(by(answer(status))) as instance:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", instance)
        error = await failure_of(use, by(answer(200)))
    assert type(error) is kind
    assert "there are no credentials" in str(error)
    assert "AWS_ACCESS_KEY_ID" in str(error)


async def test_a_store_shows_no_secret() -> None:
    store = opened("http://127.0.0.1:1")
    assert repr(store) == "BucketStore(s3://ledgers/prefix)"
    assert [name for name, value in SECRETS.items() if value in repr(vars(store))] == []


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize(
    "reply", [refusal(503, "SlowDown"), answer(500), answer(429)], ids=["503", "500", "429"]
)
async def test_a_store_with_an_error_of_its_own_is_unavailable(use: Use, reply: bytes) -> None:
    error = await failure_of(use, by(reply))
    assert type(error) is ObjectStoreUnavailableError
    assert error.retryable


@pytest.mark.parametrize("use", USES.values(), ids=USES)
async def test_a_request_that_can_never_succeed_is_refused(use: Use) -> None:
    error = await failure_of(
        use, by(refusal(400, "AuthorizationHeaderMalformed", "expecting region eu-west-1"))
    )
    assert type(error) is ObjectStoreRefusedError
    if use is not USES["get nothing"]:  # The answer to its HEAD has no body.
        assert "expecting region eu-west-1" in str(error)


async def test_a_bucket_in_another_region_is_told_so() -> None:
    error = await failure_of(USES["get"], by(answer(301)))
    assert type(error) is ObjectStoreRefusedError
    assert "region" in str(error)


async def test_an_endpoint_without_encryption_is_refused_if_only_the_environment_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with answering(by(answer(200))) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(ObjectStoreRefusedError, match="allow_http"):
            await opened("", allow_http=False).get("a", 0, 1)


async def test_a_server_whose_certificate_nobody_trusts_is_refused(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority(tmp_path).issue("store"))
    async with answering(by(answer(200)), context) as endpoint:
        with pytest.raises(ObjectStoreRefusedError, match="certificate"):
            await opened(endpoint).get("a", 0, 1)


async def test_a_store_without_ranges_is_refused() -> None:
    error = await failure_of(lambda store: store.get("a", 0, 2), by(answer(200, b"abcd")))
    assert type(error) is ObjectStoreRefusedError
    assert "ranges" in str(error)


async def test_the_end_of_an_azure_object_is_found_by_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Azure has no ranges that count from the end."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")

    async def reply(request: Request) -> bytes:
        assert request.target == "/ledgers/prefix/a"
        if request.method == "HEAD":
            return answer(200, length=10)
        assert request.headers["range"] == "bytes=6-9"
        return answer(206, b"6789", Content_Range="bytes 6-9/10")

    async with answering(reply) as endpoint:
        store = opened(endpoint, url="az://ledgers/prefix")
        assert await store.tail("a", 4) == ObjectTail(b"6789", 10)


@pytest.mark.parametrize(
    ("url", "missing_object", "missing_bucket", "looked_for"),
    [
        ("s3://ledgers", "NoSuchKey", "NoSuchBucket", "AWS_ACCESS_KEY_ID"),
        ("gs://ledgers", "NoSuchKey", "NoSuchBucket", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://ledgers", "BlobNotFound", "ContainerNotFound", "AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
async def test_each_provider_has_its_words_for_what_is_missing_and_refused(
    url: str,
    missing_object: str,
    missing_bucket: str,
    looked_for: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "c2VjcmV0")
    says = (
        refusal(404, missing_object),
        refusal(404, missing_bucket),
        refusal(403, "AccessDenied"),
    )
    async with answering(by(*says)) as endpoint:
        store = opened(endpoint, url=url)
        with pytest.raises(ObjectMissingError):
            await store.get("a", 0, 1)
        with pytest.raises(ObjectStoreRefusedError, match="there is no bucket ledgers"):
            await store.get("a", 0, 1)
        with pytest.raises(ObjectStoreRefusedError, match=looked_for):
            await store.get("a", 0, 1)


async def test_a_failed_request_is_sent_again_as_often_as_is_set() -> None:
    asked: list[str] = []

    async def reply(request: Request) -> bytes:
        asked.append(request.target)
        return answer(206, b"x", Content_Range="bytes 0-0/1") if len(asked) == 3 else answer(503)

    async with answering(reply) as endpoint:
        store = opened(endpoint, retries_max=2)
        assert await store.get("a", 0, 1) == b"x"
        assert asked == ["/ledgers/prefix/a"] * 3
        with pytest.raises(ObjectStoreUnavailableError):
            await store.get("a", 0, 1)
        assert len(asked) == 3 + 3


@pytest.mark.parametrize("use", USES.values(), ids=USES)
async def test_a_store_that_does_not_answer_is_unavailable_after_the_time_out(use: Use) -> None:
    async def never(_: Request) -> bytes:
        await asyncio.Event().wait()
        return b""

    async with answering(never) as endpoint:
        store = opened(
            endpoint, timeout_s=0.3, connect_timeout_s=0.3, retries_max=1, retry_time_max_s=0.5
        )
        started_s = time.monotonic()
        with pytest.raises(ObjectStoreUnavailableError):
            await use(store)
        await store.close()
        assert time.monotonic() - started_s < 10


@pytest.mark.parametrize("use", USES.values(), ids=USES)
async def test_a_store_that_nobody_runs_is_unavailable(use: Use) -> None:
    (nobodys,) = free_ports(1)
    with pytest.raises(ObjectStoreUnavailableError):
        await use(opened(f"http://{HOST}:{nobodys}"))


@pytest.mark.parametrize("use", READS.values(), ids=READS)
async def test_a_404_that_gives_no_reason_is_no_word_of_the_store(use: Use) -> None:
    """A proxy answers so, or a server at the wrong endpoint."""
    error = await failure_of(use, by(answer(404, b"<html>not here</html>")))
    assert type(error) is ObjectStoreRefusedError


@pytest.mark.parametrize("use", READS.values(), ids=READS)
async def test_a_404_without_a_reason_is_unclear_while_the_bucket_cannot_be_listed(
    use: Use,
) -> None:
    async def reply(request: Request) -> bytes:
        return answer(503) if "list-type" in request.target else answer(404)

    assert type(await failure_of(use, reply)) is ObjectStoreUnavailableError


@pytest.mark.parametrize("use", READS.values(), ids=READS)
async def test_a_404_without_a_reason_counts_if_the_bucket_can_be_listed(use: Use) -> None:
    async def reply(request: Request) -> bytes:
        return NOTHING_LISTED if "list-type" in request.target else answer(404)

    assert type(await failure_of(use, reply)) is ObjectMissingError


async def test_an_upload_that_is_gone_is_no_missing_object() -> None:
    """As when a lifecycle rule took it, or when a first completion got through unheard."""

    async def reply(request: Request) -> bytes:
        if request.target.endswith("?uploads="):
            return answer(200, b"<I><UploadId>1</UploadId></I>")
        return refusal(404, "NoSuchUpload")

    error = await failure_of(USES["put in parts"], reply)
    assert type(error) is ObjectStoreUnavailableError


async def test_bytes_that_stop_on_the_way_are_asked_for_again_or_unavailable() -> None:
    cut = answer(206, b"abcd", length=10, Content_Range="bytes 0-9/10")
    error = await failure_of(lambda store: store.get("a", 0, 10), by(cut))
    assert type(error) is ObjectStoreUnavailableError


async def test_fewer_bytes_than_the_store_says_are_damaged() -> None:
    short = answer(206, b"abcd", Content_Range="bytes 0-9/10")
    error = await failure_of(lambda store: store.get("a", 0, 10), by(short))
    assert type(error) is ObjectDamagedError
    error = await failure_of(lambda store: store.tail("a", 10), by(short))
    assert type(error) is ObjectDamagedError


async def test_a_create_that_meets_another_is_tried_again() -> None:
    race = refusal(409, "ConditionalRequestConflict")
    async with answering(by(race, race, answer(200))) as endpoint:
        assert await opened(endpoint).create("a", b"x")
    async with answering(by(race, refusal(412, "PreconditionFailed"))) as endpoint:
        assert not await opened(endpoint).create("a", b"x")
    error = await failure_of(USES["create"], by(race))
    assert type(error) is ObjectStoreUnavailableError


async def test_a_key_that_was_not_deleted_is_told() -> None:
    denied = (
        b"<DeleteResult><Deleted><Key>prefix/b</Key></Deleted><Error><Key>prefix/a</Key>"
        b"<Code>AccessDenied</Code><Message>Access Denied</Message></Error></DeleteResult>"
    )
    error = await failure_of(lambda store: store.delete(["b", "a"]), by(answer(200, denied)))
    assert type(error) is ObjectStoreRefusedError
    assert "AccessDenied" in str(error)


async def test_keys_are_deleted_one_by_one_if_one_of_many_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GCS and Azure answer so; S3 takes no notice of a missing one."""
    monkeypatch.setenv("AWS_DISABLE_BULK_DELETE", "true")
    there = {f"/ledgers/prefix/{number:02}" for number in range(40)}

    async def reply(request: Request) -> bytes:
        if request.target not in there:
            return refusal(404, "NoSuchKey")
        there.discard(request.target)
        return answer(204)

    async with answering(reply) as endpoint:
        await opened(endpoint).delete(["missing", *(f"{number:02}" for number in range(40))])
    assert there == set()


async def test_keys_out_of_order_are_refused() -> None:
    listed = "".join(
        f"<Contents><Key>prefix/{key}</Key><Size>1</Size>"
        "<LastModified>2025-02-01T00:00:00Z</LastModified></Contents>"
        for key in ("b", "a")
    )
    page = answer(200, f"<ListBucketResult>{listed}</ListBucketResult>".encode())
    error = await failure_of(list_all, by(page))
    assert type(error) is ObjectStoreRefusedError
    assert "order" in str(error)


@pytest.mark.parametrize("piece_bytes", [MIB, 3 * PART_BYTES])
async def test_pieces_are_made_no_faster_than_their_parts_are_sent(piece_bytes: int) -> None:
    made_bytes = 0
    parts: list[int] = []
    release = asyncio.Semaphore(0)

    async def many() -> AsyncIterator[bytes]:
        nonlocal made_bytes
        for _ in range(60 * MIB // piece_bytes):
            made_bytes += piece_bytes
            yield bytes(piece_bytes)

    async def reply(request: Request) -> bytes:
        if request.target.endswith("?uploads="):
            return answer(200, b"<I><UploadId>1</UploadId></I>")
        if request.method == "PUT":
            parts.append(len(request.body))
            await release.acquire()
            return answer(200)
        return answer(200, b"<C><ETag>1</ETag></C>")

    async with answering(reply) as endpoint:
        store = opened(endpoint)
        writing = asyncio.ensure_future(store.put("a", many()))
        for answered in range(12):
            in_flight = min(answered + PARTS_IN_FLIGHT_MAX, 12)
            await until(lambda wanted=in_flight: len(parts) >= wanted)  # type: ignore[misc]
            assert len(parts) == in_flight
            # Besides those in flight: a part that is being filled, and two pieces on their way.
            assert made_bytes <= (in_flight + 1) * PART_BYTES + 2 * piece_bytes
            release.release()
        assert await writing == 60 * MIB
    assert parts == [PART_BYTES] * 12


async def test_parts_grow_with_the_expected_size() -> None:
    parts: list[int] = []

    async def reply(request: Request) -> bytes:
        if request.target.endswith("?uploads="):
            return answer(200, b"<I><UploadId>1</UploadId></I>")
        if request.method == "PUT":
            parts.append(len(request.body))
            return answer(200)
        return answer(200, b"<C><ETag>1</ETag></C>")

    async with answering(reply) as endpoint:
        store = opened(endpoint)
        data = pieces(*[bytes(MIB)] * 14)
        assert await store.put("a", data, expected_bytes=9_000 * 6 * MIB) == 14 * MIB
    assert sorted(parts) == [2 * MIB, 6 * MIB, 6 * MIB]


async def test_a_write_ends_when_its_upload_fails() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(MIB)

    async def reply(request: Request) -> bytes:
        if request.target.endswith("?uploads="):
            return answer(200, b"<I><UploadId>1</UploadId></I>")
        return answer(503)

    error = await failure_of(lambda store: store.put("a", endless()), reply)
    assert type(error) is ObjectStoreUnavailableError


async def test_a_write_that_fails_says_so_though_the_store_does_not_drop_its_parts() -> None:
    async def failing() -> AsyncIterator[bytes]:
        for _ in range(12):
            yield bytes(MIB)
        raise ConnectionResetError("no more")

    async def reply(request: Request) -> bytes:
        if request.target.endswith("?uploads="):
            return answer(200, b"<I><UploadId>1</UploadId></I>")
        await asyncio.Event().wait()
        return b""

    async with answering(reply) as endpoint:
        store = opened(endpoint, timeout_s=0.3, connect_timeout_s=0.3, retries_max=100)
        started_s = time.monotonic()
        with pytest.raises(ConnectionResetError, match="no more"):
            await store.put("a", failing())
        await store.close()
        assert time.monotonic() - started_s < 10


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_the_parts_of_a_write_that_failed_are_dropped(is_cancelled: bool) -> None:
    reached = asyncio.Event()
    aborted = False

    async def failing() -> AsyncIterator[bytes]:
        for _ in range(12):
            yield bytes(MIB)
        reached.set()
        if is_cancelled:
            await asyncio.Event().wait()
        raise ConnectionResetError("no more")

    async def reply(request: Request) -> bytes:
        nonlocal aborted
        if request.target.endswith("?uploads="):
            return answer(200, b"<I><UploadId>1</UploadId></I>")
        if request.method == "DELETE":
            await settle()
            aborted = True
            return answer(204)
        return answer(200)

    async with answering(reply) as endpoint:
        store = opened(endpoint)
        writing = asyncio.ensure_future(store.put("a", failing()))
        await reached.wait()
        if is_cancelled:
            writing.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else ConnectionResetError):
            await writing
        if is_cancelled:
            await store.close()
        assert aborted


async def test_a_list_ends_where_no_more_keys_can_begin_so() -> None:
    asked = 0

    async def reply(_: Request) -> bytes:
        nonlocal asked
        asked += 1
        listed = "".join(
            f"<Contents><Key>prefix/b/{2_000 * asked + number:05}</Key><Size>1</Size>"
            "<LastModified>2025-02-01T00:00:00Z</LastModified></Contents>"
            for number in range(1_000)
        )
        more = "<NextContinuationToken>more</NextContinuationToken>"
        return answer(200, f"<ListBucketResult>{listed}{more}</ListBucketResult>".encode())

    async with answering(reply) as endpoint:
        pages = [page async for page in opened(endpoint).list("b/0400")]
    assert [len(page) for page in pages] == [10]
    assert asked == 3


async def test_a_check_names_the_step_that_failed() -> None:
    async def only_puts(request: Request) -> bytes:
        return answer(200) if request.method == "PUT" else refusal(403, "AccessDenied")

    def check(store: ObjectStore) -> Awaitable[None]:
        return check_store(store, name="cold", random=Random(1))

    error = await failure_of(check, only_puts)
    assert type(error) is ObjectStoreRefusedError
    assert str(error).startswith("store cold: get of the check failed.")


async def test_a_store_that_overwrites_where_it_should_create_fails_its_check() -> None:
    kept: dict[str, bytes] = {}

    async def reply(request: Request) -> bytes:
        if request.method == "PUT":
            kept[request.target] = request.body  # whatever If-None-Match says
            return answer(200)
        if "list-type" in request.target:
            (key,) = kept
            listed = (
                f"<Contents><Key>{key.removeprefix('/ledgers/')}</Key><Size>1</Size>"
                "<LastModified>2025-02-01T00:00:00Z</LastModified></Contents>"
            )
            return answer(200, f"<ListBucketResult>{listed}</ListBucketResult>".encode())
        body = kept[request.target]
        if request.headers["range"].startswith("bytes=-"):
            return answer(206, body, Content_Range=f"bytes 0-{len(body) - 1}/{len(body)}")
        part = body[1:-1]
        return answer(206, part, Content_Range=f"bytes 1-{len(body) - 2}/{len(body)}")

    def check(store: ObjectStore) -> Awaitable[None]:
        return check_store(store, name="cold", random=Random(1))

    error = await failure_of(check, reply)
    assert type(error) is ObjectStoreRefusedError
    assert "If-None-Match" in str(error)
