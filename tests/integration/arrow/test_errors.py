"""What cannot be read is said with its reason, by the class of the error."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.arrow import (
    AccessDeniedError,
    CorruptDataError,
    MemoryLimitError,
    OffsetError,
    OptionError,
    TopicNotFoundError,
    UnreachableError,
    WorkerLostError,
    read,
    scan,
)
from tests.integration.arrow.support import at_bookies, through_brokers
from tests.integration.broker.security.secured import Secured, token_for
from tests.integration.pulsar_client.support import publish_to
from tests.processes import HOST, descendants_of, free_ports
from tests.standalone import Standalone

MEMORY_BYTES = 32 << 20
"""The least there may be: a message may have 8 MiB of it."""


def test_a_topic_that_is_missing_is_named(server: Standalone) -> None:
    with pytest.raises(TopicNotFoundError, match="topic persistent://public/default/no-such"):
        read("no-such", **at_bookies(server))


def test_a_column_that_is_missing_is_named_with_those_that_there_are(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    publish_to(client, topic, [b"x"])
    with pytest.raises(OptionError, match=r"option columns: there is no column 'x'.*value, __key"):
        read(topic, columns=["x"], **at_bookies(server))


def test_a_place_that_the_topic_does_not_have_is_named(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    publish_to(client, topic, [b"x"])
    with pytest.raises(OffsetError, match=f"{topic}: message 1000000:0 does not exist"):
        read(topic, start="1000000:0", **at_bookies(server))


def test_servers_that_do_not_answer_are_named() -> None:
    (port,) = free_ports(1)
    with pytest.raises(UnreachableError, match=f"http://{HOST}:{port}"):
        read("t", service_url=f"pulsar://{HOST}:{port}", admin_url=f"http://{HOST}:{port}")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> pulsar.CryptoKeyReader:
    folder = tmp_path_factory.mktemp("keys")
    private, public = folder / "private.pem", folder / "public.pem"
    _openssl("genrsa", "-out", private, "2048")
    _openssl("rsa", "-in", private, "-pubout", "-out", public)
    return pulsar.CryptoKeyReader(str(public), str(private))


def _openssl(*command: str | Path) -> None:
    subprocess.run(["openssl", *command], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("how", [{}, {"processes": True}], ids=["threads", "processes"])
def test_what_a_producer_encrypted_is_an_error_or_left_out_by_choice(
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    keys: pulsar.CryptoKeyReader,
    how: dict[str, Any],
) -> None:
    publish_to(client, topic, [b"open"])
    publish_to(client, topic, [b"secret"], encryption_key="k", crypto_key_reader=keys)
    publish_to(client, topic, [b"open again"])
    where: dict[str, Any] = {**at_bookies(server), **how}
    reader = read(topic, **where)
    with pytest.raises(CorruptDataError, match=f"{topic}: message [0-9]+:1: it is encrypted"):
        reader.read_all()
    table = read(topic, mode="PERMISSIVE", **where).read_all()
    assert table.column("value").to_pylist() == [b"open", None, b"open again"]
    assert "encrypted" in table.column("__error")[1].as_py()
    by_key = read(topic, mode="PERMISSIVE", keys=["k"], columns=["value"], **where).read_all()
    assert by_key.column("value").to_pylist() == [None], "its key is unknown"
    assert read(topic, mode="DROPMALFORMED", **where).read_all().num_rows == 2


def test_a_batch_larger_than_the_memory_is_an_error_that_names_it(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    lz4 = pulsar.CompressionType.LZ4
    limit = MEMORY_BYTES // 4
    publish_to(client, topic, [bytes(limit)], compression_type=lz4, batching_enabled=False)
    where = at_bookies(server)
    (value,) = read(topic, memory_bytes=MEMORY_BYTES, **where).read_all().column("value")
    assert len(value.as_py()) == limit, "at the limit"
    publish_to(client, topic, [bytes(limit + 1)], compression_type=lz4, batching_enabled=False)
    with pytest.raises(MemoryLimitError, match=f"{limit + 1} bytes.*raise memory_bytes"):
        read(topic, memory_bytes=MEMORY_BYTES, **where).read_all()
    assert read(topic, **where).read_all().num_rows == 2


def test_a_message_in_chunks_larger_than_the_memory_is_an_error_that_names_it(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    producer.send(bytes(12_000_000))
    producer.close()
    where = at_bookies(server)
    with pytest.raises(MemoryLimitError, match="raise memory_bytes"):
        read(topic, memory_bytes=MEMORY_BYTES, **where).read_all()
    assert read(topic, **where).read_all().num_rows == 1


def test_a_worker_that_is_killed_is_told_of_and_the_read_ends(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    # More than may lie in memory unread: most of it is still to come when the workers are killed.
    publish_to(client, topic, [bytes(200_000)] * 500, batching_enabled=False)
    memory_bytes = 2 * MEMORY_BYTES
    described = scan(
        topic,
        workers=2,
        processes=True,
        memory_bytes=memory_bytes,
        options={"sliceBytes": "1000"},
        **at_bookies(server),
    )
    before = set(descendants_of(os.getpid()))
    reader = described.reader()
    assert reader.read_next_batch().num_rows
    for each in set(descendants_of(os.getpid())) - before:
        os.kill(each, signal.SIGKILL)
    with pytest.raises(WorkerLostError, match="the process that read it has ended"):
        reader.read_all()
    assert described.table().num_rows == 500


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    running = Secured(tmp_path_factory.mktemp("arrow-secured") / "data")
    with running:
        running.make_tenant("acme", "acme-admin")
        running.make_tenant("other", "other-admin")
        for role, actions in (("reader", ["consume"]), ("writer", ["produce"])):
            status, answer = running.as_role(
                "acme-admin", "POST", f"/admin/v2/namespaces/acme/ns/permissions/{role}", actions
            )
            assert status == 204, answer
        client = pulsar.Client(
            running.url, authentication=pulsar.AuthenticationToken(token_for("acme-admin"))
        )
        publish_to(client, "persistent://acme/ns/t", [b"secret"])
        client.close()
        yield running


@pytest.mark.parametrize("where", [at_bookies, through_brokers])
def test_a_role_that_may_read_reads(
    secured: Secured, where: Callable[[Any], dict[str, Any]]
) -> None:
    token = f"token:{token_for('reader')}"
    table = read("acme/ns/t", authentication=token, **where(secured)).read_all()
    assert table.column("value").to_pylist() == [b"secret"]


@pytest.mark.parametrize(
    "authentication", ["none", f"token:{token_for('other-admin')}", "token:no-token"]
)
def test_a_role_that_may_not_read_is_refused(secured: Secured, authentication: str) -> None:
    with pytest.raises(AccessDeniedError, match="a role that may consume"):
        read("acme/ns/t", authentication=authentication, **through_brokers(secured)).read_all()


def test_a_role_that_may_only_write_is_refused_by_the_broker_that_it_reads_through(
    secured: Secured,
) -> None:
    token = f"token:{token_for('writer')}"
    with pytest.raises(AccessDeniedError, match="a role that may consume"):
        read("acme/ns/t", authentication=token, **through_brokers(secured)).read_all()


def test_a_file_with_a_token_that_is_not_there_is_named(server: Standalone, tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(OptionError, match=f"authentication: no token: .*{path}"):
        read("t", authentication=f"token:file:{path}", **at_bookies(server))
