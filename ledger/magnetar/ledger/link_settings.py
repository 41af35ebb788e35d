"""Settings of TLS between servers of a cluster, where both sides show a certificate, and of the
secret that they share. Pure."""

from ipaddress import ip_address

from pydantic import BaseModel, Field, model_validator


class LinkSettings(BaseModel):
    """The settings that bookies and their clients share. TLS needs all three files, or none."""

    tls_certificate_file: str = Field(
        default="",
        description="TLS between bookies and their clients: certificate of this process, PEM.",
    )
    tls_key_file: str = Field(default="", description="Private key of tls_certificate_file, PEM.")
    tls_ca_file: str = Field(
        default="",
        description="CA certificates that the other side's certificate must be signed by, PEM. "
        "Use a CA for this cluster only: everybody with a certificate of that CA may read and "
        "write every ledger.",
    )
    tls_checks_host: bool = Field(
        default=True, description="Whether a bookie's certificate must match its host."
    )
    shared_secret_file: str = Field(
        default="",
        description="File with the secret that bookies share with their clients, at least 32 "
        "bytes. For rotation, secrets in further lines are accepted, too. Empty = no secret is "
        "required.",
    )
    shared_secret_create: bool = Field(
        default=False,
        description="Whether to create shared_secret_file with a random secret, readable by its "
        "owner only, if it does not exist. Meant for servers that share a directory.",
    )
    shared_secret_optional: bool = Field(
        default=False,
        description="Whether to accept clients that do not prove the secret, and to use bookies "
        "without a secret. Meant for introducing a secret in a running cluster. Until this is off "
        "again, the secret protects nothing.",
    )
    secret_handshake_timeout_ms: int = Field(
        default=10_000,
        ge=1,
        description="How long a client may take to prove that it knows the shared secret.",
    )
    secret_handshakes_max: int = Field(
        default=1_000,
        ge=1,
        description="Clients that may prove the shared secret at the same time; further "
        "connections are closed.",
    )
    tls_reload_s: float = Field(
        default=60.0,
        ge=0,
        description="Time between two checks for changed TLS and secret files; 0 = never.",
    )

    @property
    def has_tls(self) -> bool:
        return bool(self.tls_ca_file)

    @model_validator(mode="after")
    def _all_or_none(self) -> "LinkSettings":
        given = [self.tls_certificate_file, self.tls_key_file, self.tls_ca_file]
        if any(given) and not all(given):
            raise ValueError("tls_certificate_file, tls_key_file and tls_ca_file go together")
        if self.shared_secret_create and not self.shared_secret_file.startswith("/"):
            # Not any path: the operator may have put the secret itself in place of its file.
            raise ValueError("shared_secret_create needs an absolute path in shared_secret_file")
        return self


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address to listen on."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
