"""Options of a query: where it begins, what a micro-batch takes, whose names options have."""

import pickle
import re
from typing import Any

import pytest

from magnetar.arrow.stored.errors import OptionError
from magnetar.arrow.stored.source_options import SourceOptions
from magnetar.arrow.stored.trigger_limits import NO_LIMITS, TriggerLimits

SERVERS = {"service.url": "pulsar://b:6650", "admin.url": "http://b:8080", "topic": "t"}
TOPIC = "persistent://public/default/t"


def read(options: dict[str, str], *, is_stream: bool = True) -> SourceOptions:
    return SourceOptions.read({**SERVERS, **options}, is_stream=is_stream)


def test_a_query_without_limits_has_none() -> None:
    found = read({})
    assert found.limits == TriggerLimits(delay_s=900.0)
    assert found.limits != NO_LIMITS  # the delay alone has no effect
    assert not found.limits.has_maximum
    assert not found.limits.has_minimum
    assert (found.subscription, found.subscription_prefix) == ("", "spark")
    assert found.idle_release_s == 60.0


def test_limits_are_of_entries_messages_and_bytes() -> None:
    found = read(
        {
            "maxEntriesPerTrigger": "10",
            "maxMessagesPerTrigger": "200",
            "maxBytesPerTrigger": "3000",
            "minMessagesPerTrigger": "100",
            "maxTriggerDelay": "90s",
        }
    )
    assert found.limits == TriggerLimits(10, 200, 3000, None, 100, None, 90.0)


@pytest.mark.parametrize(
    ("text", "delay_s"),
    [("1500", 1.5), ("500ms", 0.5), ("30 s", 30), ("15m", 900), ("2 Hours", 7200), ("0", 0)],
)
def test_a_delay_has_a_unit_or_is_in_milliseconds(text: str, delay_s: float) -> None:
    found = read({"minEntriesPerTrigger": "2", "maxTriggerDelay": text})
    assert found.limits.delay_s == pytest.approx(delay_s)


def test_times_are_for_all_topics_or_for_each() -> None:
    assert read({"startingTime": "1970-01-01T00:00:01"}).starting_ms == 1000
    found = read({"startingTime": '{"t": 5, "public/default/u": "1970-01-01T00:00:01Z"}'})
    assert found.starting_ms is None
    assert found.starting_times == {TOPIC: 5, "persistent://public/default/u": 1000}
    assert read({"endingTime": '{"t": "7"}'}, is_stream=False).ending_times == {TOPIC: 7}


def test_names_of_the_pulsar_connector_mean_the_options_here() -> None:
    found = SourceOptions.read(
        {
            "pulsar.client.serviceUrl": "pulsar+ssl://b:6651",
            "admin.url": "https://b:8443",
            "topics": "t,u",
            "predefinedSubscription": "held",
            "pulsar.client.authPluginClassName": (
                "org.apache.pulsar.client.impl.auth.AuthenticationToken"
            ),
            "pulsar.client.authParams": "token:abc",
            "pulsar.admin.authParams": "token:abc",
            "pulsar.client.tlsTrustCertsFilePath": "/ca.pem",
            "pulsar.client.tlsHostnameVerificationEnable": "false",
            "allowDifferentTopicSchemas": "true",
            "failOnDataLoss": "false",
            "startingOffsets": '{"t": [8, 11, 16, 101]}',
            "maxBytesPerTrigger": "1000",
        },
        is_stream=True,
    )
    connection = found.connection
    assert connection.service_url == "pulsar+ssl://b:6651"
    assert connection.authentication == "token:abc"
    assert (connection.tls_trust_file, connection.tls_checks_host) == ("/ca.pem", False)
    assert found.subscription == "held"
    assert found.takes_bytes_only
    place = found.starting.of(TOPIC)
    assert place is not None
    assert (place.ledger_id, place.entry_id) == (11, 101)


def test_one_option_by_two_names_is_given_once_if_it_is_the_same() -> None:
    both = {"predefinedSubscription": "a", "subscriptionName": "a"}
    assert read(both).subscription == "a"
    with pytest.raises(OptionError, match="option subscriptionName: it is given twice"):
        read({**both, "subscriptionName": "b"})


BAD: list[tuple[dict[str, str], str]] = [
    ({"minEntriesPerTrigger": "5", "minBytesPerTrigger": "5"}, "minBytesPerTrigger: .*together"),
    ({"minEntriesPerTrigger": "5", "maxEntriesPerTrigger": "4"}, "5 is more than maxEntries"),
    ({"maxTriggerDelay": "5s"}, "maxTriggerDelay: it has no effect without"),
    ({"minEntriesPerTrigger": "5", "maxTriggerDelay": "soon"}, "'soon' is not allowed.*15m"),
    ({"minEntriesPerTrigger": "5", "maxTriggerDelay": "5 days"}, "'5 days' is not allowed"),
    ({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger: '0' is not allowed"),
    ({"subscriptionName": "a", "subscriptionPrefix": "b"}, "subscriptionPrefix: .*together"),
    ({"subscriptionPrefix": "a/b"}, "subscriptionPrefix: 'a/b'"),
    ({"subscriptionPrefix": "x" * 201}, "subscriptionPrefix: it has 1 to 200"),
    ({"startingSubscription": "a b"}, "startingSubscription: 'a b'"),
    ({"startingSubscription": "a", "startingTime": "5"}, "startingTime: .*startingSubscription"),
    ({"startingSubscription": "a", "startingOffsets": "latest"}, "startingOffsets: .*together"),
    ({"startingTime": "5", "startingOffsets": "latest"}, "startingTime: .*startingOffsets"),
    ({"startingTime": "{"}, r"startingTime: '\{' is not JSON"),
    ({"startingTime": "{}"}, "startingTime: it names no topic"),
    ({"startingTime": '{"t": true}'}, "startingTime: t: True is not a time"),
    ({"startingTime": '{"t": "later"}'}, "startingTime: 'later' is not allowed"),
    ({"startingTime": '{"a/b": 5}'}, "startingTime: 'a/b'"),
    ({"startingOffsets": '{"t": [8, 300]}'}, "startingOffsets: t: .* not the bytes"),
    ({"startingOffsets": '{"t": [8, true]}'}, "startingOffsets: t: .* not the bytes"),
    ({"idleReleaseMs": "-1"}, "idleReleaseMs: '-1' is not allowed"),
    ({"oauth2IssuerUrl": "https://i"}, "oauth2IssuerUrl: it is for authentication oauth2 only"),
    ({"authentication": "oauth2"}, "oauth2IssuerUrl: authentication oauth2 requires it"),
]


@pytest.mark.parametrize(("options", "text"), BAD)
def test_what_does_not_fit_is_refused_by_its_name(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as refusal:
        read(options)
    assert re.search(text, str(refusal.value)), str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "name", ["maxMessagesPerTrigger", "minBytesPerTrigger", "subscriptionPrefix", "idleReleaseMs"]
)
def test_options_of_streaming_queries_are_refused_by_batch_queries(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}: it is for streaming queries only"):
        read({name: "5"}, is_stream=False)


def test_a_batch_query_may_begin_at_a_subscription_and_one_of_objects_alone_may_not() -> None:
    assert read({"startingSubscription": "s"}, is_stream=False).starting_subscription == "s"
    options: dict[str, Any] = {
        "objects": "file:///a",
        "topic": "t",
        "startingSubscription": "s",
    }
    with pytest.raises(OptionError, match=r"startingSubscription: .*objects"):
        SourceOptions.read(options, is_stream=False)


def test_no_secret_of_an_issuer_is_part_of_a_plan(tmp_path: Any) -> None:
    path = tmp_path / "credentials.json"
    path.write_text('{"client_id": "me", "client_secret": "hidden"}')
    options = read(
        {
            "authentication": "oauth2",
            "oauth2IssuerUrl": "https://issuer.example.com",
            "oauth2CredentialsFile": str(path),
            "oauth2Audience": "urn:a",
        }
    )
    plan = pickle.dumps(options.settings)
    assert b"hidden" not in plan
    assert str(path).encode() in plan
    client = pickle.loads(plan).client
    assert client.auth_method_name == "token"
    assert client.auth_supplier is client.authentication
