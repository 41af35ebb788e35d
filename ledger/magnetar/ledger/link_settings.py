"""Settings of TLS between servers of a cluster, where both sides show a certificate, and of the
secret that they share. Pure."""

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
        return self
