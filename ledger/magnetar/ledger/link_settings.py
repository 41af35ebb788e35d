"""Settings of TLS between servers of a cluster, where both sides show a certificate, and of the
secret that they share. Pure."""

from ipaddress import ip_address

from pydantic import BaseModel, Field, model_validator


class LinkSettings(BaseModel):
    """A part of the settings of whoever serves or uses a bookie: all three files, or none."""

    tls_certificate_file: str = Field(
        default="", description="TLS between bookies and who uses them: the own certificate, PEM."
    )
    tls_key_file: str = Field(default="", description="The key of that certificate, PEM.")
    tls_ca_file: str = Field(
        default="",
        description="Whose certificates the others must have, PEM: an authority of the cluster's "
        "own, since everybody with a certificate of it may read and write every ledger.",
    )
    tls_checks_host: bool = Field(
        default=True, description="Whether a bookie's certificate must be for the host it is at."
    )
    shared_secret_file: str = Field(
        default="",
        description="File of the secret that bookies share with who uses them, at least 32 bytes; "
        "further lines hold others that are accepted meanwhile. Empty = nobody is asked for it.",
    )
    shared_secret_create: bool = Field(
        default=False,
        description="Whether to make that file, with a random secret and for its owner alone, if "
        "it is not there: for servers that share a directory.",
    )
    shared_secret_optional: bool = Field(
        default=False,
        description="Whether to serve also those who show no proof of the secret, and to use "
        "bookies that have none: while a secret is introduced in a cluster that runs. Until this "
        "is off again, the secret protects nothing.",
    )
    secret_handshake_timeout_ms: int = Field(
        default=10_000, ge=1, description="Time in which a client has to prove that it knows it."
    )
    secret_handshakes_max: int = Field(
        default=1_000, ge=1, description="Clients that are asked for it at once."
    )
    tls_reload_s: float = Field(
        default=60.0,
        ge=0,
        description="Time between two looks at whether the files have changed; 0 = never.",
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
            # Not any path: somebody may have put the secret itself where its file is expected.
            raise ValueError("shared_secret_create takes an absolute path in shared_secret_file")
        return self


def is_loopback(host: str) -> bool:
    """Whether only the own machine reaches an address to listen on."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
