"""docs/coming-from-pulsar-client.md names all that the official client has, and ours rightly."""

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pulsar
import pulsar.schema
import pytest

from magnetar.sdk import ClientSettings, ConsumerSettings, ProducerSettings

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "coming-from-pulsar-client.md").read_text()


TABLES = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
NAMED = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", TABLES))))
NOT_FOR_USERS = {"wrap"}


@pytest.mark.parametrize(
    "call",
    [
        pulsar.Client,
        pulsar.Client.create_producer,
        pulsar.Client.subscribe,
        pulsar.Client.create_reader,
        pulsar.Client.create_table_view,
    ],
)
def test_every_option_of_the_official_client_is_named(call: Callable[..., object]) -> None:
    options = set(inspect.signature(call).parameters) - {"self"}
    assert sorted(options - NAMED) == []


@pytest.mark.parametrize(
    "kind",
    [
        pulsar.Client,
        pulsar.Producer,
        pulsar.Consumer,
        pulsar.Reader,
        pulsar.Message,
        pulsar.MessageId,
        pulsar.TableView,
    ],
)
def test_every_call_of_the_official_client_is_named(kind: type) -> None:
    calls = {name for name in vars(kind) if not name.startswith("_")}
    assert sorted(calls - NAMED - NOT_FOR_USERS) == []


def test_every_option_of_a_message_is_named() -> None:
    options = set(inspect.signature(pulsar.Producer.send).parameters) - {"self", "content"}
    assert sorted(options - NAMED) == []


def test_every_credential_and_schema_of_the_official_client_is_named() -> None:
    kinds = {name for name in vars(pulsar) if name.startswith(("Authentication", "Auto"))}
    kinds |= {
        name
        for name, found in vars(pulsar.schema).items()
        if inspect.isclass(found) and not name.startswith("_")
    }
    assert sorted(kinds - NAMED) == []


def test_every_error_of_the_official_client_is_named() -> None:
    errors = {
        name
        for name, found in vars(pulsar).items()
        if inspect.isclass(found) and issubclass(found, Exception)
    }
    assert sorted(errors - NAMED) == []


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
