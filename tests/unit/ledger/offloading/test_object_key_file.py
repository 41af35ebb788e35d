"""The file of keys for objects: what is in it, who may read it, and what an error shows."""

import os
from pathlib import Path

import pytest

from magnetar.ledger.errors import ObjectKeyConfigError
from magnetar.ledger.offloading.object_key_file import (
    FILE_BYTES_MAX,
    parse_object_keys,
    read_object_keys,
)

ONE, OTHER = bytes(range(32)), bytes(reversed(range(32)))
TEXT = f"# keys of objects\n2026 {ONE.hex()}\n\n  2027.b {OTHER.hex().upper()}\n"


def file_with(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_each_line_has_an_id_and_a_key(tmp_path: Path) -> None:
    ring = read_object_keys(file_with(tmp_path / "keys", TEXT), new_key_id="2027.b")
    assert (dict(ring.keys), ring.new_key_id) == ({"2026": ONE, "2027.b": OTHER}, "2027.b")
    assert ONE.hex() not in repr(ring)


@pytest.mark.parametrize(
    "line",
    [
        ONE.hex(),
        f"2026 {ONE.hex()[1:]}",
        f"2026 {ONE.hex()}0",
        f"2026 {ONE.hex()} more",
        f"2026={ONE.hex()}",
        f"{'i' * 65} {ONE.hex()}",
        f"../2026 {ONE.hex()}",
        "2026 " + "x" * 64,
    ],
)
def test_another_line_is_refused_by_its_number_and_not_shown(line: str) -> None:
    with pytest.raises(ObjectKeyConfigError, match="it, line 2: expected `ID HEX`") as caught:
        parse_object_keys(f"2026 {OTHER.hex()}\n{line}\n", where="it")
    assert ONE.hex()[:16] not in str(caught.value)


def test_an_id_twice_and_a_file_without_a_key_are_refused() -> None:
    with pytest.raises(ObjectKeyConfigError, match="line 2: the key 'a' is there twice"):
        parse_object_keys(f"a {ONE.hex()}\na {OTHER.hex()}", where="it")
    with pytest.raises(ObjectKeyConfigError, match="it has no key"):
        parse_object_keys("# none yet\n", where="it")


def test_an_id_may_have_64_characters() -> None:
    assert parse_object_keys(f"{'i' * 64} {ONE.hex()}", where="it") == {"i" * 64: ONE}


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o602, 0o666, 0o777])
def test_a_file_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = file_with(tmp_path / "keys", TEXT, mode)
    with pytest.raises(ObjectKeyConfigError, match=rf"mode {mode:04o}.*chmod 600"):
        read_object_keys(path)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640])
def test_its_owner_and_a_group_may_read_it(tmp_path: Path, mode: int) -> None:
    assert len(read_object_keys(file_with(tmp_path / "keys", TEXT, mode)).keys) == 2


def test_the_key_for_new_objects_must_be_in_it(tmp_path: Path) -> None:
    path = file_with(tmp_path / "keys", TEXT)
    with pytest.raises(ObjectKeyConfigError, match=r"no key '2028' .*'2026', '2027.b'"):
        read_object_keys(path, new_key_id="2028")


def test_what_is_no_file_of_text_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ObjectKeyConfigError, match=r"cannot read .*No such file"):
        read_object_keys(tmp_path / "none")
    with pytest.raises(ObjectKeyConfigError, match="Is a directory"):
        read_object_keys(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ObjectKeyConfigError, match="is not a file"):
        read_object_keys(tmp_path / "pipe")
    (tmp_path / "keys").write_bytes(b"\xff" * 40)
    (tmp_path / "keys").chmod(0o600)
    with pytest.raises(ObjectKeyConfigError, match="not a text in ASCII"):
        read_object_keys(tmp_path / "keys")


def test_the_file_has_a_bound(tmp_path: Path) -> None:
    rest = FILE_BYTES_MAX - len(TEXT) - 2
    path = file_with(tmp_path / "keys", f"{TEXT}# {'x' * rest}")
    assert len(read_object_keys(path).keys) == 2
    file_with(path, f"{TEXT}# {'x' * (rest + 1)}")
    with pytest.raises(ObjectKeyConfigError, match="longer than"):
        read_object_keys(path)
