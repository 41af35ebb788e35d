"""The README's examples, run as they stand there (but for the port)."""

import re
import sys
from pathlib import Path

import pytest

from tests.integration.deploy.commands import magnetar, run_command
from tests.processes import ROOT
from tests.standalone import Standalone


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)


@pytest.mark.parametrize("number", [0, 1], ids=["official-client", "sdk"])
def test_the_python_examples_run(tmp_path: Path, number: int) -> None:
    with Standalone(tmp_path / "data") as server:
        code = examples("python")[number].replace("pulsar://127.0.0.1:6650", server.url)
        ended = run_command([sys.executable, "-c", code])
        assert ended.status == 0, ended.stderr
        assert "Hello, world" in ended.stdout


def test_the_shell_examples_run(tmp_path: Path) -> None:
    (lines,) = [each for each in examples("sh") if "magnetar produce" in each]
    with Standalone(tmp_path / "data") as server:
        # The README produces first; a subscription "from earliest" then finds the message.
        for line in lines.splitlines():
            arguments = re.findall(r'"[^"]*"|\S+', line)[1:]
            words = [argument.strip('"') for argument in arguments]
            ended = magnetar(*words, "--url", server.url)
            assert ended.status == 0, ended.stderr
            if words[0] != "produce":
                assert "Hello, world" in ended.stdout
