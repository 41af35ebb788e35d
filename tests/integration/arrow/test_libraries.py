"""pandas, polars and DuckDB read topics; the examples of the page are what they do it with."""

import re
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pulsar
import pytest

from magnetar.arrow import read, scan
from tests.integration.arrow.support import at_bookies, keep_topics
from tests.integration.pulsar_client.support import publish_to
from tests.processes import ROOT
from tests.standalone import Standalone

PAGE = ROOT / "docs" / "arrow.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def filled(client: pulsar.Client, topic: str) -> str:
    publish_to(client, topic, [(f"k{number % 3}", b"%d" % number) for number in range(1_000)])
    return topic


def test_pandas_reads_it(server: Standalone, filled: str) -> None:
    frame = read(filled, **at_bookies(server)).read_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame["value"].tolist() == [b"%d" % number for number in range(1_000)]
    assert str(frame["__publishTime"].dtype) == "datetime64[us, UTC]"


def test_polars_reads_it(server: Standalone, filled: str) -> None:
    described = scan(filled, **at_bookies(server))
    for frame in (pl.DataFrame(described), pl.DataFrame(read(filled, **at_bookies(server)))):
        assert frame["value"].to_list() == [b"%d" % number for number in range(1_000)]
        assert frame["__publishTime"].dtype == pl.Datetime("us", "UTC")
        assert frame["__key"].n_unique() == 3


def test_duckdb_reads_it(server: Standalone, filled: str) -> None:
    messages = read(filled, **at_bookies(server))
    found = duckdb.sql("SELECT __key, count(*) FROM messages GROUP BY ALL ORDER BY ALL").fetchall()
    assert found == [(b"k0", 334), (b"k1", 333), (b"k2", 333)]
    assert messages is not None


@pytest.fixture(scope="module")
def on_the_page(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The ports are those that the page names, by other numbers."""
    with Standalone(tmp_path_factory.mktemp("arrow-page") / "data") as server:
        keep_topics(server)
        yield server
        server.assert_log_clean()


def test_the_examples_of_the_page_run(
    on_the_page: Standalone, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    assert len(EXAMPLES) >= 5
    for example in EXAMPLES:
        code = example.replace("127.0.0.1:6650", f"127.0.0.1:{on_the_page.port}").replace(
            "127.0.0.1:8080", f"127.0.0.1:{on_the_page.http_port}"
        )
        code = code.replace("embedded:data/metadata.db", on_the_page.metadata_url)
        exec(compile(code, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    expected = re.findall(r"# prints (.*)", PAGE.read_text())
    assert expected
    for line in expected:
        assert line in printed
