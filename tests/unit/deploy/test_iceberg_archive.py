"""What the command line of the archive to Iceberg tables says, and how its job ends."""

import os
import signal
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from magnetar.deploy.cli_pipeline import pipeline
from magnetar.deploy.errors import MissingProgramError, SettingsError
from magnetar.deploy.iceberg_archive import IcebergJob, JobWorld, run

JOB = IcebergJob(
    catalog="sqlite:///catalog.db",
    catalog_properties=(),
    warehouse="",
    table="lake.t",
    topics="t",
    topics_pattern="",
    once=True,
    interval_s=60,
    batch_bytes=1 << 20,
    decodes=True,
    allows_loss=False,
    file_bytes=1 << 20,
    files_min=8,
    snapshot_age_s=3_600,
    service_url="pulsar://127.0.0.1:6650",
    admin_url="http://127.0.0.1:8080",
    metadata_url="",
)


def test_options_that_are_not_given_are_not_passed_on() -> None:
    assert JOB.source() == {
        "service.url": "pulsar://127.0.0.1:6650",
        "admin.url": "http://127.0.0.1:8080",
        "topics": "t",
        "authentication": "none",
    }
    assert JOB.properties() == {}


@pytest.mark.parametrize(
    "given",
    [
        ("--catalog", "sqlite:///catalog.db"),
        ("--catalog-property", "a=b"),
        ("--table", "lake.t"),
        ("--no-decode",),
        ("--allow-loss",),
        ("--batch-bytes", "1048576"),
        ("--snapshot-age-h", "0"),
    ],
    ids=lambda given: given[0],
)
def test_options_of_iceberg_archives_are_refused_for_parquet(given: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(pipeline, ["archive", "--output", "out", "--topics", "t", *given])
    assert isinstance(ended.exception, SettingsError)
    assert str(ended.exception) == f"{given[0]}: it is for --format iceberg only"


def test_properties_of_the_catalog_are_pairs() -> None:
    given = replace(JOB, warehouse="/lake", catalog_properties=("token=a=b", "x="))
    assert given.properties() == {"warehouse": "/lake", "token": "a=b", "x": ""}
    for wrong in ("token", "=x"):
        with pytest.raises(SettingsError, match="NAME=VALUE"):
            replace(JOB, catalog_properties=(wrong,)).properties()


@pytest.mark.parametrize("topics", [("", ""), ("a", "public/default/a.*")])
def test_topics_are_given_in_one_way(topics: tuple[str, str]) -> None:
    given, pattern = topics
    with pytest.raises(SettingsError, match="--topics-pattern"):
        replace(JOB, topics=given, topics_pattern=pattern).source()


def test_without_pyiceberg_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.deploy.iceberg_archive.find_spec", lambda _: None)
    with pytest.raises(MissingProgramError, match=r"pip install 'magnetar\[iceberg\]'"):
        run(JOB)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_job_and_leaves_other_handlers_as_they_were(
    number: signal.Signals,
) -> None:
    world, before = JobWorld(), signal.getsignal(number)
    with world.ended_by_signals():
        assert not world.is_ending()
        os.kill(os.getpid(), number)
        assert world.wait(10)
    assert world.is_ending()
    assert signal.getsignal(number) == before
