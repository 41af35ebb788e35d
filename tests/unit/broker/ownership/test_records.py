"""The values of brokers and leases in the metadata store."""

import json

import pytest

from magnetar.broker.base.errors import UnreadableRecordError
from magnetar.broker.cluster.ownership.records import BrokerRecord, LeaseRecord, lease_of
from magnetar.broker.policies.model import decode

BROKER = BrokerRecord(
    name="b-1",
    native_url="pulsar://b-1:6650",
    http_url="http://b-1:8080",
    listeners={"outside": "pulsar://b.example:6650"},
    session_token="0123",
    version="0.1.0",
    load={"topics": 3},
)
PATH = "/somewhere"


def test_records_come_back_as_they_were() -> None:
    assert decode(BrokerRecord, PATH, BROKER.encode()) == BROKER
    lease = lease_of(BROKER, destination="b-2")
    assert decode(LeaseRecord, PATH, lease.encode()) == lease
    assert (lease.broker, lease.session_token, lease.listeners) == ("b-1", "0123", BROKER.listeners)


def test_fields_of_later_releases_are_passed_over() -> None:
    value = json.dumps({**json.loads(BROKER.encode()), "colour": "green"}).encode()
    assert decode(BrokerRecord, PATH, value) == BROKER


@pytest.mark.parametrize(
    "change", [{"format": 2}, {"native_url": ""}, {"session_token": None}, {"listeners": []}]
)
def test_what_is_of_no_known_form_is_refused_with_its_place(change: dict[str, object]) -> None:
    value = json.dumps({**json.loads(BROKER.encode()), **change}).encode()
    with pytest.raises(UnreadableRecordError, match=PATH) as refused:
        decode(BrokerRecord, PATH, value)
    assert not refused.value.retryable
    assert next(iter(change)) in str(refused.value)


def test_bytes_that_are_no_json_are_refused() -> None:
    with pytest.raises(UnreadableRecordError):
        decode(LeaseRecord, PATH, b"\x00\x01")
