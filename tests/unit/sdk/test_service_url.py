"""Service URLs."""

import pytest

from magnetar.sdk.errors import InvalidUrlError
from magnetar.sdk.service_url import Address, ServiceUrl


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("pulsar://localhost", [("localhost", 6650)]),
        ("pulsar://localhost:1/", [("localhost", 1)]),
        ("pulsar://a:1,b,[::1]:3", [("a", 1), ("b", 6650), ("::1", 3)]),
    ],
)
def test_hosts_and_ports(url: str, addresses: list[tuple[str, int]]) -> None:
    assert ServiceUrl.parse(url).addresses == tuple(Address(h, p) for h, p in addresses)


@pytest.mark.parametrize(
    "url",
    ["", "localhost:6650", "http://a", "pulsar://", "pulsar://a:b", "pulsar://a,", "pulsar://a/b"],
)
def test_other_forms_are_refused(url: str) -> None:
    with pytest.raises(InvalidUrlError):
        ServiceUrl.parse(url)


def test_tls_has_a_scheme_and_a_port_of_its_own() -> None:
    url = ServiceUrl.parse("pulsar+ssl://one,two:7651")
    assert url.is_tls
    assert [str(each) for each in url.addresses] == ["one:6651", "two:7651"]
    assert not ServiceUrl.parse("pulsar://one").is_tls
