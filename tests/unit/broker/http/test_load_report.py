"""The load report in Pulsar's shape: what the classes LocalBrokerData and NamespaceBundleStats of
its Java client have, computed or a named constant."""

from magnetar.broker.cluster.balance.load_report import BundleLoad, LoadReport
from magnetar.broker.cluster.ownership.records import BrokerRecord
from magnetar.broker.http.admin import KnownBroker
from magnetar.broker.http.brokers import REPORT_CONSTANTS, pulsar_report

_FIELDS = """
    webServiceUrl webServiceUrlTls pulsarServiceUrl pulsarServiceUrlTls persistentTopicsEnabled
    nonPersistentTopicsEnabled cpu memory directMemory bandwidthIn bandwidthOut msgThroughputIn
    msgThroughputOut msgRateIn msgRateOut lastUpdate lastStats numTopics numBundles numConsumers
    numProducers bundles lastBundleGains lastBundleLosses brokerVersionString protocols
    advertisedListeners loadManagerClassName startTimestamp bundleStats maxResourceUsage
    loadReportType
"""
FIELDS = frozenset(_FIELDS.split())
_BUNDLE_FIELDS = """
    msgRateIn msgThroughputIn msgRateOut msgThroughputOut consumerCount producerCount topics
    cacheSize
"""
BUNDLE_FIELDS = frozenset(_BUNDLE_FIELDS.split())
BUNDLE = "public/default/0x00000000_0xffffffff"


def record(name: str) -> BrokerRecord:
    return BrokerRecord(
        name=name,
        native_url=f"pulsar://{name}:1",
        native_url_tls=f"pulsar+ssl://{name}:2",
        http_url=f"http://{name}:3",
        http_url_tls=f"https://{name}:4",
        listeners={"outside": f"pulsar://{name}:5"},
        session_token="token",
        version="1",
    )


def test_every_field_of_pulsars_is_computed_or_a_constant_with_a_reason() -> None:
    busy = LoadReport(
        sent_ms=9,
        cpu_percent=50.0,
        network_in_percent=1.0,
        network_out_percent=2.0,
        memory_bytes=1 << 30,
        topics=3,
        bundles={
            BUNDLE: BundleLoad(
                topics=3,
                producers=1,
                consumers=2,
                msg_rate_in=1.0,
                msg_rate_out=2.0,
                bytes_rate_in=3.0,
                bytes_rate_out=4.0,
            )
        },
    )
    idle = LoadReport(bundles={BUNDLE: BundleLoad()})
    own = KnownBroker(record("a"), busy, is_leader=False, is_self=True)
    one = pulsar_report(busy, own, "1", started_ms=5)
    other = pulsar_report(LoadReport(), None, "2", started_ms=6)
    assert one.keys() == other.keys() == FIELDS
    assert {field for field in FIELDS if one[field] == other[field]} == {
        field for field in REPORT_CONSTANTS if field in FIELDS
    }
    assert all(reason for _, reason in REPORT_CONSTANTS.values())
    (bundle,) = one["bundleStats"].values()
    (unused,) = pulsar_report(idle, own, "1", started_ms=5)["lastStats"].values()
    assert bundle.keys() == BUNDLE_FIELDS
    assert {field for field in bundle if bundle[field] == unused[field]} == {"cacheSize"}
