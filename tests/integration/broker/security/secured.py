"""A standalone with TLS, three ways to prove who one is, and authorization; how to reach it."""

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bcrypt
import jwt

from tests.certificates import Authority
from tests.http_calls import call
from tests.processes import HOST, free_ports
from tests.standalone import Standalone

SECRET = b"a secret of thirty-two bytes, and more"
PASSWORD = "open sesame"


def token_for(role: str, **claims: Any) -> str:
    return jwt.encode({"sub": role, **claims}, SECRET, algorithm="HS256")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class Secured(Standalone):
    """Roles: `root` is a super user, `proxy` may speak for others; `basil` has a password."""

    def __init__(
        self, directory: Path, *, settings: Sequence[str] = (), arguments: Sequence[str] = ()
    ) -> None:
        """`settings`: further lines of [broker] and what follows; `arguments`: of the command."""
        directory.mkdir(parents=True, exist_ok=True)
        self.files = directory.with_name(directory.name + "-files")
        self.files.mkdir()
        self.authority = Authority(self.files)
        self.certificate, self.key = self.authority.issue("broker")
        # All at once, so that they differ.
        ports = free_ports(4)
        self.tls_port, self.https_port = ports[2:]
        secret, passwords = self.files / "secret.key", self.files / "passwords"
        secret.write_bytes(SECRET)
        hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(rounds=4)).decode()
        passwords.write_text(f"basil:{hashed}\n")
        config = self.files / "magnetar.toml"
        config.write_text(
            "\n".join(
                [
                    "[broker]",
                    f"tls_port = {self.tls_port}",
                    f"https_port = {self.https_port}",
                    f"tls_certificate_file = '{self.certificate}'",
                    f"tls_key_file = '{self.key}'",
                    f"tls_ca_file = '{self.authority.path}'",
                    f"token_secret_key = 'file://{secret}'",
                    f"basic_auth_file = '{passwords}'",
                    "tls_auth = true",
                    "authorization = true",
                    "super_users = ['root']",
                    "proxy_roles = ['proxy']",
                    "security_reload_s = 0.1",
                    *settings,
                ]
            )
        )
        super().__init__(directory, arguments=["--config", str(config), *arguments])
        self.port, self.http_port = ports[:2]

    @property
    def tls_url(self) -> str:
        return f"pulsar+ssl://{HOST}:{self.tls_port}"

    def ask(
        self,
        method: str,
        path: str,
        *,
        headers: dict[str, str] | None = None,
        body: Any = None,
        certificate: tuple[Path, Path] | None = None,
        over_tls: bool = False,
    ) -> tuple[int, Any]:
        """Status and JSON of a request."""
        answer = call(
            f"https://{HOST}:{self.https_port}" if over_tls else self,
            method,
            path,
            body,
            headers=headers,
            tls=self.client_tls(certificate) if over_tls else None,
        )
        try:
            return answer.status, answer.json if answer.body else None
        except ValueError:
            return answer.status, answer.text

    def as_role(self, role: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return self.ask(method, path, headers=bearer(token_for(role)), body=body)

    def client_tls(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.path))
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context

    def make_tenant(self, tenant: str, admin: str, *others: str) -> None:
        """A tenant with administrators, and the namespace `ns` in it."""
        info = {"adminRoles": [admin, *others], "allowedClusters": ["standalone"]}
        status, answer = self.as_role("root", "PUT", f"/admin/v2/tenants/{tenant}", info)
        assert status == 204, answer
        status, answer = self.as_role(admin, "PUT", f"/admin/v2/namespaces/{tenant}/ns")
        assert status == 204, answer
