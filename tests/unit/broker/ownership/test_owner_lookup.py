"""Lookups on one broker: owners that do not answer."""

from types import SimpleNamespace
from typing import Any, cast

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.bundles import BundleId, Layout
from magnetar.broker.cluster.ownership.changes import Changes
from magnetar.broker.cluster.ownership.owner_lookup import OwnerLookup
from magnetar.broker.cluster.ownership.records import LeaseRecord
from tests.dictionary_store import DictionaryStore
from tests.unit.broker.memory_log import ManualClock

BUNDLE = BundleId("public/default", Layout.even(1).bundles[0])


class Leases:
    """One lease of another broker, or none."""

    record: LeaseRecord | None = None

    async def read(self, bundle: BundleId) -> LeaseRecord | None:
        return self.record

    def holds(self, bundle: BundleId) -> bool:
        return False

    def is_ours(self, record: LeaseRecord) -> bool:
        return False


class Silent:
    """No broker answers."""

    async def answers(self, url: str) -> bool:
        return False


def lease_with(token: str) -> LeaseRecord:
    return LeaseRecord(
        broker="other",
        native_url="pulsar://other:6650",
        http_url="http://other:8080",
        session_token=token,
    )


async def test_a_silent_owner_is_forgotten_once_it_has_lost_the_lease() -> None:
    leases = Leases()
    lookup = OwnerLookup(
        DictionaryStore(),
        cast(Any, leases),
        registration=cast(Any, SimpleNamespace(timeout_s=10.0, name="this")),
        placement=cast(Any, SimpleNamespace(is_leader=False, leader=lambda: None)),
        moving={},
        changes=Changes(),
        why_not_serving=lambda: "",
        clock=ManualClock(),
        network=cast(Any, None),
        settings=BrokerSettings(),
    )
    lookup._reachability = cast(Any, Silent())
    for later in (lease_with("second"), None):
        leases.record = lease_with("first")
        lookup.forget()
        found = await lookup.look(BUNDLE, is_authoritative=False, listener="")
        assert isinstance(found, str)
        assert "does not answer" in found
        assert lookup._silent[BUNDLE][0] == "first"
        lookup.forget()
        leases.record = later
        await lookup.look(BUNDLE, is_authoritative=False, listener="")
        assert lookup._silent.get(BUNDLE, ("",))[0] == ("second" if later is not None else "")
