"""A mutation: one rule of the protocol switched off in the real code, inside a context.

A rule is worth a test only if something fails without it. The product has no switches for this; the
code is patched from here, and as little of it as the rule is:

- `edited` changes the text of one function and compiles it again, so that a mutation reads like the
  line of a diff. It refuses to run when that text is no longer there, exactly once: a mutation that
  changes nothing would look like a rule that needs no test.
- `replaced` puts another value in an attribute's place.
"""

import __future__

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutation:
    """One rule switched off.

    `rule` is its number in the ledger protocol ("4.1", "section 5 step 7"), `defects` are those of
    section 13 that it prevents ("D8"), and `invariants` those of section 14 that fail without it.
    `apply` makes a context in which it is off, for the whole process.
    """

    name: str
    rule: str
    defects: tuple[str, ...]
    description: str
    apply: Callable[[], AbstractContextManager[None]]
    invariants: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    """Tests outside of the simulators that notice it, as `path::name` (`elsewhere.py`)."""


_changed_files: list[set[Path]] = []
"""What `files_changed_by` collects."""


def files_changed_by(mutation: Mutation) -> set[Path]:
    """The source files that have what the mutation changes, and the file that has the mutation.

    Raises:
        AssertionError: the mutation does not fit the code any more.
    """
    files: set[Path] = set()
    _changed_files.append(files)
    try:
        with mutation.apply():
            pass
    finally:
        _changed_files.pop()
    return files | {Path(inspect.getfile(inspect.unwrap(mutation.apply)))}


def _note(owner: object) -> None:
    if _changed_files:
        file = inspect.getsourcefile(owner if isinstance(owner, ModuleType | type) else type(owner))
        assert file is not None, f"{owner} has no source file"
        _changed_files[-1].add(Path(file))


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """`owner.name` is `value` inside the context. Owner: a class or a module."""
    _note(owner)
    before = inspect.getattr_static(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def edited(owner: object, name: str, *changes: tuple[str, str]) -> Iterator[None]:
    """The function, method or property `owner.name` with pieces of its text replaced.

    Each change is (old, new); the old text must be there exactly once. Indentation is that of the
    function's own first line, which counts as none.

    Raises:
        AssertionError: a text is not there, or more than once: the code has changed, and the
            mutation must follow it.
    """
    static = inspect.getattr_static(owner, name)
    wrap: Callable[[Any], object] | None = None
    if isinstance(static, property):
        assert static.fget is not None
        function, wrap = static.fget, property
    elif isinstance(static, staticmethod | classmethod):
        function, wrap = static.__func__, type(static)
    else:
        function = static
    assert isinstance(function, FunctionType), f"{name} is no function"
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        count = source.count(old)
        assert count == 1, f"{function.__qualname__} has {old!r} {count} times; expected once"
        source = source.replace(old, new)
    # Without its decorators: what they made of it is put back by `wrap`.
    while source.startswith("@"):
        source = source.split("\n", 1)[1]
    made: dict[str, FunctionType] = {}
    # The text is our own source file's, changed by a test.
    flags = function.__code__.co_flags & __future__.annotations.compiler_flag
    code = compile(source, f"<mutated {function.__qualname__}>", "exec", flags)
    exec(code, sys.modules[function.__module__].__dict__, made)
    mutant = made[function.__name__]
    with replaced(owner, name, mutant if wrap is None else wrap(mutant)):
        yield
