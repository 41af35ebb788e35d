"""Two brokers with tokens and authorization, and a bookie; requests to them."""

from pathlib import Path
from typing import Any

from tests.http_calls import follow
from tests.integration.broker.security.secured import SECRET, token_for
from tests.processes import ServerProcess, free_ports, magnetar_command
from tests.standalone import READY_TIMEOUT_S, is_ready_line


class Pair:
    """A bookie and two brokers on one file of metadata."""

    def __init__(self, directory: Path, *settings: str) -> None:
        """`settings`: further lines of the brokers."""
        self._directory = directory
        self._settings = settings
        self.processes: list[ServerProcess] = []

    def start(self) -> None:
        directory = self._directory
        secret, token = directory / "secret", directory / "token"
        secret.write_bytes(SECRET)
        token.write_text(token_for("broker"))
        config = directory / "magnetar.toml"
        config.write_text(
            f"[broker]\ntoken_secret_key = '{secret}'\nauthorization = true\n"
            f"super_users = ['root', 'broker']\nbroker_client_token = 'file://{token}'\n"
            # The first HTTP request costs so much that its broker would be given no bundles.
            "load_cpu_cores = 100\n" + "\n".join(self._settings)
        )
        bookie, *ports = free_ports(5)
        self.ports, self.http_ports = ports[:2], ports[2:]
        metadata = ("--metadata", f"embedded:{directory / 'metadata.db'}")
        self._start("bookie", *metadata, "--data", str(directory / "b"), "--port", str(bookie))
        for port, http_port in zip(self.ports, self.http_ports, strict=True):
            self._start(
                *("broker", *metadata, "--port", str(port), "--http-port", str(http_port)),
                *("--quorum", "1,1,1", "--config", str(config)),
            )

    def _start(self, *arguments: str) -> None:
        log = self._directory / f"{len(self.processes)}.log"
        process = ServerProcess(magnetar_command(*arguments), log_path=log, is_ready=is_ready_line)
        self.processes.append(process)
        process.wait_ready(READY_TIMEOUT_S)

    def ask(self, at: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """As a super user; redirects are followed."""
        answer = follow(self.http_ports[at], method, path, body, token=token_for("root"))
        return answer.status, answer.json if answer.body else None
