"""Keys of proofs that need no repetition (`tests/proven.py`)."""

from pathlib import Path

import pytest

from tests import proven
from tests.proven import key_of_files

_BEFORE = '''"""A counter."""

LIMIT = 3
"""Largest count."""


def count(numbers):
    """Return how many there are."""
    return len(numbers)  # in one go
'''


def _key_of(text: str, folder: Path, name: str = "counter.py") -> str:
    path = folder / name
    path.write_text(text)
    proven._code_of.cache_clear()
    return key_of_files([path])


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(proven, "ROOT", tmp_path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""A counter."""', '"""Counts."""'),
        ('"""Largest count."""\n', ""),
        ('"""Return how many there are."""', '"""Return the count.\n\n    Always.\n    """'),
        ("  # in one go", ""),
        ("\n\n\ndef", "\n\ndef"),
    ],
)
def test_better_words_prove_nothing_anew(before: str, after: str, tmp_path: Path) -> None:
    assert before in _BEFORE
    changed = _key_of(_BEFORE.replace(before, after), tmp_path)
    assert changed == _key_of(_BEFORE, tmp_path)


@pytest.mark.parametrize(
    ("before", "after"), [("LIMIT = 3", "LIMIT = 4"), ("len(numbers)", "len(numbers) + 1")]
)
def test_changed_code_is_proven_anew(before: str, after: str, tmp_path: Path) -> None:
    assert before in _BEFORE
    changed = _key_of(_BEFORE.replace(before, after), tmp_path)
    assert changed != _key_of(_BEFORE, tmp_path)


def test_what_is_no_python_counts_as_it_is(tmp_path: Path) -> None:
    assert _key_of("a: 1 # one\n", tmp_path, "a.yaml") != _key_of("a: 1\n", tmp_path, "a.yaml")


def test_a_run_of_some_proofs_leaves_the_keys_of_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "proven.json"
    file.write_text('{"spark": "old", "storage/a": "old", "storage/gone": "old"}')
    monkeypatch.setattr(proven, "FILE", file)
    monkeypatch.setattr(proven, "key_of", lambda name: "new")
    monkeypatch.setattr(proven, "_all_names", lambda: {"spark", "storage/a", "storage/b"})
    proven._recorded.cache_clear()
    proven.record(["storage/b"])
    proven._recorded.cache_clear()
    assert proven._recorded() == {"spark": "old", "storage/a": "old", "storage/b": "new"}
    proven._recorded.cache_clear()
