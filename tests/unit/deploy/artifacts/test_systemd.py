"""The systemd units start what exists, stop it in order, and try again only where that helps."""

import configparser
import re

import pytest

from magnetar.deploy import errors
from magnetar.ledger.metadata.url import parse_zookeeper_url
from tests.artifacts import (
    SERVERS,
    SYSTEMD,
    check_environment,
    commands,
    environment_file,
    options_of,
    servers_secret,
    stop_bound_s,
)


def unit(name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(SYSTEMD / f"{name}.service")
    return parser["Service"]


def statuses() -> dict[int, str]:
    return {
        each.exit_status: name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.DeployError)
    }


@pytest.mark.parametrize("server", SERVERS)
def test_a_unit_runs_its_command_with_settings_that_exist(server: str) -> None:
    service = unit(f"magnetar-{server}")
    program, command, *options = service["ExecStart"].split()
    assert program.endswith("/magnetar")
    assert command == server
    assert set(options) <= options_of(commands()[command])
    assert service["EnvironmentFile"] == f"/etc/magnetar/{server}.env"
    environment = environment_file(SYSTEMD / "env" / f"{server}.env")
    assert check_environment(server, environment) == []
    parse_zookeeper_url(environment[f"MAGNETAR_{server.upper()}_METADATA"])


@pytest.mark.parametrize("server", SERVERS)
def test_settings_that_are_commented_out_exist_too(server: str) -> None:
    text = (SYSTEMD / "env" / f"{server}.env").read_text()
    offered = dict(re.findall(r"^#(MAGNETAR_[A-Z_]+)=(.*)$", text, re.MULTILINE))
    assert check_environment(server, offered) == []


@pytest.mark.parametrize("server", SERVERS)
def test_a_unit_has_time_for_an_orderly_end(server: str) -> None:
    assert int(unit(f"magnetar-{server}")["TimeoutStopSec"]) > stop_bound_s(server)


@pytest.mark.parametrize("server", SERVERS)
def test_only_what_can_pass_by_itself_is_tried_again(server: str) -> None:
    service = unit(f"magnetar-{server}")
    hopeless = {int(each) for each in service["RestartPreventExitStatus"].split()}
    assert hopeless <= set(statuses())
    retried = {
        errors.MetadataUnreachableError,
        errors.AddressUnavailableError,
        errors.DeployError,
    }
    assert not hopeless & {each.exit_status for each in retried}
    assert {
        errors.SettingsError.exit_status,
        errors.UnreadableMetadataError.exit_status,
    } <= hopeless


@pytest.mark.parametrize("name", [*(f"magnetar-{server}" for server in SERVERS), "zookeeper"])
def test_a_unit_runs_as_an_account_that_is_made_and_may_little(name: str) -> None:
    service = unit(name)
    accounts = re.findall(
        r"^u (\w+)", (SYSTEMD / "sysusers.d" / "magnetar.conf").read_text(), re.MULTILINE
    )
    assert service["User"] in accounts
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""


def test_the_directories_of_a_bookie_lie_in_what_systemd_makes() -> None:
    environment = environment_file(SYSTEMD / "env" / "bookie.env")
    made = {f"/var/lib/{each}" for each in unit("magnetar-bookie")["StateDirectory"].split()}
    named = re.findall(
        r"/[\w/-]+",
        " ".join(
            environment[f"MAGNETAR_BOOKIE_{each}"]
            for each in ("DATA", "JOURNAL_DIRECTORIES", "LEDGER_DIRECTORIES")
        ),
    )
    assert len(named) == 3
    for path in named:
        assert path.rpartition("/")[0] in made, path


def test_bookies_ask_for_a_secret_that_all_who_use_them_have() -> None:
    found = {}
    for server in SERVERS:
        environment = environment_file(SYSTEMD / "env" / f"{server}.env")
        found[server], settings = servers_secret(server, environment)
        assert not settings.shared_secret_optional
        assert "MAGNETAR_BOOKIE_INSECURE" not in environment
    assert set(found.values()) == {"/etc/magnetar/shared-secret"}
    modes = (SYSTEMD / "tmpfiles.d" / "magnetar.conf").read_text()
    assert re.search(r"^z /etc/magnetar/\*\s+0640 root\s+magnetar$", modes, re.MULTILINE)
