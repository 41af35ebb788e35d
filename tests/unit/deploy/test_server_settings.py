"""Settings of a server's parts that depend on each other are checked together at its start."""

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.deploy.broker_server import ENTRY_HEADERS_BYTES_MAX, fitting
from magnetar.deploy.errors import SettingsError
from magnetar.ledger.settings import LedgerSettings

_MIB = 1 << 20


@pytest.mark.parametrize("message_bytes_max", [1024, 5 * _MIB, 6 * _MIB, 7 * _MIB])
def test_the_largest_message_has_room_in_an_entry(message_bytes_max: int) -> None:
    broker = BrokerSettings(message_bytes_max=message_bytes_max)
    found = fitting(LedgerSettings(), broker)
    assert found.entry_bytes_max >= message_bytes_max + ENTRY_HEADERS_BYTES_MAX
    LedgerSettings(entry_bytes_max=found.entry_bytes_max)  # is allowed


@pytest.mark.parametrize("name", ["entry_bytes_max", "channel_bytes_max", "pending_bytes_max"])
def test_a_bound_that_leaves_the_largest_message_no_room_ends_the_start(name: str) -> None:
    broker = BrokerSettings(message_bytes_max=6 * _MIB)
    with pytest.raises(SettingsError, match=f"{name}.*Set {name} to {6 * _MIB + (64 << 10)}"):
        fitting(LedgerSettings.model_validate({name: 5 * _MIB}), broker)
