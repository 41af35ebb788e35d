"""The proof of tiered storage in short. `make offload-proof` is the long form."""

from pathlib import Path

import pytest

from tests.offload_proof.content import Seen, difference, payloads
from tests.offload_proof.proof import Plan, run

_BYTES = 8_000_000


def test_no_payload_is_like_another_one() -> None:
    assert len(set(payloads(1, count=2_000, size=64))) == 2_000
    assert set(payloads(1, count=9, size=64)).isdisjoint(payloads(2, count=9, size=64))


def test_a_difference_is_told_by_its_first_message() -> None:
    published = [Seen(1, 0, -1, "a"), Seen(1, 1, -1, "b")]
    assert difference(published, published) == ""
    assert "message 1" in difference(published, [published[0], Seen(1, 1, -1, "c")])
    assert "2 messages were published, 1 were read" in difference(published, published[:1])


@pytest.mark.timeout(1200)  # on a machine that does other things
@pytest.mark.parametrize("store", ["s3", pytest.param("directory", marks=pytest.mark.nightly)])
def test_what_lies_in_a_store_only_is_read_byte_for_byte_in_every_way(
    store: str, tmp_path: Path
) -> None:
    result = run(Plan(_BYTES, store), tmp_path / "proof")
    assert result["ok"], result["problems"]
    assert result["objects"] >= 8
