"""What happens in which order, and the verdict."""

import random
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.chaos.pipeline.archives import Row, last_batch, read_rows, state_of
from tests.chaos.pipeline.expected import differences, rollup_by_pandas, rows_of_rollup
from tests.chaos.pipeline.jobs import Job, run_job
from tests.chaos.pipeline.publishing import flight_rows, publish_end, publish_rows, weather_rows
from tests.flights import weather_lines
from tests.http_calls import follow, topic_path
from tests.real_cluster import RealCluster
from tests.waiting import wait_until

PROGRESS_TIMEOUT_S = 900.0
START_TIMEOUT_S = 600.0
_PAUSE_S_MAX = 3.0
_OWN_ENDS_MAX = 5
_TOPIC = "persistent://public/default/flights"
_AGAIN = "persistent://public/default/flights-again"
_WEATHER = "persistent://public/default/weather"
_ENVIRONMENT = {
    "MAGNETAR_BROKER_DEDUPLICATION": "true",
    "MAGNETAR_BROKER_RETENTION_MINUTES": "-1",
    "MAGNETAR_BROKER_RETENTION_MIB": "-1",
    "MAGNETAR_METADATA_SESSION_TIMEOUT_MS": "20000",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How hard it is."""

    seed: int
    flights: int
    driver_kills: int = 5
    batches: int = 30
    """Micro-batches that the archive takes at least, so that there is something to interrupt."""


@dataclass(slots=True)
class _Story:
    """What has happened so far."""

    started_s: float = field(default_factory=time.monotonic)
    kills: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    own_ends: int = 0
    """How often the job ended by itself."""
    seconds: dict[str, float] = field(default_factory=dict)

    def tell(self, what: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self.started_s:7.1f} s  {what}\n")
        sys.stderr.flush()


def run(plan: Plan, directory: Path) -> dict[str, Any]:
    """Play it; the result is what is printed."""
    story = _Story()
    chance = random.Random(plan.seed)
    rows = flight_rows(plan.flights)
    with RealCluster(
        directory / "cluster", bookies=3, brokers=2, quorum="3,3,2", environment=_ENVIRONMENT
    ) as cluster:
        _Drill(plan, directory, cluster, chance, story, rows).play()
    return {
        "ok": not story.problems,
        "flights": len(rows),
        "kills": story.kills,
        "own_ends": story.own_ends,
        "problems": story.problems,
        "seconds": {name: round(value, 1) for name, value in story.seconds.items()},
        "seed": plan.seed,
    }


class _Drill:
    def __init__(
        self,
        plan: Plan,
        directory: Path,
        cluster: RealCluster,
        chance: random.Random,
        story: _Story,
        rows: list[Row],
    ) -> None:
        self._plan, self._directory, self._cluster = plan, directory, cluster
        self._chance, self._story, self._rows = chance, story, rows
        self._client_log = str(directory / "client.log")
        self._brokers = [
            *("--service-url", cluster.service_url),
            *("--admin-url", ",".join(cluster.http_url(f"broker-{n}") for n in (1, 2))),
        ]
        self._source = [*self._brokers, "--metadata-url", cluster.metadata_url]

    def play(self) -> None:
        self._timed("archive", self._archive_under_fire)
        self._check("first archive", self._directory / "first")
        self._timed("replay", self._replay)
        again = ["--topics", _AGAIN, "--output", str(self._directory / "second")]
        self._timed(
            "second archive", lambda: run_job("archive", [*self._source, *again], self._directory)
        )
        self._check("second archive", self._directory / "second")
        self._timed("rollup", self._roll_up)

    def _archive_under_fire(self) -> None:
        failures: list[BaseException] = []

        def publish() -> None:
            try:
                publish_rows(self._cluster.service_url, _TOPIC, self._rows, self._client_log)
            except BaseException as error:  # noqa: BLE001  # becomes a part of the verdict
                failures.append(error)

        # The job looks for the topic at its start.
        publish_rows(self._cluster.service_url, _TOPIC, self._rows[:0], self._client_log)
        publishing = threading.Thread(target=publish)
        publishing.start()
        entries = max(1, len(self._rows) // 100 // self._plan.batches)
        arguments = [
            *self._source,
            *("--topics", _TOPIC, "--output", str(self._directory / "first")),
            *("--entries-max", str(entries)),
        ]
        struck = ["driver"] * self._plan.driver_kills
        for server in ("bookie", "broker"):
            struck.insert(self._chance.randrange(1, len(struck)), server)
        job = self._start_archive(arguments)
        try:
            for target in struck:
                job = self._strike(target, job, arguments)
            publishing.join()
            job.wait()
        finally:
            job.kill()
        run_job("archive", arguments, self._directory)
        if failures:
            self._story.problems.append(f"publishing failed: {failures[0]}")

    def _start_archive(self, arguments: list[str]) -> Job:
        return Job("archive", arguments, self._directory)

    def _strike(self, target: str, job: Job, arguments: list[str]) -> Job:
        """Wait until the job has got on, then a random while, and kill."""
        job = self._got_on(job, arguments)
        time.sleep(self._chance.uniform(0, _PAUSE_S_MAX))
        rows = state_of(self._directory / "first").rows
        name = target if target == "driver" else f"{target}-{self._chance.randint(1, 2)}"
        self._story.tell(f"kill -9 {name} with {rows} rows archived")
        self._story.kills.append(f"{name} at {rows} rows")
        if not job.is_running:
            self._story.problems.append(f"{name}: the job had ended when it was struck")
        if target == "driver":
            job.kill()
            return self._start_archive(arguments)
        self._cluster.kill(name)
        self._cluster.start(name, START_TIMEOUT_S)
        return job

    def _got_on(self, job: Job, arguments: list[str]) -> Job:
        """The job when one more batch is archived. One that has ended by itself is started again:
        Spark gives a Python process ten seconds to answer, whatever else the machine does."""
        before = last_batch(self._directory / "first")
        for _ in range(_OWN_ENDS_MAX):

            def has_got_on(job: Job = job) -> bool:
                return last_batch(self._directory / "first") > before or not job.is_running

            wait_until(has_got_on, "the archive gets on", within_s=PROGRESS_TIMEOUT_S)
            if last_batch(self._directory / "first") > before:
                return job
            self._story.tell("the job has ended by itself, and is started again")
            self._story.own_ends += 1
            job.kill()
            job = self._start_archive(arguments)
        return job

    def _replay(self) -> None:
        arguments = [
            *self._brokers,
            *("--archive", str(self._directory / "first"), "--to", _AGAIN, "--name", "drill"),
        ]
        with Job("replay", arguments, self._directory) as job:
            wait_until(
                lambda: self._stored(_AGAIN) > 0 or not job.is_running,
                "the replay gets on",
                within_s=PROGRESS_TIMEOUT_S,
            )
            self._story.kills.append(f"replay at {self._stored(_AGAIN)} rows")
            self._story.tell(f"kill -9 {self._story.kills[-1]}")
            job.kill()
        run_job("replay", arguments, self._directory)

    def _stored(self, topic: str) -> int:
        """Messages that a topic was given since its broker took it over; 0: no such topic yet."""
        url = self._cluster.http_url("broker-1")
        try:
            answer = follow(url, "GET", f"{topic_path(topic)}/stats")
        except OSError:
            return 0
        return int(answer.json["msgInCounter"]) if answer.status == 200 else 0

    def _roll_up(self) -> None:
        url = self._cluster.service_url
        publish_rows(url, _WEATHER, weather_rows(), self._client_log)
        publish_end(url, _AGAIN, self._rows[-1], self._client_log)
        publish_end(url, _WEATHER, weather_rows()[-1], self._client_log)
        output = self._directory / "rolled"
        arguments = ["--flights", _AGAIN, "--weather", _WEATHER, "--output", str(output)]
        plots = ["--plots", str(self._directory / "plots")]
        run_job("rollup", [*self._source, *arguments, *plots], self._directory)
        table = pq.read_table(output / "rollup")
        found = rows_of_rollup(
            zip(*(table[name].to_pylist() for name in table.column_names), strict=True)
        )
        lines = [value for value, *_ in self._rows if value is not None]
        expected = rollup_by_pandas(lines, weather_lines())
        self._story.tell(f"rollup: {len(found)} rows, {len(expected)} by pandas")
        self._story.problems += [f"rollup: {each}" for each in differences(found, expected)]

    def _check(self, name: str, directory: Path) -> None:
        """Every row, in order, once."""
        found = read_rows(directory)
        self._story.tell(f"{name}: {len(found.rows)} rows of {len(self._rows)}")
        if len(set(found.ids)) != len(found.ids):
            self._story.problems.append(f"{name}: a message is there twice")
        if len(found.rows) != len(self._rows):
            self._story.problems.append(f"{name}: {len(found.rows)} rows of {len(self._rows)}")
            return
        for number, (row, right) in enumerate(zip(found.rows, self._rows, strict=True)):
            if row != right:
                self._story.problems.append(f"{name}: row {number} is {row} instead of {right}")
                return

    def _timed(self, name: str, step: Any) -> None:
        begun_s = time.monotonic()
        self._story.tell(f"{name} …")
        step()
        self._story.seconds[name] = time.monotonic() - begun_s
