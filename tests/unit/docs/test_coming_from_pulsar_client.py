"""docs/coming-from-pulsar-client.md names every option of the official client, and ours rightly."""

import dataclasses
import inspect
import re
from pathlib import Path

import pulsar
import pytest

from magnetar.sdk import ClientSettings, ConsumerSettings, ProducerSettings

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "coming-from-pulsar-client.md").read_text()


@pytest.mark.parametrize(
    "call", ["__init__", "create_producer", "subscribe", "create_reader", "create_table_view"]
)
def test_every_option_of_the_official_client_is_named(call: str) -> None:
    options = set(inspect.signature(getattr(pulsar.Client, call)).parameters) - {"self"}
    missing = [name for name in sorted(options) if not re.search(rf"\b{name}\b", PAGE)]
    assert missing == []


@pytest.mark.parametrize("kind", [pulsar.Producer, pulsar.Consumer, pulsar.Reader, pulsar.Message])
def test_every_call_of_the_official_client_is_named(kind: type) -> None:
    calls = [name for name in vars(kind) if not name.startswith("_")]
    assert [name for name in calls if not re.search(rf"\b{name}\b", PAGE)] == []


@pytest.mark.parametrize(
    ("heading", "settings"),
    [("ProducerSettings", ProducerSettings), ("ConsumerSettings", ConsumerSettings)],
)
def test_the_settings_that_are_named_exist(heading: str, settings: type) -> None:
    table = PAGE.split(f"magnetar.sdk `{heading}` |")[1].split("\n\n")[0]
    fields = {each.name for each in dataclasses.fields(settings)}
    fields |= {each.name for each in dataclasses.fields(ClientSettings)}
    named = {
        match[1]
        for line in table.strip().splitlines()
        for match in re.finditer(r"`([a-z]+_[a-z_]+)(?:=[^`]*)?`", line.split("|")[-2])
    }
    assert named - fields - {"on_ready", "take_nowait", "send_nowait"} == set()
