"""The production example of ZooKeeper fits what brokers and bookies ask for."""

import re

from magnetar.cursors.settings import CursorSettings
from magnetar.ledger.metadata.settings import MetadataSettings
from tests.artifacts import CHART, DEPLOY, zookeeper_settings

FOLDER = DEPLOY / "zookeeper"
SETTINGS = zookeeper_settings((FOLDER / "zoo.cfg").read_text())


def test_every_session_that_may_be_asked_for_is_granted() -> None:
    tick_ms = int(SETTINGS["tickTime"])
    asked = MetadataSettings.model_fields["session_timeout_ms"]
    (longest,) = (each.le for each in asked.metadata if hasattr(each, "le"))
    assert 2 * tick_ms <= asked.default <= 20 * tick_ms
    assert longest <= 20 * tick_ms


def test_the_transaction_log_has_a_place_of_its_own() -> None:
    assert SETTINGS["dataLogDir"] != SETTINGS["dataDir"]
    assert not SETTINGS["dataLogDir"].startswith(SETTINGS["dataDir"] + "/")


def test_old_snapshots_are_purged() -> None:
    assert int(SETTINGS["autopurge.purgeInterval"]) > 0
    assert int(SETTINGS["autopurge.snapRetainCount"]) >= 3


def test_probes_and_monitoring_may_ask_what_they_need_and_no_more() -> None:
    assert set(SETTINGS["4lw.commands.whitelist"].split(",")) == {
        *("srvr", "ruok", "mntr", "conf", "stat")
    }
    assert SETTINGS["admin.enableServer"] == "false"


def test_the_ensemble_is_odd() -> None:
    assert len([name for name in SETTINGS if name.startswith("server.")]) % 2 == 1


def test_a_value_that_a_server_takes_is_larger_than_any_that_is_written() -> None:
    (bytes_max,) = set(re.findall(r"-Djute\.maxbuffer=(\d+)", (FOLDER / "java.env").read_text()))
    assert int(bytes_max) > CursorSettings.model_fields["node_bytes_max"].default * 2


def test_the_chart_sets_it_up_the_same_way() -> None:
    template = (CHART / "templates" / "zookeeper" / "configmap.yaml").read_text()
    block = template.split("zoo.cfg: |")[1]
    lines = "\n".join(line for line in block.splitlines() if "{{" not in line)
    chart = zookeeper_settings(lines)
    # Only there a pod's own name does not resolve at first.
    assert chart.pop("quorumListenOnAllIPs") == "true"
    places = {"dataDir", "dataLogDir"}
    assert {name: chart[name] for name in chart if name not in places} == {
        name: SETTINGS[name]
        for name in SETTINGS
        if name not in places and not name.startswith("server.")
    }


def test_each_setting_has_its_reason() -> None:
    text = (FOLDER / "zoo.cfg").read_text()
    unexplained = [
        line
        for before, line in zip(["", *text.splitlines()], text.splitlines(), strict=False)
        if "=" in line and not line.startswith(("#", "server.", "metricsProvider")) and not before
    ]
    assert unexplained == []
