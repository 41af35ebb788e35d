"""Spoiled definitions of schemas against the cores that read and compare them.

Whatever a client gives: a definition of every type is understood or refused, what is understood
reads itself, and two that are understood are compared in bounded time, either way.
"""

import base64
import json
import os
import random
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.wrappers_pb2 import DESCRIPTOR

from magnetar.broker.policies.model import SchemaCompatibility
from magnetar.broker.schemas import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    SchemaData,
    SchemaType,
    compatibility,
)
from magnetar.broker.schemas.definitions import Definition, parse
from magnetar.broker.schemas.key_value import data_of_text, joined, text_of_data
from tests.fuzz.findings import Findings
from tests.fuzz.json_mutations import spoil_json
from tests.processes import resident_bytes_of

_TYPES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_WORDS = (*_TYPES, "array", "map", "union", "record", "enum", "fixed", "error", "R", "n.R", "")
_ODD: tuple[object, ...] = (
    *(None, True, 0, -1, 1 << 70, 1.5, float("nan"), "", ".", "..", "a b", "\ud800", "\x00", "ü"),
    *([], {}, [[]], [None], {"type": {}}, ["R", "R"], "x" * 3000),
)
_NAMES = (
    *("type", "name", "namespace", "fields", "items", "values", "symbols", "size", "default"),
    *("aliases", "doc", "order", "logicalType"),
)
_PROPERTIES = ("key.schema.type", "value.schema.type", "kv.encoding.type", "other")
_VALUES = ("AVRO", "JSON", "STRING", "INT8", "KEY_VALUE", "INLINE", "SEPARATED", "", "ü")


def definition(chance: random.Random, depth: int = 0) -> object:
    """An Avro definition that makes sense, as a rule."""
    if depth > 4 or chance.random() < 0.4:
        return chance.choice(_TYPES)
    inner = depth + 1
    name = f"{chance.choice('ABR')}{chance.randrange(4)}"
    match chance.randrange(6):
        case 0:
            return {"type": "array", "items": definition(chance, inner)}
        case 1:
            return {"type": "map", "values": definition(chance, inner)}
        case 2:
            return [definition(chance, inner) for _ in range(chance.randrange(4))]
        case 3:
            return {"type": "enum", "name": name, "symbols": ["A", "B", "C"][: chance.randrange(4)]}
        case 4:
            return {"type": "fixed", "name": name, "size": chance.randrange(4)}
    fields = [
        {"name": f"f{at}", "type": chance.choice((definition(chance, inner), ["null", name]))}
        for at in range(chance.randrange(4))
    ]
    for each in fields:
        if chance.random() < 0.5:
            each["default"] = None
    return {"type": "record", "name": name, "namespace": chance.choice(("", "n")), "fields": fields}


def spoiled(chance: random.Random, value: object) -> object:
    """Copy a schema definition with something wrong in one place."""
    return spoil_json(chance, value, other=_other, names=_NAMES)


def _other(chance: random.Random) -> object:
    return chance.choice((chance.choice(_ODD), chance.choice(_WORDS), definition(chance)))


def _protobuf(chance: random.Random) -> bytes:
    file = descriptor_pb2.FileDescriptorProto()
    DESCRIPTOR.CopyToProto(file)
    data = bytearray(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    for _ in range(chance.choice((0, 0, 1, 3))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    found: dict[str, object] = {
        "fileDescriptorSet": base64.b64encode(data).decode(),
        "rootMessageTypeName": "google.protobuf." + chance.choice(("Int64Value", "BoolValue", "X")),
        "rootFileDescriptorName": DESCRIPTOR.name,
    }
    return json.dumps(found if chance.random() < 0.8 else spoiled(chance, found)).encode()


def schema(chance: random.Random) -> SchemaData:
    """A schema of any type, with what another one has in it now and then."""
    kind = chance.choice(tuple(SchemaType))
    found = definition(chance)
    for _ in range(chance.choice((0, 0, 1, 2))):
        found = spoiled(chance, found)
    data = json.dumps(found).encode()
    if kind is SchemaType.PROTOBUF_NATIVE:
        data = _protobuf(chance)
    elif kind is SchemaType.KEY_VALUE and chance.random() < 0.8:
        data = joined(chance.choice((b"", data)), data)
    if chance.random() < 0.01:
        data = chance.choice((b"[", b'{"type":', b'{"a":[')) * chance.randrange(1, 50_000)
    if chance.random() < 0.2:
        broken = bytearray(data or b"\0")
        at = chance.randrange(len(broken))
        broken[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        data = bytes(broken)
    names = chance.sample(_PROPERTIES, chance.randrange(len(_PROPERTIES)))
    return SchemaData(kind, data, {name: chance.choice(_VALUES) for name in names})


def try_schema(chance: random.Random) -> None:
    """Two schemas, and one that is a little different. Raises: AssertionError."""
    understood = [each for each in (_understood(schema(chance)) for _ in range(2)) if each]
    for each in understood:
        assert compatibility.why_unreadable(reader=each, writer=each) is None
    strategy = chance.choice(tuple(SchemaCompatibility))
    for old in understood:
        for new in understood:
            refusal: IncompatibleSchemaError | None = None
            try:
                compatibility.check([old], new, strategy)
            except IncompatibleSchemaError as error:
                refusal = error
            assert refusal is None or str(refusal).startswith("Incompatible schema")


def _understood(found: SchemaData) -> Definition | None:
    parsed: Definition | None = None
    refusal: InvalidSchemaError | None = None
    try:
        parsed = parse(found)
        if found.type is SchemaType.KEY_VALUE:
            data_of_text(text_of_data(found.data))
    except InvalidSchemaError as error:
        refusal = error
    assert refusal is None or 0 < len(str(refusal)) < 1000
    return parsed


async def fuzz(seeds: range, directory: Path, findings: Findings) -> None:
    """The cases of some seeds; each is two definitions and what becomes of them."""
    for seed in seeds:
        try:
            try_schema(random.Random(seed))
        except Exception as error:  # noqa: BLE001 - anything at all is a finding
            findings.add(f"seed {seed}: {error!r}")
    findings.inputs += len(seeds)
    findings.see_memory(resident_bytes_of(os.getpid()), f"seed {seeds.stop - 1}")
