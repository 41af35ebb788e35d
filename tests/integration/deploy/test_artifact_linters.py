"""The files in deploy/ hold before the tools that read them: the real ones, without an engine."""

import base64
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python.chart import Chart, lint
from helm_python.errors import HelmError

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.deploy.config import component_settings, read_config_file
from magnetar.ledger.metadata.url import parse_zookeeper_url
from magnetar.ledger.secret_handshake import parse_secrets
from tests.artifacts import (
    ALERT_TESTS,
    CHART,
    COMPONENTS,
    COMPOSE,
    COMPOSE_STANDALONE,
    DEPLOY,
    DOCKERFILE,
    RULES,
    SERVERS,
    SYSTEMD,
    check_environment,
    commands,
    dashboard_queries,
    options_of,
    read_yaml,
    servers_secret,
    zookeeper_settings,
)
from tests.processes import (
    HOST,
    ServerProcess,
    free_ports,
    magnetar_command,
    magnetar_environment,
)
from tests.standalone import READY_TIMEOUT_S, is_ready_line

KUBERNETES_VERSIONS = ("1.27", "1.31", "1.37")
"""The oldest that the chart takes, a usual one, and the newest with a schema here."""

KEYS: dict[str, Any] = {
    "extraVolumes": [{"name": "keys", "secret": {"secretName": "magnetar-keys"}}],
    "extraVolumeMounts": [{"name": "keys", "mountPath": "/keys", "readOnly": True}],
}

EVERYTHING_ON: dict[str, Any] = {
    "settings": {
        "bookie": {"allow_storage_expansion": True, "disk_full_share": 0.9},
        "broker": {
            "tls_port": 6651,
            "https_port": 8443,
            "tls_certificate_file": "/keys/tls.crt",
            "tls_key_file": "/keys/tls.key",
            "token_public_key": "file:///keys/public.pem",
        },
        "worker": {"copy_bytes_per_s_max": 134_217_728},
    },
    "imagePullSecrets": [{"name": "registry"}],
    "bookie": {
        **KEYS,
        "zoneFromPodLabel": True,
        "storage": {"ledgers": {"volumes": 2, "size": "1Ti", "storageClassName": "fast"}},
        "extraEnv": [{"name": "MAGNETAR_LOG_LEVEL", "value": "debug"}],
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [{"key": "storage", "operator": "Exists"}],
        "priorityClassName": "high",
    },
    "autorecovery": KEYS,
    "broker": {
        **KEYS,
        "external": {
            "enabled": True,
            "domain": "mq.example.com",
            "sourceRanges": ["10.0.0.0/8"],
            "annotations": {"load-balancer": "internal"},
        },
    },
    "monitoring": {
        "labels": {"release": "prometheus"},
        "podMonitors": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "networkPolicy": {"monitoring": [{"namespaceSelector": {"matchLabels": {"name": "m"}}}]},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "as it stands": {},
    "everything on": EVERYTHING_ON,
    "single node": read_yaml(CHART / "values-single-node.yaml"),
    "own ZooKeeper": {
        "zookeeper": {"enabled": False},
        "metadata": {"url": "zk://zk-1:2181,zk-2:2181/mq"},
    },
    "own secret": {"sharedSecret": {"existingSecret": "ours"}},
    "a secret comes in": {"sharedSecret": {"optional": True}},
    "tokens and TLS": {
        "auth": {"enabled": True, "secret": "tokens", "superUsers": ["boss", "broker"]},
        "tls": {"enabled": True, "secret": "certificate", "betweenBrokers": True},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "host": "mq.example.com",
            "annotations": {"limit": "9"},
            "tlsSecret": "mq-example-com",
        },
        "monitoring": {"podMonitors": {"enabled": True}},
        "serviceAccount": {"annotations": {"iam/role": "none"}},
        **{
            part: {"podAnnotations": {"team": "mq"}, "podLabels": {"cost": part}}
            for part in ("zookeeper", "bookie", "broker", "autorecovery")
        },
    },
    "one key signs and checks": {
        "auth": {"enabled": True, "secret": "tokens", "publicKey": "", "secretKey": "secret-key"}
    },
    "authorization": {"settings": {"broker": {"authorization": True, "token_public_key": "/k"}}},
    "a token key of a secret": {
        "broker": {"extraEnv": [{"name": "MAGNETAR_BROKER_TOKEN_SECRET_KEY", "value": "x"}]}
    },
}
AUTHENTICATING = {
    "authorization",
    "a token key of a secret",
    "everything on",
    "tokens and TLS",
    "one key signs and checks",
}
"""Variants whose values name a method of authentication."""
OTHERS: dict[str, dict[str, Any]] = {
    "standalone": {
        "standalone": {"enabled": True, "bookies": 3},
        "monitoring": {"serviceMonitors": {"enabled": True}},
        "auth": {"enabled": True, "secret": "tokens"},
        "broker": {"external": {"enabled": True, "domain": "d", "sourceRanges": ["10.0.0.0/8"]}},
    },
    "standalone for everybody": {"standalone": {"enabled": True}},
    "bookies first": {"upgrade": {"through": "bookie"}},
    "then auto-recovery": {"upgrade": {"through": "autorecovery"}},
    "backup": {
        "backup": {"enabled": True, "claim": "archives", "keepDays": 3, "timeoutSeconds": 7}
    },
    "service monitors": {"monitoring": {"serviceMonitors": {"enabled": True}}},
}
"""Values for which other tests count the servers differently, or which change one thing alone."""
OPERATORS = {"PodMonitor", "PrometheusRule", "ServiceMonitor"}
"""Kinds of the Prometheus operator, of which Kubernetes has no schema."""


def tool(name: str) -> str:
    """A program beside this interpreter, or on the PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} is not there: sh deploy/bootstrap/linters.sh .venv/bin"
    return found


def run(*command: str) -> str:
    """Run a linter; its output if it is content."""
    environment = {name: value for name, value in os.environ.items() if name[:8] != "MAGNETAR"}
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
        cwd=DEPLOY,
    )
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0, output
    return output


def test_hadolint_is_content_with_the_dockerfile() -> None:
    assert run(tool("hadolint"), str(DOCKERFILE)).strip() == ""


@pytest.mark.parametrize("path", [COMPOSE, COMPOSE_STANDALONE], ids=lambda path: path.name)
def test_docker_compose_reads_the_file(path: Path) -> None:
    command = (tool("docker-compose"), "--file", str(path), "config", "--format", "json")
    # Warnings go to stderr, for instance of variables that are not set.
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert set(json.loads(ended.stdout)["services"]) == set(read_yaml(path)["services"])


def test_yamllint_is_content() -> None:
    run(tool("yamllint"), "--strict", "--config-file", ".yamllint.yaml", ".")


def test_promtool_is_content_with_configuration_and_rules() -> None:
    promtool = tool("promtool")
    run(promtool, "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))
    run(promtool, "check", "rules", "--lint-fatal", str(RULES))


def test_each_alert_fires_when_it_should_and_only_then() -> None:
    run(tool("promtool"), "test", "rules", *map(str, ALERT_TESTS))


def test_prometheus_understands_every_query_of_the_dashboards(tmp_path: Path) -> None:
    queries = [query for queries in dashboard_queries().values() for query in queries]
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$\w+", "x", query)}
        for number, query in enumerate(queries)
    ]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run(tool("promtool"), "check", "rules", str(path))


@pytest.mark.parametrize("name", [*(f"magnetar-{server}" for server in SERVERS), "zookeeper"])
def test_systemd_is_content_with_the_unit(name: str, tmp_path: Path) -> None:
    text = (SYSTEMD / f"{name}.service").read_text()
    # The program must be there; where it really lies is a matter of the installation.
    program = re.search(r"^ExecStart=(\S+)", text, re.MULTILINE)
    assert program
    unit = tmp_path / f"{name}.service"
    unit.write_text(text.replace(f"ExecStart={program[1]}", "ExecStart=/bin/true"))
    analyze = tool("systemd-analyze")
    assert run(analyze, "verify", "--man=no", str(unit)).strip() == ""
    exposure = run(analyze, "security", "--offline=true", "--threshold=20", str(unit))
    assert "OK" in exposure.splitlines()[-1]


@pytest.mark.parametrize("variant", VARIANTS | OTHERS)
def test_helm_is_content_with_the_chart(variant: str) -> None:
    values = (VARIANTS | OTHERS)[variant]
    report = lint(CHART, values, strict=True, kube_version="v1.31.0")
    serious = [each for each in report["messages"] if each["severity"] > 1]
    assert (serious, report["errors"]) == ([], [])


def rendered(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The objects that the chart makes of these values."""
    with Chart.load(CHART) as chart:
        for name, text in chart.render(values, name="test", namespace="mq").items():
            if not name.endswith("NOTES.txt"):
                yield from (each for each in yaml.safe_load_all(text) if each)


@functools.cache
def objects_of(variant: str) -> list[dict[str, Any]]:
    """Made when a test first asks: most workers of a parallel run never do."""
    return list(rendered((VARIANTS | OTHERS)[variant]))


@pytest.mark.parametrize("variant", VARIANTS | OTHERS)
@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_kubernetes_takes_what_the_chart_makes(version: str, variant: str) -> None:
    for each in objects_of(variant):
        if each["kind"] not in OPERATORS:
            kubernetes_validate.validate(each, version, strict=True)


def test_each_option_of_the_chart_makes_what_it_says() -> None:
    plain = [each["kind"] for each in objects_of("as it stands")]
    assert plain.count("StatefulSet") == 3
    assert plain.count("Deployment") == 1
    assert plain.count("PodDisruptionBudget") == 4
    assert plain.count("NetworkPolicy") == 2
    assert not OPERATORS & set(plain)
    everything = [each["kind"] for each in objects_of("everything on")]
    assert everything.count("PodMonitor") == 4
    assert everything.count("PrometheusRule") == 1
    (rules,) = (each for each in objects_of("everything on") if each["kind"] == "PrometheusRule")
    assert rules["spec"] == read_yaml(RULES)
    (pages,) = (
        each
        for each in objects_of("everything on")
        if each["metadata"]["name"] == "test-magnetar-dashboards"
    )
    assert {name for name, text in pages["data"].items() if json.loads(text)} == set(
        dashboard_queries()
    )


def workloads(variant: str) -> dict[str, dict[str, Any]]:
    """The StatefulSets and Deployments, by their part."""
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each
        for each in objects_of(variant)
        if each["kind"] in {"StatefulSet", "Deployment"}
    }


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    """What a container's process finds in its environment, references resolved."""
    found = {"POD_NAME": "pod-0", "NODE_NAME": "node-1"}
    for each in container["env"]:
        value = each.get("value", found.get(each["name"], "from-elsewhere"))
        found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], value)
    return found


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("server", SERVERS)
def test_servers_of_the_chart_know_their_commands_variables_and_settings(
    server: str, variant: str, tmp_path: Path
) -> None:
    (container,) = workloads(variant)[server]["spec"]["template"]["spec"]["containers"]
    command, *options = container["args"]
    assert command == server
    assert {each for each in options if each.startswith("--")} <= options_of(commands()[server])
    environment = environment_of(container)
    assert check_environment(server, environment) == []
    parse_zookeeper_url(environment[f"MAGNETAR_{server.upper()}_METADATA"])
    (settings,) = (
        each
        for each in objects_of(variant)
        if each["kind"] == "ConfigMap" and each["metadata"]["name"].endswith("-settings")
    )
    (name,) = settings["data"]
    assert options == ["--config", f"/etc/magnetar/{name}"]
    path = tmp_path / name
    path.write_text(settings["data"][name])
    tables = read_config_file(path)
    assert tables["auditor"]["lost_bookie_recovery_delay_s"] == 900
    for component, model in COMPONENTS.items():
        options_given = {"data_directory": "/data"} if component == "bookie" else {}
        component_settings(model, component, tables=tables, environment={}, options=options_given)


@pytest.mark.parametrize("variant", VARIANTS)
def test_bookies_ask_for_a_secret_that_all_who_use_them_mount(variant: str) -> None:
    made = [each for each in objects_of(variant) if each["kind"] == "Secret"]
    own = VARIANTS[variant].get("sharedSecret", {}).get("existingSecret")
    if own:
        assert made == []
    else:
        (secret,) = made
        own = secret["metadata"]["name"]
        parse_secrets(base64.b64decode(secret["data"]["shared-secret"]), where="the chart's")
    for server in SERVERS:
        pod = workloads(variant)[server]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        environment = environment_of(container)
        path, settings = servers_secret(server, environment)
        is_optional = variant == "a secret comes in"
        assert settings.shared_secret_optional is is_optional
        is_open = environment.get("MAGNETAR_BOOKIE_INSECURE") == "true"
        assert is_open is (is_optional and server == "bookie")
        others = {"keys", "auth", "tls"}
        (volume,) = (
            each for each in pod["volumes"] if "secret" in each and each["name"] not in others
        )
        assert volume["secret"]["secretName"] == own
        assert volume["secret"]["defaultMode"] == 0o440
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == volume["name"])
        assert path == f"{mount['mountPath']}/shared-secret"


@pytest.mark.parametrize("variant", VARIANTS)
def test_brokers_serve_everybody_only_where_no_authentication_is_configured(variant: str) -> None:
    pod = workloads(variant)["broker"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    is_open = environment_of(container).get("MAGNETAR_BROKER_INSECURE") == "true"
    assert is_open is (variant not in AUTHENTICATING)


def test_tokens_and_tls_reach_the_brokers_from_their_secrets() -> None:
    pod = workloads("tokens and TLS")["broker"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = environment_of(container)
    settings = component_settings(
        BrokerSettings, "broker", tables={}, environment=environment, options={}
    )
    assert settings.authorization
    assert settings.has_authentication
    assert settings.super_users == ("boss", "broker")
    assert (settings.tls_port, settings.https_port) == (6651, 8443)
    assert settings.broker_client_tls
    assert settings.http_names == "mq.example.com"
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    secrets = {
        mounts[each["name"]]: each["secret"]["secretName"]
        for each in pod["volumes"]
        if "secret" in each
    }
    assert secrets["/etc/magnetar-auth"] == "tokens"
    assert secrets["/etc/magnetar-tls"] == "certificate"
    files = [
        settings.token_public_key,
        settings.broker_client_token.get_secret_value(),
        settings.tls_certificate_file,
        settings.tls_key_file,
        settings.broker_client_tls_ca_file,
    ]
    folders = [each.removeprefix("file://").rpartition("/")[0] for each in files]
    assert folders == ["/etc/magnetar-auth"] * 2 + ["/etc/magnetar-tls"] * 3
    (container,) = workloads("one key signs and checks")["broker"]["spec"]["template"]["spec"][
        "containers"
    ]
    environment = environment_of(container)
    assert environment["MAGNETAR_BROKER_TOKEN_SECRET_KEY"] == "file:///etc/magnetar-auth/secret-key"
    assert "MAGNETAR_BROKER_TOKEN_PUBLIC_KEY" not in environment


def test_what_reaches_brokers_from_outside_and_beside_them() -> None:
    objects = objects_of("tokens and TLS")
    (ingress,) = (each for each in objects if each["kind"] == "Ingress")
    (rule,) = ingress["spec"]["rules"]
    assert rule["host"] == "mq.example.com"
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": "test-magnetar-broker", "port": {"name": "http"}}
    assert ingress["spec"]["tls"][0]["secretName"] == "mq-example-com"
    (account,) = (each for each in objects if each["kind"] == "ServiceAccount")
    assert account["metadata"]["annotations"] == {"iam/role": "none"}
    for part, workload in workloads("tokens and TLS").items():
        metadata = workload["spec"]["template"]["metadata"]
        assert (metadata["annotations"]["team"], metadata["labels"]["cost"]) == ("mq", part)
        assert "cost" not in workload["spec"]["selector"]["matchLabels"]
    shown = {
        each["metadata"]["name"]: each["spec"]["podMetricsEndpoints"][0].get("authorization")
        for each in objects
        if each["kind"] == "PodMonitor"
    }
    token = {"credentials": {"name": "tokens", "key": "broker-token"}}
    assert shown.pop("test-magnetar-broker") == token
    assert set(shown.values()) == {None}
    assert not [each for each in objects_of("as it stands") if each["kind"] == "Ingress"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"auth": {"enabled": True}}, "auth.secret is required"),
        ({"tls": {"enabled": True}}, "tls.secret is required"),
        ({"ingress": {"enabled": True}}, "ingress.host is required"),
        ({"backup": {"enabled": True}}, "backup.claim is required"),
        (
            {"backup": {"enabled": True, "claim": "c"}, "standalone": {"enabled": True}},
            "back up an ensemble of your own",
        ),
        (
            {
                "monitoring": {
                    "podMonitors": {"enabled": True},
                    "serviceMonitors": {"enabled": True},
                }
            },
            "would scrape each server twice",
        ),
    ],
)
def test_half_of_what_is_needed_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(HelmError, match=words):
        list(rendered(values))


def test_one_server_takes_the_place_of_all_others_and_is_reached_as_they_are(
    tmp_path: Path,
) -> None:
    for variant, is_open in (("standalone", False), ("standalone for everybody", True)):
        objects = objects_of(variant)
        ((part, workload),) = workloads(variant).items()
        pod = workload["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert (part, container["args"][0]) == ("broker", "standalone")
        assert set(container["args"][1:]) & options_of(commands()["standalone"]) == {"--config"}
        environment = environment_of(container)
        assert check_environment("standalone", environment) == []
        assert (environment.get("MAGNETAR_STANDALONE_INSECURE") == "true") is is_open
        (claim,) = workload["spec"]["volumeClaimTemplates"]
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        data = environment["MAGNETAR_STANDALONE_DATA"]
        assert data.startswith(mounts[claim["metadata"]["name"]] + "/")
        kinds = {each["kind"] for each in objects}
        assert not kinds & {"Deployment", "PodDisruptionBudget", "Secret"}
        labels = workload["spec"]["template"]["metadata"]["labels"]
        for each in objects:
            if each["kind"] == "Service":
                selector = dict(each["spec"]["selector"])
                pod_name = selector.pop("statefulset.kubernetes.io/pod-name", None)
                assert pod_name in {None, f"{workload['metadata']['name']}-0"}
                assert selector.items() <= labels.items()
        (settings,) = (each for each in objects if each["metadata"]["name"].endswith("-settings"))
        path = tmp_path / "magnetar.toml"
        path.write_text(settings["data"]["magnetar.toml"])
        read_config_file(path)
    (monitor,) = (each for each in objects_of("standalone") if each["kind"] == "ServiceMonitor")
    assert monitor["spec"]["endpoints"][0]["authorization"]["credentials"]["name"] == "tokens"


def test_the_one_server_starts_with_what_the_chart_tells_it(tmp_path: Path) -> None:
    pod = workloads("standalone for everybody")["broker"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (settings,) = (
        each
        for each in objects_of("standalone for everybody")
        if each["metadata"]["name"].endswith("-settings")
    )
    path = tmp_path / "magnetar.toml"
    path.write_text(settings["data"]["magnetar.toml"])
    port, http_port = map(str, free_ports(2))
    here = {
        "MAGNETAR_STANDALONE_DATA": str(tmp_path / "data"),
        "MAGNETAR_STANDALONE_ADVERTISED_HOST": HOST,
        "MAGNETAR_STANDALONE_PORT": port,
        "MAGNETAR_STANDALONE_HTTP_PORT": http_port,
    }
    command, *options = container["args"]
    arguments = [str(path) if each.endswith(".toml") else each for each in options]
    server = ServerProcess(
        magnetar_command(command, *arguments),
        log_path=tmp_path / "log",
        is_ready=is_ready_line,
        environment={**magnetar_environment(), **environment_of(container), **here},
    )
    try:
        server.wait_ready(READY_TIMEOUT_S)
        assert server.ready_line.split()[1:] == [
            f"pulsar://{HOST}:{port}",
            f"http://{HOST}:{http_port}",
        ]
        assert "environment_variable_unknown" not in (tmp_path / "log").read_text()
    finally:
        server.kill()


def test_an_upgrade_in_steps_replaces_bookies_then_auto_recovery_then_brokers() -> None:
    def held(variant: str) -> set[str]:
        """The parts that keep their version."""
        found = set()
        for part, each in workloads(variant).items():
            spec = each["spec"]
            strategy = spec.get("updateStrategy", {}).get("rollingUpdate", {})
            if spec.get("paused") or strategy.get("partition", 0) >= spec["replicas"]:
                found.add(part)
        return found

    assert held("bookies first") == {"autorecovery", "broker"}
    assert held("then auto-recovery") == {"broker"}
    assert held("as it stands") == set()


def test_backups_read_the_disks_of_the_first_server_on_its_node() -> None:
    objects = objects_of("backup")
    (cron,) = (each for each in objects if each["kind"] == "CronJob")
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    claims = {
        each["name"]: each["persistentVolumeClaim"]["claimName"]
        for each in pod["volumes"]
        if "persistentVolumeClaim" in each
    }
    server = workloads("backup")["zookeeper"]
    name = f"{server['metadata']['name']}-0"
    templates = [each["metadata"]["name"] for each in server["spec"]["volumeClaimTemplates"]]
    assert claims == {"backup": "archives"} | {each: f"{each}-{name}" for each in templates}
    (near,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = dict(near["labelSelector"]["matchLabels"])
    assert labels.pop("statefulset.kubernetes.io/pod-name") == name
    assert labels.items() <= server["spec"]["template"]["metadata"]["labels"].items()
    (container,) = pod["containers"]
    (of_server,) = server["spec"]["template"]["spec"]["containers"]
    assert container["image"] == of_server["image"]
    assert pod["securityContext"] == server["spec"]["template"]["spec"]["securityContext"]
    for each in container["volumeMounts"]:
        assert each.get("readOnly", False) is (each["name"] not in {"backup", "tmp"})
    (script,) = (
        each
        for each in objects
        if each["kind"] == "ConfigMap" and each["metadata"]["name"].endswith("-backup")
    )
    assert script["data"]["backup.sh"] == (DEPLOY / "zookeeper" / "backup.sh").read_text()


def test_backups_ask_the_first_server_and_leave_nothing_behind_that_still_runs() -> None:
    objects = objects_of("backup")
    (cron,) = (each for each in objects if each["kind"] == "CronJob")
    job = cron["spec"]["jobTemplate"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    command = container["command"][-1].split()
    assert command[command.index("--keep-days") + 1] == "3"
    assert command[command.index("--timeout-s") + 1] == "7"
    (zoo_cfg,) = (
        each["data"]["zoo.cfg"]
        for each in objects
        if each["kind"] == "ConfigMap" and "zoo.cfg" in each["data"]
    )
    (first,) = re.findall(r"^server\.1=([^:]+):.*;(\d+)$", zoo_cfg, re.MULTILINE)
    assert command[command.index("--server") + 1] == ":".join(first)
    assert "srvr" in zookeeper_settings(zoo_cfg)["4lw.commands.whitelist"].split(",")
    # No two at a time, and none lives as long as what backup.sh removes of those before.
    assert cron["spec"]["concurrencyPolicy"] == "Forbid"
    script = (DEPLOY / "zookeeper" / "backup.sh").read_text()
    (leftover_minutes,) = re.findall(r"-mmin \+(\d+)", script)
    assert job["activeDeadlineSeconds"] <= 60 * int(leftover_minutes)
    # Its pods may talk to the server: labels of this release, which the network policy lets in.
    labels = job["template"]["metadata"]["labels"]
    (inside,) = (
        each
        for each in objects
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"].endswith("-inside")
    )
    peers = inside["spec"]["ingress"][0]["from"]
    assert any(each["podSelector"]["matchLabels"].items() <= labels.items() for each in peers)


def test_service_monitors_select_one_service_of_each_part() -> None:
    objects = objects_of("service monitors")
    monitors = [each for each in objects if each["kind"] == "ServiceMonitor"]
    assert len(monitors) == 4
    for each in monitors:
        wanted = each["spec"]["selector"]["matchLabels"].items()
        (service,) = (
            one
            for one in objects
            if one["kind"] == "Service" and wanted <= one["metadata"]["labels"].items()
        )
        (endpoint,) = each["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_each_installation_has_a_secret_of_its_own() -> None:
    secrets = {
        each["data"]["shared-secret"]
        for objects in map(objects_of, VARIANTS)
        for each in objects
        if each["kind"] == "Secret"
    }
    assert len(secrets) == len(VARIANTS) - 1, "all but the one that names a secret of its own"


@pytest.mark.parametrize("variant", VARIANTS)
def test_pods_are_confined_and_watched(variant: str) -> None:
    for part, workload in workloads(variant).items():
        pod = workload["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False, part
        assert pod["securityContext"]["runAsNonRoot"] is True, part
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, part
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, part
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["timeoutSeconds"] > 1, part
        assert container["resources"]["limits"]["memory"], part
        mounted = {each["name"] for each in container["volumeMounts"]}
        claimed = {
            each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])
        }
        assert mounted == claimed | {each["name"] for each in pod["volumes"]}, part


def test_brokers_are_reached_over_tls_where_settings_say_so() -> None:
    (policy,) = (
        each
        for each in objects_of("everything on")
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"].endswith("-broker")
    )
    open_ports = {
        port["port"] for rule in policy["spec"]["ingress"] for port in rule.get("ports", ())
    }
    (entrance,) = (
        each
        for each in objects_of("everything on")
        if each["metadata"]["name"] == "test-magnetar-broker" and each["kind"] == "Service"
    )
    ports = {port["targetPort"]: port["port"] for port in entrance["spec"]["ports"]}
    assert ports == {"pulsar": 6650, "http": 8080, "pulsar-tls": 6651, "https": 8443}
    assert open_ports == ports.keys()


def test_ports_that_are_named_are_there() -> None:
    for each in objects_of("everything on"):
        if each["kind"] != "Service":
            continue
        part = each["spec"]["selector"]["app.kubernetes.io/component"]
        workload = workloads("everything on")[part]
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        named = {port["name"]: port["containerPort"] for port in container["ports"]}
        for port in each["spec"]["ports"]:
            assert named[port["targetPort"]] == port["port"]
        labels = workload["spec"]["template"]["metadata"]["labels"]
        selector = dict(each["spec"]["selector"])
        selector.pop("statefulset.kubernetes.io/pod-name", None)
        assert selector.items() <= labels.items()


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"broker": {"quorum": "three"}}, "quorum"),
        ({"broker": {"external": {"enabled": True}}}, "sourceRanges"),
        ({"zookeeper": {"replicas": 2}}, "replicas"),
        ({"bookies": 3}, "bookies"),
        ({"zookeeper": {"enabled": False}}, "metadata.url"),
    ],
    ids=["quorum", "external without ranges", "even ensemble", "unknown value", "no ensemble"],
)
def test_wrong_values_are_refused(values: dict[str, Any], word: str) -> None:
    with pytest.raises(HelmError, match=word):
        checked_and_rendered(values)


def checked_and_rendered(values: dict[str, Any]) -> None:
    with Chart.load(CHART) as chart:
        chart.validate_schema(chart.merge_values(values))
        chart.render(values, name="test", namespace="mq")
