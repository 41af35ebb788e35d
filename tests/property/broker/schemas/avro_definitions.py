"""Avro definitions and data at random, and definitions that evolved from others."""

from typing import Any

from hypothesis import strategies as st

NAMES = [f"f{index}" for index in range(6)]
PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
PROMOTIONS = {
    "int": ["long", "float", "double"],
    "long": ["float", "double"],
    "float": ["double"],
    "string": ["bytes"],
    "bytes": ["string"],
}
_DEFAULTS: dict[str, Any] = {
    "null": None,
    "boolean": False,
    "int": 0,
    "long": 0,
    "float": 0.0,
    "double": 0.0,
    "bytes": "",
    "string": "",
}


class Definitions:
    """Draws definitions; each one names its types anew."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._made = 0

    def record(self, depth: int = 0, name: str = "") -> dict[str, Any]:
        names = self._draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
        own = name or self._name("R")
        return {
            "type": "record",
            "name": own,
            "fields": [self.field(each, depth) for each in names],
        }

    def field(self, name: str, depth: int) -> dict[str, Any]:
        kind = self.type(depth + 1)
        field = {"name": name, "type": kind}
        if isinstance(kind, str) and self._draw(st.booleans()):
            field["default"] = _DEFAULTS[kind]
        return field

    def type(self, depth: int) -> Any:
        kinds = ["primitive"] * 4
        if depth < 3:
            kinds += ["array", "map", "union", "record", "fixed", "enum"]
        match self._draw(st.sampled_from(kinds)):
            case "array":
                return {"type": "array", "items": self.type(depth + 1)}
            case "map":
                return {"type": "map", "values": self.type(depth + 1)}
            case "union":
                # Branches of which at most one fits any value: what is written is not ambiguous.
                return self._draw(
                    st.lists(
                        st.sampled_from(["null", "boolean", "long", "string"]),
                        min_size=1,
                        max_size=3,
                        unique=True,
                    )
                )
            case "record":
                return self.record(depth + 1)
            case "fixed":
                size = self._draw(st.integers(0, 3))
                return {"type": "fixed", "name": self._name("F"), "size": size}
            case "enum":
                symbols = self._draw(
                    st.lists(st.sampled_from("ABCD"), min_size=1, max_size=3, unique=True)
                )
                return {"type": "enum", "name": self._name("E"), "symbols": symbols}
        return self._draw(st.sampled_from(PRIMITIVES))

    def _name(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}{self._made}"


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """A record."""
    return Definitions(draw).record(name="Top")


@st.composite
def evolved(draw: st.DrawFn, before: dict[str, Any]) -> dict[str, Any]:
    """A definition made from another one by changes, of which some fit and some do not."""
    changed: dict[str, Any] = _Evolution(draw).changed(before)
    return changed


class _Evolution:
    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._made = 0

    def changed(self, definition: Any) -> Any:
        draw = self._draw
        if isinstance(definition, list):
            return self._changed_union(definition)
        if isinstance(definition, str):
            choices = [definition] * 6 + PROMOTIONS.get(definition, []) + ["int", "string"]
            chosen = draw(st.sampled_from(choices))
            return chosen if draw(st.integers(0, 5)) else sorted({"null", chosen})
        changed = dict(definition)
        match definition["type"]:
            case "array":
                changed["items"] = self.changed(definition["items"])
            case "map":
                changed["values"] = self.changed(definition["values"])
            case "fixed":
                changed["size"] += draw(st.sampled_from([0, 0, 0, 1]))
            case "enum":
                symbols = draw(
                    st.lists(st.sampled_from("ABCD"), min_size=1, max_size=4, unique=True)
                )
                changed["symbols"] = draw(st.sampled_from([definition["symbols"], symbols]))
                if draw(st.booleans()):
                    changed["default"] = changed["symbols"][0]
            case "record":
                changed["fields"] = self._changed_fields(definition["fields"])
        return changed

    def _changed_union(self, branches: list[Any]) -> Any:
        return self._draw(
            st.sampled_from([branches, branches[::-1], sorted({*branches, "double"}), branches[:1]])
        )

    def _changed_fields(self, fields: list[Any]) -> list[Any]:
        draw = self._draw
        found = [self._retyped(each) for each in fields if draw(st.integers(0, 4))]
        found = [self._renamed(each) for each in found]
        if draw(st.booleans()):
            self._made += 1
            added: dict[str, Any] = {"name": f"new{self._made}", "type": "long"}
            if draw(st.integers(0, 3)):
                added["default"] = 7
            found.append(added)
        return found

    def _retyped(self, field: dict[str, Any]) -> dict[str, Any]:
        changed = {**field, "type": self.changed(field["type"])}
        if changed["type"] != field["type"]:
            changed.pop("default", None)  # It was one of the former type.
        return changed

    def _renamed(self, field: dict[str, Any]) -> dict[str, Any]:
        if self._draw(st.integers(0, 5)):
            return field
        aliases = self._draw(st.sampled_from([[field["name"]], []]))
        return {**field, "name": f"was_{field['name']}", "aliases": aliases}


def data_of(definition: Any) -> st.SearchStrategy[Any]:
    """Values that a definition describes."""
    if isinstance(definition, list):
        return st.one_of([data_of(each) for each in definition])
    if isinstance(definition, str):
        return _PRIMITIVE_DATA[definition]
    match definition["type"]:
        case "array":
            return st.lists(data_of(definition["items"]), max_size=2)
        case "map":
            return st.dictionaries(st.sampled_from("xy"), data_of(definition["values"]), max_size=2)
        case "fixed":
            size = definition["size"]
            return st.binary(min_size=size, max_size=size)
        case "enum":
            return st.sampled_from(definition["symbols"])
    return st.fixed_dictionaries(
        {each["name"]: data_of(each["type"]) for each in definition["fields"]}
    )


_TEXT = st.text("ab", max_size=3)
_PRIMITIVE_DATA: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": _TEXT.map(str.encode),
    "string": _TEXT,
}
