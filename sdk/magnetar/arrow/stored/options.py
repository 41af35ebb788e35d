"""Options, read by name and type, with a one-line error for each mistake.

`OptionReader` serves both source and sink. Each method reads one option and records its name;
`finish` refuses names that were never read. Names are case-insensitive, as in Spark.

    read = OptionReader(options)
    url = read.text("service.url")
    limit = read.integer("maxEntriesPerTrigger", None, low=1, high=1 << 40)
    read.finish()

Users bring options from other sources and from Spark itself; `hint_for` says what to do with each.
The nearest name by spelling would often be wrong: `groupId` is not `topic`.
"""

import base64
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from magnetar.arrow.stored.authentication_options import (
    OAUTH2,
    PLUGIN_NAMES,
    IssuerTokens,
    OAuth2Options,
    auth_of,
    check_oauth2,
    of_plugins,
)
from magnetar.arrow.stored.errors import OptionError
from magnetar.sdk.errors import InvalidUrlError
from magnetar.sdk.service_url import ServiceUrl
from magnetar.sdk.settings import ClientSettings

_VALUE_CHARACTERS_MAX = 100
"""Most characters of a refused value in an error."""

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


class OptionReader:
    """The options of one query.

    Every method raises OptionError for a value that is not allowed.
    """

    def __init__(self, options: Mapping[str, str], *, ignored: Iterable[str] = ()) -> None:
        """`ignored` are names that Spark itself adds."""
        self._given = _by_our_names(options)
        self._spelling: dict[str, str] = {name.lower(): name for name in ignored}

    @property
    def is_empty(self) -> bool:
        """Whether no option is given, except those that Spark adds."""
        return not self._given.keys() - self._spelling.keys()

    def is_given(self, name: str) -> bool:
        self._spelling[name.lower()] = name
        return name.lower() in self._given

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string; without a default the option is required."""
        if self.is_given(name):
            value = self._given[name.lower()].strip()
            if value:
                return value
            if default is None:
                raise OptionError(name, "it is empty")
        if default is None:
            raise OptionError(name, "it is required")
        return default

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list of names separated by commas; empty if the option is not given."""
        if not self.is_given(name):
            return ()
        found = tuple(filter(None, (each.strip() for each in self.text(name).split(","))))
        if not found:
            raise OptionError(name, "it names nothing; expected names with commas between")
        return found

    def choice(self, name: str, allowed: Sequence[str], default: str) -> str:
        value = self.text(name, default)
        for each in allowed:
            if value.lower() == each.lower():
                return each
        raise OptionError(name, f"{shown(value)} is not allowed; it is one of {', '.join(allowed)}")

    def integer(self, name: str, default: int | None, *, low: int, high: int) -> int | None:
        if not self.is_given(name):
            return default
        value = self.text(name)
        try:
            number = int(value)
        except ValueError:
            number = None
        if number is None or not low <= number <= high:
            raise OptionError(
                name, f"{shown(value)} is not allowed; it is a number from {low} to {high}"
            )
        return number

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name, "true" if default else "false").lower()
        if value not in (*_TRUE, *_FALSE):
            raise OptionError(name, f"{shown(value)} is not allowed; it is true or false")
        return value in _TRUE

    def finish(self, what: str = "source") -> None:
        """Refuse names that were never read."""
        self.check_names((), what)

    def check_names(self, names: Iterable[str], what: str = "source") -> None:
        """Refuse names that are neither among these nor were read.

        When called first, it reports a misspelt name before a required option is found missing.
        """
        known = {**self._spelling, **{name.lower(): name for name in names}}
        for given in self._given:
            if given in known:
                continue
            foreign = hint_for(given)
            if foreign:
                raise OptionError(given, f"the {what} has no option of this name; {foreign}")
            near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
            hint = f"; did you mean {known[near[0]]}?" if near else ""
            raise OptionError(given, f"the {what} has no option of this name{hint}")


ALIASES: Mapping[str, str] = {
    "predefinedsubscription": "subscriptionName",
    "pulsar.client.serviceurl": "service.url",
    "pulsar.client.listenername": "listenerName",
    "pulsar.client.tlscertificatefilepath": "tlsCertificateFile",
    "pulsar.client.tlshostnameverificationenable": "tlsHostnameVerification",
    "pulsar.client.tlskeyfilepath": "tlsKeyFile",
    "pulsar.client.tlstrustcertsfilepath": "tlsTrustCertsFile",
    "pulsar.reader.subscriptionname": "subscriptionName",
    "pulsar.reader.subscriptionroleprefix": "subscriptionPrefix",
}
"""Options of the Pulsar connector for Spark, in lower case, that match an option here. Options with
the same name are not listed."""


def _by_our_names(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their names here, in lower case.

    Raises:
        OptionError: an option is given twice, by two names, with different values.
    """
    given = {name.lower(): value for name, value in options.items()}
    plugins = {name: given.pop(name) for name in PLUGIN_NAMES if name in given}
    found: dict[str, str] = {}
    for name, value in (*given.items(), *of_plugins(plugins).items()):
        ours = ALIASES.get(name, name)
        if found.setdefault(ours.lower(), value) != value:
            spelt = next((each for each in ALIASES.values() if each.lower() == ours.lower()), ours)
            raise OptionError(spelt, "it is given twice, by two names, with different values")
    return found


def shown(value: str) -> str:
    """Shorten a refused value to fit into one line."""
    if len(value) > _VALUE_CHARACTERS_MAX:
        value = value[: _VALUE_CHARACTERS_MAX - 1] + "…"
    return repr(value)


CONNECTION_NAMES = (
    "service.url",
    "admin.url",
    "authentication",
    "oauth2IssuerUrl",
    "oauth2CredentialsFile",
    "oauth2Audience",
    "oauth2Scope",
    "tlsTrustCertsFile",
    "tlsCertificateFile",
    "tlsKeyFile",
    "tlsHostnameVerification",
    "listenerName",
)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Connection to the brokers: the options that source and sink share."""

    service_url: str
    admin_url: str
    """Empty if none is given."""
    authentication: str
    tls_trust_file: str
    tls_certificate_file: str
    tls_key_file: str
    tls_checks_host: bool
    listener_name: str
    tokens: IssuerTokens | None = None
    """Tokens for `authentication` oauth2; otherwise None."""

    @classmethod
    def read(cls, read: OptionReader) -> "ConnectionOptions":
        """Read the connection options.

        Raises:
            OptionError
        """
        if read.is_empty:
            raise OptionError("service.url", f"it is required; no option is given. {NO_TABLE}")
        service_url = read.text("service.url")
        try:
            ServiceUrl.parse(service_url)
        except InvalidUrlError as error:
            raise OptionError("service.url", str(error)) from None
        admin_url = read.text("admin.url", "").rstrip("/")
        if admin_url and not admin_url.startswith(("http://", "https://")):
            raise OptionError(
                "admin.url", f"{shown(admin_url)} is not of the form http://host:port"
            )
        authentication = read.text("authentication", "none")
        auth_of(authentication)
        files = {
            name: read.text(name, "")
            for name in ("tlsTrustCertsFile", "tlsCertificateFile", "tlsKeyFile")
        }
        return cls(
            service_url=service_url,
            admin_url=admin_url,
            authentication=authentication,
            tls_trust_file=files["tlsTrustCertsFile"],
            tls_certificate_file=files["tlsCertificateFile"],
            tls_key_file=files["tlsKeyFile"],
            tls_checks_host=read.flag("tlsHostnameVerification", True),
            listener_name=read.text("listenerName", ""),
            tokens=_tokens(read, authentication),
        )

    @classmethod
    def none(cls) -> "ConnectionOptions":
        """Return the options of a query that uses no broker."""
        return cls("", "", "none", "", "", "", True, "")

    def client_settings(self) -> ClientSettings:
        """Return the settings of a client with these options.

        Raises:
            OptionError: the file with the token cannot be read.
        """
        method, data = auth_of(self.authentication)
        return ClientSettings(
            authentication=self.tokens,
            auth_method_name=method,
            auth_data=data,
            auth_supplier=self.tokens,
            tls_trust_file=self.tls_trust_file,
            tls_certificate_file=self.tls_certificate_file,
            tls_key_file=self.tls_key_file,
            tls_checks_host=self.tls_checks_host,
            listener_name=self.listener_name,
        )

    def http_headers(self) -> dict[str, str]:
        """Return the headers that authenticate a request to the administration interface.

        Raises:
            OptionError: the file with the token cannot be read.
            CredentialsError: the issuer gives no token.
        """
        method, data = auth_of(self.authentication)
        if self.tokens is not None:
            data = self.tokens()
        if method == "token":
            return {"Authorization": f"Bearer {data.decode()}"}
        if method == "basic":
            return {"Authorization": f"Basic {base64.b64encode(data).decode()}"}
        return {}


def _tokens(read: OptionReader, authentication: str) -> IssuerTokens | None:
    """Return the token source for `authentication` oauth2; otherwise None.

    Raises:
        OptionError
    """
    names = ("oauth2IssuerUrl", "oauth2CredentialsFile", "oauth2Audience", "oauth2Scope")
    if authentication != OAUTH2:
        for name in names:
            if read.is_given(name):
                raise OptionError(name, f"it is for authentication {OAUTH2} only")
        return None
    options = OAuth2Options(*(read.text(name, "") for name in names))
    check_oauth2(options)
    return IssuerTokens(options)


NO_TABLE = (
    "Spark keeps the options of a table (CREATE TABLE … USING magnetar) from the source; make a "
    "view: CREATE TEMPORARY VIEW name USING magnetar OPTIONS (…)"
)
_NEEDS_NONE = "leave it out: it has no equivalent here"
_FIXED = "each of the client's settings has an option of its own, or none: see docs/spark.md"
_KEYS = "the private key of encrypted messages is read from a file: option privateKeyFile"
_LOGIN = (
    "it is option authentication: tls, token:TOKEN, token:file:PATH, basic:USER:PASSWORD or oauth2"
)
_STORE = "key stores of Java are not read: give PEM files by option tlsTrustCertsFile"
_SIZES = "tasks are cut by option sliceBytes"
_TIME = "it is option startingTime, for all topics or for each of them"
_RATE = "it is option maxMessagesPerTrigger; options maxEntriesPerTrigger and maxBytesPerTrigger"

_HINTS: dict[str, str] = {
    # Spark
    "path": "load() and save() take no topic: it is option topic",
    "paths": "load() takes no topics: they are option topics",
    "provider": NO_TABLE,
    "owner": NO_TABLE,
    "columnnameofcorruptrecord": "the column is __error, with mode PERMISSIVE",
    "inferschema": "columns are those of the topic's schema, or of .schema(…)",
    # Kafka
    "kafka.bootstrap.servers": "it is option service.url, as pulsar://host:port",
    "subscribe": "it is option topic, or topics with commas between",
    "subscribepattern": "it is option topicsPattern, as tenant/namespace/expression",
    "assign": "it is option topics, with the names of partitions as topic-partition-0",
    "startingtimestamp": _TIME,
    "startingoffsetsbytimestamp": _TIME,
    "startingoffsetsbytimestampstrategy": _NEEDS_NONE,
    "endingtimestamp": "it is option endingTime, for all topics or for each of them",
    "endingoffsetsbytimestamp": "it is option endingTime, for all topics or for each of them",
    "maxoffsetspertrigger": _RATE,
    "maxfilespertrigger": _RATE,
    "maxrecordsperbatch": _RATE,
    "maxbytesperbatch": "it is option maxBytesPerTrigger",
    "minoffsetspertrigger": "it is option minMessagesPerTrigger, with option maxTriggerDelay",
    "minpartitions": _SIZES,
    "maxpartitions": _SIZES,
    "maxrecordsperpartition": _SIZES,
    "groupid": "it is option subscriptionName, of streaming queries",
    "kafka.group.id": "it is option subscriptionName, of streaming queries",
    "groupidprefix": "it is option subscriptionPrefix, of streaming queries",
    "includeheaders": "leave it out: column __messageProperties is always there",
    "kafkaconsumer.polltimeoutms": _NEEDS_NONE,
    "fetchoffset.numretries": _NEEDS_NONE,
    "fetchoffset.retryintervalms": _NEEDS_NONE,
    # Pulsar's connector, and Databricks' one
    "subscription": "it is option subscriptionName",
    "polltimeoutms": _NEEDS_NONE,
    "waitingfornonexistedtopic": "topics must exist; of topicsPattern they may come later",
    "authpluginclassname": _LOGIN,
    "authparams": _LOGIN,
    "pulsar.client.authparammap": _LOGIN,
    "pulsar.client.usekeystoretls": _STORE,
    "pulsar.client.tlstruststoretype": _STORE,
    "pulsar.client.tlstruststorepath": _STORE,
    "pulsar.client.tlstruststorepassword": _STORE,
    "pulsar.client.usetls": "it is a service.url of pulsar+ssl://",
    "encryption.key": _KEYS,
    "encryptionkey": _KEYS,
    "privatekey": _KEYS,
    "cryptokeyreader": _KEYS,
    "pulsar.reader.cryptokeyreader": _KEYS,
}

_OF_THE_SOURCE = "it is for reading only"
_OF_THE_SINK = "it is for writing only"
for _name in (
    *("metadata.url", "readMode", "topics", "topicsPattern", "startingOffsets", "endingOffsets"),
    *("startingTime", "endingTime", "failOnDataLoss", "subscriptionName", "sliceBytes"),
    *("maxEntriesPerTrigger", "maxMessagesPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay"),
    *("subscriptionPrefix", "startingSubscription", "allowDifferentTopicSchemas"),
    *("objects", "objectsPrefix", "privateKeyFile"),
):
    _HINTS[_name.lower()] = _OF_THE_SOURCE
for _name in ("deduplication", "producerName", "schema", "schemaName", "compressionType", "sortBy"):
    _HINTS[_name.lower()] = _OF_THE_SINK

_PREFIXES: Mapping[str, str] = {
    "option.": NO_TABLE,
    "kafka.": "it is one of Kafka's, and has no equivalent here",
    "pulsar.": _FIXED,
    "privatekey": _KEYS,
}


def hint_for(given: str) -> str:
    """Return what to use instead of an option, given in lower case; empty if unknown."""
    if given in _HINTS:
        return _HINTS[given]
    return next((hint for each, hint in _PREFIXES.items() if given.startswith(each)), "")
