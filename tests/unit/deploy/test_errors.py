import re

from magnetar.deploy import errors
from magnetar.deploy.cli import app
from tests.unit.test_layout import ROOT


def statuses() -> dict[str, int]:
    return {
        name: each.exit_status
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.DeployError)
    }


def test_every_exit_status_has_one_meaning() -> None:
    assert len(set(statuses().values())) == len(statuses())


def test_every_exit_status_is_documented_in_the_help_and_in_the_readme() -> None:
    epilog = str(app.info.epilog)
    readme = (ROOT / "deploy/magnetar/deploy/README.md").read_text()
    for status in statuses().values():
        assert re.search(rf"\b{status} \w", epilog), status
        assert f"| {status} |" in readme, status
