"""A bookie takes no memory for what only a broker needs."""

import subprocess
import sys

_SCRIPT = "import sys, magnetar.deploy.bookie_server; print(*sys.modules)"
_OF_BROKERS = ("magnetar.broker.broker", "magnetar.cursors", "cryptography", "fastapi", "jwt")


def test_a_bookie_loads_nothing_of_a_broker_but_its_http_server_and_errors() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True
    )
    loaded = ran.stdout.split()
    assert not set(_OF_BROKERS) & set(loaded)
    of_the_broker = {each.split(".")[2] for each in loaded if each.startswith("magnetar.broker.")}
    assert of_the_broker == {"base", "http", "security"}
