"""What to say of options that users bring along from other sources and from Spark itself. Pure.

The nearest name by spelling would often be a wrong one: `groupId` is no `topic`.
"""

from collections.abc import Mapping

NO_TABLE = (
    "Spark keeps the options of a table (CREATE TABLE … USING magnetar) from the source; make a "
    "view: CREATE TEMPORARY VIEW name USING magnetar OPTIONS (…)"
)
_NEEDS_NONE = "leave it out, there is nothing like it here"
_FIXED = "each of the client's settings has an option of its own, or none: see docs/spark.md"
_KEYS = (
    "encrypted messages cannot be read; mode PERMISSIVE gives them as rows without a value, "
    "DROPMALFORMED leaves them out"
)
_LOGIN = "it is option authentication: tls, token:TOKEN, token:file:PATH or basic:USER:PASSWORD"
_SIZES = "tasks are cut by option sliceBytes"
_TIME = "it is option startingTime, for all topics"
_RATE = "the limits are maxEntriesPerTrigger, where an entry is a batch, and maxBytesPerTrigger"
_WAIT = "a micro-batch begins when its trigger says so: .trigger(processingTime=…)"

_HINTS: dict[str, str] = {
    # Spark's own
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
    "endingtimestamp": "it is option endingTime, for all topics",
    "endingoffsetsbytimestamp": "it is option endingTime, for all topics",
    "maxoffsetspertrigger": _RATE,
    "maxmessagespertrigger": _RATE,
    "maxfilespertrigger": _RATE,
    "minoffsetspertrigger": _WAIT,
    "maxtriggerdelay": _WAIT,
    "minpartitions": _SIZES,
    "maxpartitions": _SIZES,
    "maxrecordsperpartition": _SIZES,
    "groupid": "it is option subscriptionName, of streaming queries",
    "kafka.group.id": "it is option subscriptionName, of streaming queries",
    "groupidprefix": "give option subscriptionName, or none",
    "includeheaders": "leave it out: column __messageProperties is always there",
    "kafkaconsumer.polltimeoutms": _NEEDS_NONE,
    "fetchoffset.numretries": _NEEDS_NONE,
    "fetchoffset.retryintervalms": _NEEDS_NONE,
    # Pulsar's connector, and Databricks' one
    "predefinedsubscription": "it is option subscriptionName",
    "subscription": "it is option subscriptionName",
    "subscriptionprefix": "give option subscriptionName, or none",
    "polltimeoutms": _NEEDS_NONE,
    "waitingfornonexistedtopic": "topics must exist; of topicsPattern they may come later",
    "allowdifferenttopicschemas": (
        'topics of different schemas are read as bytes: .schema("value binary, __topic string")'
    ),
    "authpluginclassname": _LOGIN,
    "authparams": _LOGIN,
    "pulsar.client.authpluginclassname": _LOGIN,
    "pulsar.client.authparams": _LOGIN,
    "pulsar.client.authparammap": _LOGIN,
    "pulsar.client.tlstrustcertsfilepath": "it is option tlsTrustCertsFile",
    "pulsar.client.tlscertificatefilepath": "it is option tlsCertificateFile",
    "pulsar.client.tlskeyfilepath": "it is option tlsKeyFile",
    "pulsar.client.tlshostnameverificationenable": "it is option tlsHostnameVerification",
    "pulsar.client.usetls": "it is a service.url of pulsar+ssl://",
    "pulsar.client.listenername": "it is option listenerName",
    "encryption.key": _KEYS,
    "encryptionkey": _KEYS,
    "privatekey": _KEYS,
    "privatekeyfile": _KEYS,
    "cryptokeyreader": _KEYS,
}

_OF_THE_SOURCE = "it is for reading only"
_OF_THE_SINK = "it is for writing only"
for _name in (
    *("metadata.url", "readMode", "topics", "topicsPattern", "startingOffsets", "endingOffsets"),
    *("startingTime", "endingTime", "failOnDataLoss", "subscriptionName", "sliceBytes"),
    *("maxEntriesPerTrigger", "maxBytesPerTrigger"),
):
    _HINTS[_name.lower()] = _OF_THE_SOURCE
for _name in ("deduplication", "producerName", "schema", "schemaName", "compressionType", "sortBy"):
    _HINTS[_name.lower()] = _OF_THE_SINK

_PREFIXES: Mapping[str, str] = {
    "option.": NO_TABLE,
    "kafka.": "it is one of Kafka's, for which there is nothing here",
    "pulsar.": _FIXED,
    "privatekey": _KEYS,
}


def hint_for(given: str) -> str:
    """What to do instead of an option of this name, in lower case; empty: nothing is known."""
    if given in _HINTS:
        return _HINTS[given]
    return next((hint for each, hint in _PREFIXES.items() if given.startswith(each)), "")
