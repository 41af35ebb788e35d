"""Decide whether a reader with one Avro definition can read data written with another. Pure.

The rules are those of the Avro specification 1.12, "Schema Resolution", adapted to Pulsar's use of
them. The record at the top may have any name, because clients name it after a class, and classes
get renamed. Inside, names count without their namespaces, and the reader's aliases count.

Definitions may be recursive. A pair that is being compared counts as readable. If it turns out not
to be, all conclusions drawn from it are dropped.
"""

from collections.abc import Iterable

from magnetar.broker.schemas.avro.types import (
    Array,
    AvroType,
    Enumeration,
    Fixed,
    Map,
    Named,
    Primitive,
    Record,
    Union,
    name_of,
)

STEPS_MAX = 100_000
"""Pairs of types to compare, at most; larger comparisons count as not readable."""

DEPTH_MAX = 200
"""Nesting depth of pairs, at most: types that refer to each other may go deeper than definitions
nest."""

_PROMOTIONS = {
    (Primitive.INT, Primitive.LONG),
    (Primitive.INT, Primitive.FLOAT),
    (Primitive.INT, Primitive.DOUBLE),
    (Primitive.LONG, Primitive.FLOAT),
    (Primitive.LONG, Primitive.DOUBLE),
    (Primitive.FLOAT, Primitive.DOUBLE),
    (Primitive.STRING, Primitive.BYTES),
    (Primitive.BYTES, Primitive.STRING),
}
"""Pairs of a written type and another type that can read it."""


def why_unreadable(*, reader: AvroType, writer: AvroType) -> str | None:
    """Return what of the writer's data the reader cannot read, and where; None if it reads all of
    it."""
    return _Comparison().compare(reader, writer, "", is_top=True)


class _Comparison:
    def __init__(self) -> None:
        self._readable: dict[tuple[int, int], None] = {}
        """Pairs that are readable or being compared, in the order of their first comparison."""
        self._steps = 0
        self._depth = 0

    def compare(
        self, reader: AvroType, writer: AvroType, path: str, *, is_top: bool = False
    ) -> str | None:
        self._steps += 1
        if self._steps > STEPS_MAX:
            return f"they are too large to be compared: more than {STEPS_MAX} pairs of types"
        if self._depth >= DEPTH_MAX:
            return f"they are too deep to be compared: types refer to {DEPTH_MAX} others in a row"
        if isinstance(reader, Primitive) and isinstance(writer, Primitive):
            if reader is writer or (writer, reader) in _PROMOTIONS:
                return None
            return _mismatch(reader, writer, path)
        pair = id(reader), id(writer)
        if pair in self._readable:
            return None
        before = len(self._readable)
        self._readable[pair] = None
        self._depth += 1
        problem = self._compare_parts(reader, writer, path, is_top=is_top)
        self._depth -= 1
        if problem is not None:
            while len(self._readable) > before:
                self._readable.popitem()
        return problem

    def _compare_parts(
        self, reader: AvroType, writer: AvroType, path: str, *, is_top: bool
    ) -> str | None:
        match reader, writer:
            case _, Union():
                return self._first(
                    self.compare(reader, branch, path, is_top=is_top) for branch in writer.branches
                )
            case Union(), _:
                return self._any_branch(reader, writer, path, is_top=is_top)
            case Array(), Array():
                return self.compare(reader.items, writer.items, f"{path}/items")
            case Map(), Map():
                return self.compare(reader.values, writer.values, f"{path}/values")
            case Record(), Record() if is_top or _same_name(reader, writer):
                return self._compare_fields(reader, writer, path)
            case Fixed(), Fixed() if _same_name(reader, writer):
                if reader.size == writer.size:
                    return None
                return (
                    f"{_at(path)}: fixed {reader.name} has {reader.size} bytes, not {writer.size}"
                )
            case Enumeration(), Enumeration() if _same_name(reader, writer):
                return _compare_symbols(reader, writer, path)
        return _mismatch(reader, writer, path)

    def _first(self, problems: Iterable[str | None]) -> str | None:
        return next((each for each in problems if each is not None), None)

    def _any_branch(
        self, reader: Union, writer: AvroType, path: str, *, is_top: bool
    ) -> str | None:
        problem = None
        for branch in reader.branches:
            found = self.compare(branch, writer, path, is_top=is_top)
            if found is None:
                return None
            if type(branch) is type(writer) and not isinstance(branch, Primitive):
                problem = found  # Says more than that no branch fits.
        return problem or f"{_at(path)}: no type of the union reads {name_of(writer)}"

    def _compare_fields(self, reader: Record, writer: Record, path: str) -> str | None:
        for field in reader.fields.values():
            names = (field.name, *field.aliases)
            written = next((writer.fields[each] for each in names if each in writer.fields), None)
            here = f"{path}/{field.name}"
            if written is not None:
                problem = self.compare(field.type, written.type, here)
            elif field.has_default:
                problem = None
            else:
                problem = f"{here}: it is not written, and has no default"
            if problem is not None:
                return problem
        return None


def _compare_symbols(reader: Enumeration, writer: Enumeration, path: str) -> str | None:
    unknown = writer.symbols - reader.symbols
    if not unknown or reader.default is not None:
        return None
    return f"{_at(path)}: enum {reader.name} does not know {min(unknown)}, and has no default"


def _same_name(reader: Named, writer: Named) -> bool:
    simple = _simple(writer.name)
    return (
        _simple(reader.name) == simple
        or writer.name in reader.aliases
        or any(_simple(each) == simple for each in reader.aliases)
    )


def _simple(name: str) -> str:
    return name.rpartition(".")[2]


def _mismatch(reader: AvroType, writer: AvroType, path: str) -> str:
    return f"{_at(path)}: {name_of(reader)} cannot read {name_of(writer)}"


def _at(path: str) -> str:
    return path or "/"
