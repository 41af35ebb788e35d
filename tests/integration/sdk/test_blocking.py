"""The blocking facade: the same client from threads, after a fork, and when it is interrupted."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from magnetar.sdk import ConsumerSettings, InitialPosition, ProducerSettings
from magnetar.sdk.blocking import Client
from magnetar.sdk.errors import AlreadyClosedError, ForkedError, InvalidUrlError, SdkError
from magnetar.sdk.schemas import STRING
from tests.standalone import Standalone

FROM_START = ConsumerSettings(initial_position=InitialPosition.EARLIEST)


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("blocking") / "data") as server:
        yield server


@pytest.fixture
def client(standalone: Standalone) -> Iterator[Client]:
    with Client(standalone.url) as running:
        yield running


def test_messages_go_there_and_back(client: Client) -> None:
    with client.producer("plain", schema=STRING) as producer:
        first = producer.send("one", key="k")
        producer.send_many(["two", "three"])
        producer.flush()
        assert producer.stats().messages_stored == 3
        assert producer.name
    consumer = client.consumer("plain", "s", FROM_START, schema=STRING)
    message = consumer.receive(timeout_s=30)
    assert (message.value(), message.key, message.message_id) == ("one", "k", first)
    taken = []
    for message in consumer:
        consumer.acknowledge(message)
        taken.append(message.value())
        if len(taken) == 2:
            break
    assert taken == ["two", "three"]
    with pytest.raises(TimeoutError):
        consumer.receive(timeout_s=0.01)
    reader = client.reader("plain", schema=STRING)
    assert reader.read_many(3, timeout_s=30)[0].value() == "one"


def test_transactions_take_wrapped_producers(client: Client) -> None:
    producer = client.producer("together")
    with client.transaction() as transaction:
        producer.send(b"in it", transaction=transaction)
    reader = client.reader("together")
    assert reader.read_next(timeout_s=30).data == b"in it"


def test_a_table_view_is_a_mapping_here_too(client: Client) -> None:
    producer = client.producer("prices")
    producer.send(b"1", key="apples")
    producer.send(b"2", key="pears")
    with client.table_view("prices") as view:
        assert view["apples"] == b"1"
        assert "pears" in view
        assert "plums" not in view
        assert (len(view), sorted(view)) == (2, ["apples", "pears"])
        # What is given out does not change under whoever goes through it.
        items = iter(view.items())
        first = next(items)
        producer.send(b"3", key="plums")
        view.refresh()
        assert dict([first, *items]) == {"apples": b"1", "pears": b"2"}
        assert dict(view) == {"apples": b"1", "pears": b"2", "plums": b"3"}
        assert view.get("none") is None


def test_many_threads_share_a_producer(client: Client) -> None:
    producer = client.producer("shared", ProducerSettings(batch_delay_ms=1))

    def send(number: int) -> None:
        for at in range(50):
            producer.send(b"%d-%d" % (number, at))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader = client.reader("shared")
    found = [reader.read_next(timeout_s=30).data for _ in range(200)]
    for number in range(4):
        own = [data for data in found if data.startswith(b"%d-" % number)]
        assert own == [b"%d-%d" % (number, at) for at in range(50)]


def test_errors_are_those_of_the_client(client: Client) -> None:
    with pytest.raises(SdkError):
        client.producer("no-tenant/no-namespace/t")
    with pytest.raises(InvalidUrlError):
        Client("http://somewhere")
    with pytest.raises(AttributeError):
        _ = client.no_such_call
    with pytest.raises(TypeError, match="iterated"):
        iter(client.producer("errors")).__next__()


def test_a_closed_client_says_so_and_leaves_no_thread(standalone: Standalone) -> None:
    client = Client(standalone.url)
    producer = client.producer("closed")
    client.close()
    client.close()
    with pytest.raises(AlreadyClosedError):
        producer.send(b"")
    assert "magnetar client" not in {thread.name for thread in threading.enumerate()}


def test_a_callback_that_calls_back_is_refused_instead_of_waiting_for_ever(client: Client) -> None:
    producer = client.producer("callbacks")
    told: list[object] = []

    def on_sent(message_id: object, error: object) -> None:
        try:
            producer.flush()
        except AlreadyClosedError as refusal:
            told.append(refusal)

    producer.send_nowait(b"x", on_sent=on_sent)
    producer.flush()
    assert len(told) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_fork_is_told_and_the_parent_goes_on(client: Client) -> None:
    producer = client.producer("forked")
    producer.send(b"before")
    child = os.fork()
    if child == 0:
        try:
            producer.send(b"in the child")
        except ForkedError:
            client.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    producer.send(b"after")
    reader = client.reader("forked")
    assert [reader.read_next(timeout_s=30).data for _ in range(2)] == [b"before", b"after"]


def test_an_interrupted_receive_loses_no_message(client: Client) -> None:
    consumer = client.consumer("interrupted", "s")
    main = threading.get_ident()
    timer = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))
    # What a shell starts in the background ignores this signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            consumer.receive(timeout_s=60)
    finally:
        signal.signal(signal.SIGINT, before)
    client.producer("interrupted").send(b"kept")
    assert consumer.receive(timeout_s=30).data == b"kept"
