"""Settings of object stores, without credentials: stores take those from the environment (tiered
storage, rule 12.1)."""

from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from magnetar.ledger.errors import ObjectStoreConfigError
from magnetar.ledger.offloading.store_url import parse_store_url


class ObjectStoreSettings(BaseModel):
    """One object store. Units are in the names."""

    # Errors do not show the input: it may be a secret in the wrong place.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9-]{0,62}$",
        description="Name of the store. Each ledger in a store is recorded with this name: never "
        "change it while the store holds ledgers.",
    )
    url: str = Field(
        description="Location of the objects: s3://bucket/prefix, gs://bucket/prefix, "
        "az://container/prefix, file:///directory, or memory:// for tests. It contains no "
        "credentials: these come from the environment of the process."
    )
    endpoint: str = Field(
        default="",
        description="URL of a server that speaks the protocol of S3, GCS or Azure, such as "
        "https://minio.example.com:9000. Empty: the endpoint in the environment, or the "
        "provider's.",
    )
    region: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9-]{0,64}$",
        description="Region of the bucket, for S3. Empty: AWS_REGION or AWS_DEFAULT_REGION, or "
        "us-east-1.",
    )
    path_style: bool = Field(
        default=True,
        description="S3: whether requests name the bucket in the path. If false, they name it in "
        "the host name.",
    )
    allow_http: bool = Field(
        default=False, description="Whether the endpoint may be http://, without encryption."
    )
    connect_timeout_s: float = Field(
        default=5.0, gt=0, le=60, description="Time to connect to the store."
    )
    timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=3_600,
        description="Timeout of one request with its whole body. It must suffice to transfer a "
        "part of part_bytes: 8 MiB in 60 s are 140 kB/s.",
    )
    retries_max: int = Field(
        default=5,
        ge=0,
        le=100,
        description="Retries of a request that failed by a timeout, a lost connection or a server "
        "error, with growing delays.",
    )
    retry_time_max_s: float = Field(
        default=60.0,
        ge=0,
        le=240,
        description="No retry begins later than this after the first attempt. Signatures of "
        "requests expire after five minutes.",
    )
    part_bytes: int = Field(
        default=8 << 20,
        ge=5 << 20,
        le=512 << 20,
        description="Bytes of one part of an object. A write sends four parts in parallel and "
        "takes about six times this memory. Parts are larger if an object needs more than 9,000 "
        "of them.",
    )

    @field_validator("url")
    @classmethod
    def _url_can_be_read(cls, url: str) -> str:
        try:
            parse_store_url(url)
        except ObjectStoreConfigError as error:
            raise ValueError(str(error)) from None
        return url

    @field_validator("endpoint")
    @classmethod
    def _endpoint_is_a_host(cls, endpoint: str) -> str:
        if not endpoint:
            return endpoint
        try:
            parts = urlsplit(endpoint)
            is_host = parts.scheme in ("http", "https") and bool(parts.hostname)
            is_host = is_host and parts.port != 0
        except ValueError:
            is_host = False
        if not is_host or "@" in endpoint or parts.query or parts.fragment:
            raise ValueError("an endpoint is https://host:port, without credentials and options")
        return endpoint.rstrip("/")

    @model_validator(mode="after")
    def _fits_together(self) -> "ObjectStoreSettings":
        scheme = parse_store_url(self.url).scheme
        if self.endpoint and scheme in ("file", "memory"):
            raise ValueError(f"an endpoint is for a bucket, and the url is {scheme}://")
        if self.endpoint.startswith("http://") and not self.allow_http:
            raise ValueError("the endpoint is http://, which needs allow_http")
        if self.connect_timeout_s > self.timeout_s:
            raise ValueError(
                f"connect_timeout_s {self.connect_timeout_s} is above timeout_s {self.timeout_s}"
            )
        return self
