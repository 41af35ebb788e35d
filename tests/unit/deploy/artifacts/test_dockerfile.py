"""The image holds the product, runs as nobody in particular, and can tell whether it is well."""

import re
import tomllib
from pathlib import Path

from magnetar.bookie.settings import BookieSettings
from magnetar.broker.base.settings.broker import BrokerSettings
from tests.artifacts import DOCKERFILE, commands
from tests.processes import ROOT

TEXT = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
INSTRUCTIONS = [
    (name, rest.strip()) for name, rest in re.findall(r"^([A-Z]+) (.*)$", TEXT, re.MULTILINE)
]
STARTS = [number for number, (name, _) in enumerate(INSTRUCTIONS) if name == "FROM"]
LAST_STAGE = INSTRUCTIONS[STARTS[-1] :]


def arguments(name: str) -> list[str]:
    return [rest for each, rest in LAST_STAGE if each == name]


def test_it_has_two_stages_and_the_last_one_no_sources() -> None:
    assert len(STARTS) == 2
    copied = [rest.split() for rest in arguments("COPY")]
    assert ["--from=build", "/opt/magnetar", "/opt/magnetar"] in copied
    assert not any("ledger/magnetar" in rest for rest in copied)


def test_it_runs_as_a_number_that_is_not_root() -> None:
    (user,) = arguments("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    order = [name for name, _ in LAST_STAGE]
    assert order.index("USER") < order.index("ENTRYPOINT")


def test_it_says_whether_it_is_well() -> None:
    (check,) = arguments("HEALTHCHECK")
    assert "magnetar-health" in check
    assert f":{BrokerSettings().http_port}/health" in check


def test_its_ports_are_those_of_the_servers() -> None:
    (ports,) = arguments("EXPOSE")
    bookie = BookieSettings(data_directory=Path("/data"))
    broker = BrokerSettings()
    assert {str(broker.port), str(broker.http_port), str(bookie.port)} < set(ports.split())


def test_its_entry_point_is_the_command() -> None:
    assert arguments("ENTRYPOINT") == ['["magnetar"]']
    assert "broker" in commands()


def test_everything_that_the_wheel_is_made_of_is_copied_and_nothing_else_is_sent() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    packages = set(wheel["targets"]["wheel"]["packages"])
    sources = {
        source
        for name, rest in INSTRUCTIONS
        if name == "COPY" and "--from=" not in rest
        for source in [word for word in rest.split() if not word.startswith("--")][:-1]
    }
    assert packages <= sources
    for source in sources:
        assert (ROOT / source).exists(), source
    ignored = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().split()
    assert {line[1:] for line in ignored if line.startswith("!")} == sources
    assert "*" in ignored
