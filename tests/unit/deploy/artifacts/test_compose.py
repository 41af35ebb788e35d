"""The Compose file starts a cluster that the product understands."""

import re
from typing import Any

import pytest

from magnetar.deploy.options import parse_quorum
from magnetar.ledger.metadata.url import parse_zookeeper_url
from tests.artifacts import (
    COMPOSE,
    COMPOSE_STANDALONE,
    DEPLOY,
    DOCKERFILE,
    SERVERS,
    check_environment,
    commands,
    options_of,
    read_yaml,
    seconds,
    servers_secret,
    stop_bound_s,
    zookeeper_settings,
)
from tests.processes import ROOT

FILE = read_yaml(COMPOSE)
SECRET_VOLUME = "shared-secret"
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OURS = {name: each for name, each in SERVICES.items() if each["image"].startswith("magnetar:")}


ALONE = read_yaml(COMPOSE_STANDALONE)["services"]["magnetar"]
EVERY = {**SERVICES, "standalone": ALONE}
"""The services of both files."""


def named(prefix: str) -> list[str]:
    return [name for name in SERVICES if re.fullmatch(rf"{prefix}-\d+", name)]


def test_it_is_a_whole_cluster() -> None:
    assert len(named("zookeeper")) == 3
    assert len(named("bookie")) == 4
    assert len(named("broker")) == 2
    assert {"autorecovery", "prometheus", "grafana"} <= set(SERVICES)


@pytest.mark.parametrize("name", sorted(OURS))
def test_each_server_knows_its_command_and_its_variables(name: str) -> None:
    service = OURS[name]
    server, *options = service["command"]
    assert server in SERVERS
    assert set(options) <= options_of(commands()[server])
    assert check_environment(server, service["environment"]) == []


@pytest.mark.parametrize("name", sorted(OURS))
def test_each_server_is_pointed_at_the_ensemble(name: str) -> None:
    environment = OURS[name]["environment"]
    (url,) = (value for key, value in environment.items() if key.endswith("_METADATA"))
    hosts, path = parse_zookeeper_url(url)
    assert {host.partition(":")[0] for host in hosts.split(",")} == set(named("zookeeper"))
    assert path == "/magnetar"


@pytest.mark.parametrize("name", sorted(OURS))
def test_each_server_has_time_for_an_orderly_end(name: str) -> None:
    service = OURS[name]
    assert seconds(service["stop_grace_period"]) > stop_bound_s(service["command"][0])


@pytest.mark.parametrize("name", sorted(EVERY))
def test_each_service_is_watched_confined_and_pinned(name: str) -> None:
    service = EVERY[name]
    assert service["healthcheck"]["test"]
    assert service["stop_grace_period"]
    assert service["restart"] == "unless-stopped"
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert re.fullmatch(r"[\w/.-]+:v?\d+\.\d+\.\d+", service["image"]), service["image"]
    # The image of Magnetar says itself who it runs as.
    is_ours = service["image"].startswith("magnetar:")
    user = service.get("user", "10001" if is_ours else "")
    assert re.match(r"[1-9]", user), f"{name} runs as {user or 'root'}"


def test_what_is_published_is_published_on_loopback_only() -> None:
    ports = [port for each in SERVICES.values() for port in each.get("ports", [])]
    assert ports
    assert [port for port in (*ports, *ALONE["ports"]) if not port.startswith("127.0.0.1:")] == []
    published = [port.rsplit(":", 1)[0] for port in ports]
    assert len(set(published)) == len(published)


def test_health_is_asked_where_each_server_answers() -> None:
    for name, service in OURS.items():
        program, url = service["healthcheck"]["test"][1:]
        assert program == "magnetar-health"
        environment = service["environment"]
        port = environment.get("MAGNETAR_BROKER_HTTP_PORT") or next(
            value for key, value in environment.items() if key.endswith("_METRICS_PORT")
        )
        assert url == f"http://127.0.0.1:{port}/health", name


def test_volumes_are_declared_and_belong_to_one_service_each_but_for_the_secret() -> None:
    used = [
        volume.partition(":")[0]
        for each in SERVICES.values()
        for volume in each.get("volumes", [])
        if not volume.startswith(".")
    ]
    assert used.count(SECRET_VOLUME) == len(OURS)
    own = [volume for volume in used if volume != SECRET_VOLUME]
    assert sorted([*own, SECRET_VOLUME]) == sorted(FILE["volumes"])


def test_bookies_ask_for_a_secret_that_all_who_use_them_have() -> None:
    paths = set()
    for name, service in OURS.items():
        path, settings = servers_secret(service["command"][0], service["environment"])
        assert not settings.shared_secret_optional
        assert "MAGNETAR_BOOKIE_INSECURE" not in service["environment"]
        (volume,) = (each for each in service["volumes"] if each.startswith(SECRET_VOLUME))
        _, folder, *read_only = volume.split(":")
        assert path.startswith(folder + "/"), name
        # Whoever may start first makes it: brokers wait for bookies.
        assert settings.shared_secret_create is not bool(read_only), name
        paths.add(path)
    assert len(paths) == 1
    assert paths.pop().rpartition("/")[0] in DOCKERFILE.read_text(), "the volume would be root's"


def test_directories_of_bookies_lie_on_their_volumes() -> None:
    for name in named("bookie"):
        mounts = [volume.rpartition(":")[2] for volume in SERVICES[name]["volumes"]]
        environment = SERVICES[name]["environment"]
        paths = re.findall(
            r"/[\w/-]+",
            " ".join(
                environment[f"MAGNETAR_BOOKIE_{each}"]
                for each in ("DATA", "JOURNAL_DIRECTORIES", "LEDGER_DIRECTORIES")
            ),
        )
        assert len(paths) == 3
        for path in paths:
            assert any(path.startswith(mount + "/") for mount in mounts), path


def test_servers_have_names_of_their_own() -> None:
    for variable, prefix in (
        ("MAGNETAR_BOOKIE_ID", "bookie"),
        ("MAGNETAR_BOOKIE_RACK", "bookie"),
        ("MAGNETAR_BROKER_NAME", "broker"),
        ("MAGNETAR_BROKER_ADVERTISED_LISTENERS", "broker"),
    ):
        values = [SERVICES[name]["environment"][variable] for name in named(prefix)]
        assert len(set(values)) == len(values), variable


def test_there_is_a_spare_bookie_for_each_ensemble() -> None:
    for name in named("broker"):
        quorum = parse_quorum(SERVICES[name]["environment"]["MAGNETAR_BROKER_QUORUM"])
        assert quorum.ensemble < len(named("bookie"))


def test_listeners_for_this_machine_name_published_ports() -> None:
    for name in named("broker"):
        environment = SERVICES[name]["environment"]
        listeners = dict(
            each.split(":", 1)
            for each in environment["MAGNETAR_BROKER_ADVERTISED_LISTENERS"].split(",")
        )
        inside = environment["MAGNETAR_BROKER_PORT"]
        assert listeners["internal"] == f"pulsar://{name}:{inside}"
        outside = listeners["host"].removeprefix("pulsar://")
        assert f"{outside}:{inside}" in SERVICES[name]["ports"]


def test_prometheus_scrapes_every_server_where_it_shows_its_metrics() -> None:
    scraped = {
        target
        for job in read_yaml(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
        for target in job["static_configs"][0]["targets"]
    }
    wanted = {f"{name}:7000" for name in named("zookeeper")}
    for name, service in OURS.items():
        environment = service["environment"]
        port = environment.get("MAGNETAR_BROKER_HTTP_PORT", "8000")
        wanted.add(f"{name}:{port}")
    assert scraped == wanted


def test_zookeeper_is_set_up_as_in_production() -> None:
    here = zookeeper_settings((COMPOSE.parent / "zoo.cfg").read_text())
    production = zookeeper_settings((DEPLOY / "zookeeper" / "zoo.cfg").read_text())
    places = {"dataDir", "dataLogDir", "server.1", "server.2", "server.3"}
    assert {key: here[key] for key in here if key not in places} == {
        key: production[key] for key in production if key not in places
    }
    assert {here[f"server.{n}"].partition(":")[0] for n in (1, 2, 3)} == set(named("zookeeper"))
    numbers = {SERVICES[name]["environment"]["ZOO_MY_ID"]: name for name in named("zookeeper")}
    assert {here[f"server.{n}"].partition(":")[0]: n for n in numbers} == {
        name: n for n, name in numbers.items()
    }


@pytest.mark.parametrize("name", named("broker"))
def test_brokers_answer_to_the_names_in_use_alone(name: str) -> None:
    """What is published at loopback can be reached by a web page whose own name leads there."""
    jobs = read_yaml(DEPLOY / "prometheus/prometheus.yml")["scrape_configs"]
    scraped = next(each for each in jobs if each["job_name"] == "magnetar-broker")
    targets = scraped["static_configs"][0]["targets"]
    names = SERVICES[name]["environment"]["MAGNETAR_BROKER_HTTP_NAMES"].split(",")
    assert sorted(names) == sorted(target.partition(":")[0] for target in targets)


# The file with one server


def test_the_single_server_knows_its_command_and_its_variables() -> None:
    assert ALONE["command"] == ["standalone"]
    assert check_environment("standalone", ALONE["environment"]) == []
    assert ALONE["image"] == OURS["broker-1"]["image"]


def test_the_single_server_keeps_everything_in_its_volume() -> None:
    (volume,) = ALONE["volumes"]
    name, _, folder = volume.partition(":")
    assert name in read_yaml(COMPOSE_STANDALONE)["volumes"]
    assert ALONE["environment"]["MAGNETAR_STANDALONE_DATA"].startswith(folder + "/")
    assert f"{folder} " in DOCKERFILE.read_text(), "the volume would be root's"


def test_clients_of_the_single_server_are_sent_where_its_port_is_published() -> None:
    environment = ALONE["environment"]
    host = environment["MAGNETAR_STANDALONE_ADVERTISED_HOST"]
    for variable in ("PORT", "HTTP_PORT"):
        port = environment[f"MAGNETAR_STANDALONE_{variable}"]
        assert f"{host}:{port}:{port}" in ALONE["ports"]
    assert ALONE["healthcheck"]["test"][1:] == [
        "magnetar-health",
        f"http://127.0.0.1:{environment['MAGNETAR_STANDALONE_HTTP_PORT']}/health",
    ]


def test_the_single_server_has_time_for_an_orderly_end() -> None:
    bound_s = stop_bound_s("broker") + stop_bound_s("bookie")
    assert seconds(ALONE["stop_grace_period"]) > bound_s


@pytest.mark.parametrize("page", ["README.md", "docs/operations/quick-start.md"])
def test_docker_run_on_the_pages_starts_what_the_file_starts(page: str) -> None:
    text = (ROOT / page).read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^docker run .*$", text, re.MULTILINE)
    options, _, command = line.partition(f" {ALONE['image']} ")
    environment = ALONE["environment"]
    assert re.findall(r"--publish (\S+)", options) == ALONE["ports"]
    assert re.findall(r"--volume \w+:(\S+)", options) == ["/var/lib/magnetar"]
    assert command.split() == [
        "standalone",
        *("--data", environment["MAGNETAR_STANDALONE_DATA"]),
        *("--host", environment["MAGNETAR_STANDALONE_HOST"]),
        *("--advertised-host", environment["MAGNETAR_STANDALONE_ADVERTISED_HOST"]),
        "--insecure",
    ]
    assert "MAGNETAR_BROKER_HTTP_NAMES=localhost" in options
