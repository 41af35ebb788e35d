"""Settings of TLS between servers of a cluster: both sides show a certificate. Pure."""

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
