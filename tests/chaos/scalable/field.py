"""The processes of one run of the drill: servers, producers, and consumers that come and go."""

from collections.abc import Iterator
from pathlib import Path

from tests.chaos.scalable.plan import BROKERS, Plan
from tests.chaos.scalable.publish import HELD
from tests.http_calls import Answer, ask
from tests.processes import ServerProcess, cpu_s_of, descendants_of, python_command
from tests.real_cluster import RealCluster


class Field:
    """All processes."""

    def __init__(self, plan: Plan, cluster: RealCluster, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        self._plan = plan
        self.consumers: dict[str, ServerProcess] = {}
        self.producers: list[ServerProcess] = []
        self._made = 0

    def start_producers(self) -> None:
        rate = self._plan.rate / self._plan.producers
        for number in range(self._plan.producers):
            self.producers.append(
                self._start("publish", f"p{number}", str(number), str(rate), str(self._plan.keys))
            )

    def hold(self, is_held: bool) -> None:
        """Have producers wait, or go on."""
        held = self.directory / HELD
        if is_held:
            held.touch()
        else:
            held.unlink(missing_ok=True)

    def join(self, name: str = "") -> None:
        """A stream consumer comes; by a name, one that was killed comes back."""
        self._made += not name
        name = name or f"c{self._made}"
        self.consumers[name] = self._start("consume", name, name)

    def dead(self) -> list[str]:
        """Clients that ended by themselves, which none may."""
        found = [name for name, each in self.consumers.items() if each.returncode is not None]
        for name in found:
            del self.consumers[name]
        return found

    def close(self) -> None:
        for each in (*self.consumers.values(), *self.producers):
            if each.returncode is None:
                each.kill()

    def cpu_s(self) -> dict[tuple[str, int], float]:
        """Seconds of processors that running processes have used, by their kinds and ids."""
        return {
            (kind, each.pid): sum(map(cpu_s_of, (each.pid, *descendants_of(each.pid))))
            for kind, each in self._processes()
            if each.returncode is None
        }

    def _processes(self) -> Iterator[tuple[str, ServerProcess]]:
        for each in self.producers:
            yield "producers", each
        for each in self.consumers.values():
            yield "consumers", each
        for server in self.cluster.plan.servers:
            yield f"{server.kind}s", self.cluster.process(server.name)

    async def ask(self, method: str, path: str, body: object | None = None) -> Answer | None:
        """The answer of a broker that gives one; None: none does."""
        for name in BROKERS:
            try:
                port = self.cluster.server(name).ports["http"]
                answer = await ask(port, method, path, body)
            except (OSError, EOFError, TimeoutError):
                continue
            if answer.status < 300 or answer.status == 412:  # HTTP
                return answer
        return None

    def _start(self, what: str, name: str, *arguments: str) -> ServerProcess:
        module = f"tests.chaos.scalable.{what}"
        url = self.cluster.service_url
        return ServerProcess(
            python_command(module, url, str(self.directory), *arguments),
            log_path=self.directory / f"{name}.log",
            is_ready=lambda _line: False,
        )
