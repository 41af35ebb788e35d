"""docs/websocket.md: its examples run, and print what they say."""

import re

import pytest

from tests.processes import ROOT
from tests.standalone import Standalone

PAGE = ROOT / "docs" / "websocket.md"


def test_the_examples_of_the_page_run(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with Standalone(tmp_path_factory.mktemp("page") / "data") as server:
        for example in examples:
            code = example.replace("127.0.0.1:8080", f"127.0.0.1:{server.http_port}")
            assert code != example
            exec(compile(code, str(PAGE), "exec"), {})
        server.assert_log_clean()
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "ok",
        "b'hello' k",
        *[f"attempt {number}" for number in range(3)],
        "b'impossible' workers",
    ]
