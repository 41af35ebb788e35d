import json

import pytest
from typer.testing import CliRunner

from magnetar.deploy import admin_client
from magnetar.deploy.cli import app
from magnetar.deploy.errors import SettingsError
from magnetar.deploy.policy_rows import FILE, Row, names_of, part_of, value_of
from tests import policy_rows


def test_the_file_has_the_rows_of_the_brokers_table() -> None:
    assert FILE.read_text() == policy_rows.text(), "run python -m tests.policy_rows"


def test_numbers_have_the_units_of_their_fields() -> None:
    units = {name: row.unit for name, row in names_of("namespace").items() if row.unit}
    assert units["message-ttl"] == units["offload-threshold-in-seconds"] == "s"
    assert units["subscription-expiration-time"] == "min"
    assert units["compaction-threshold"] == "bytes"
    assert units["offload-deletion-lag-ms"] == "ms"
    assert names_of("topic")["max-message-size"].unit == "bytes"
    assert "max-producers-per-topic" not in units


@pytest.mark.parametrize(
    ("row", "text", "wanted"),
    [
        (Row(unit="s"), "1h", 3600),
        (Row(unit="s"), "60", 60),
        (Row(unit="min"), "3d", 4320),
        (Row(unit="bytes"), "10G", 10 << 30),
        (Row(unit="bytes"), "-1", -1),
        (Row(), "true", True),
        (Row(), '["east"]', ["east"]),
    ],
)
def test_a_value_has_a_unit_or_is_json(row: Row, text: str, wanted: object) -> None:
    assert value_of(row, text) == wanted


@pytest.mark.parametrize(
    ("row", "text", "said"),
    [
        (Row(unit="s"), "soon", "a duration"),
        (Row(unit="min"), "90s", "a duration"),
        (Row(unit="bytes"), "many", "a size"),
        (Row(), "1h", "give JSON"),
    ],
)
def test_another_value_is_refused_with_the_forms_there_are(row: Row, text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        value_of(row, text)


def test_parts_have_the_units_of_their_fields() -> None:
    row = names_of("namespace")["retention"]
    time, size = row.parts
    assert (part_of(time, "3d"), part_of(size, "10G")) == (4320, 10 << 10)
    assert (part_of(time, "-1"), part_of(size, "0")) == (-1, 0)
    for wrong in ("60", "1x", "10G"):
        with pytest.raises(SettingsError, match="--time"):
            part_of(time, wrong)


class Brokers:
    """Stands in for the brokers: remembers the requests."""

    sent: list[tuple[str, str, object, object]] = []

    def __init__(self, _url: str) -> None:
        pass

    def change(self, method: str, path: str, query: object = None, body: object = None) -> None:
        self.sent.append((method, path, query, body))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, object, object]]:
    monkeypatch.setattr(admin_client, "AdminClient", Brokers)
    monkeypatch.setattr(Brokers, "sent", [])
    return Brokers.sent


NAMESPACE = "/admin/v2/namespaces/public/default"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "set-retention public/default --time 3d --size 10G",
            (
                "POST",
                f"{NAMESPACE}/retention",
                {},
                {"retentionTimeInMinutes": 4320, "retentionSizeInMB": 10240},
            ),
        ),
        (
            "set-backlog-quota public/default --limit 1G --policy producer_exception",
            (
                "POST",
                f"{NAMESPACE}/backlogQuota",
                {"backlogQuotaType": "destination_storage"},
                {"limitSize": 1 << 30, "limitTime": -1, "policy": "producer_exception"},
            ),
        ),
        ("set-message-ttl public/default 1h", ("POST", f"{NAMESPACE}/messageTTL", {}, 3600)),
        (
            "set-inactive-topic-policies public/default --delete false",
            (
                "POST",
                f"{NAMESPACE}/inactiveTopicPolicies",
                {},
                {
                    "deleteWhileInactive": False,
                    "maxInactiveDurationSeconds": 60,
                    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
                },
            ),
        ),
    ],
)
def test_policies_are_set_by_options_with_units(
    line: str,
    wanted: tuple[str, str, object, object],
    sent: list[tuple[str, str, object, object]],
) -> None:
    ended = CliRunner().invoke(app, ["admin", "namespaces", *line.split()])
    assert ended.exit_code == 0, ended.output
    assert sent == [wanted]


@pytest.mark.parametrize(
    "line",
    [
        "set-retention public/default",
        "set-retention public/default --time 3d",
        'set-retention public/default {"retentionTimeInMinutes":1} --time 3d --size 1G',
        "set-message-ttl public/default soon",
    ],
)
def test_half_a_policy_is_not_sent(line: str, sent: list[tuple[str, str, object, object]]) -> None:
    ended = CliRunner().invoke(app, ["admin", "namespaces", *line.split()])
    assert isinstance(ended.exception, SettingsError)
    assert sent == []


@pytest.mark.parametrize("group", ["namespaces", "topicPolicies"])
def test_the_help_of_a_group_names_each_policy_once(group: str) -> None:
    shown = CliRunner().invoke(app, ["admin", group, "--help"]).output
    assert shown.count("max-consumers-per-subscription") == 1
    assert len(shown.splitlines()) < 100
    completion = CliRunner().invoke(
        app,
        [],
        prog_name="magnetar",
        env={
            "_MAGNETAR_COMPLETE": "complete_bash",
            "COMP_WORDS": f"magnetar admin {group} set-max-c",
            "COMP_CWORD": "3",
        },
    )
    assert "set-max-consumers" in completion.output


def test_values_that_are_json_go_as_they_are(
    sent: list[tuple[str, str, object, object]],
) -> None:
    rate = {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}
    line = ["admin", "namespaces", "set-publish-rate", "public/default", json.dumps(rate)]
    assert CliRunner().invoke(app, line).exit_code == 0
    assert sent[0][3] == rate
