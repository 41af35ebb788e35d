"""Keys of objects: apart for each cluster, log, ledger and attempt, and read back."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.offloading.object_keys import (
    LOG_NAME_CHARS_MAX,
    ledgers_prefix,
    object_base,
    parse_key,
)
from magnetar.ledger.offloading.object_store import KEY_BYTES_MAX, is_key

ATTEMPT = "0123456789abcdef" * 2
LOGS = st.text(min_size=1, max_size=300).map(lambda text: f"/managed-ledgers/{text}")
PREFIXES = st.sampled_from(["", "magnetar/", "a/b/"])


@given(LOGS, PREFIXES, st.integers(0, (1 << 63) - 1))
def test_a_key_tells_its_ledger_and_attempt_and_the_log_unless_that_is_too_long(
    log: str, prefix: str, ledger_id: int
) -> None:
    base = object_base("s", prefix, "instance", log)
    key = base.key(ledger_id, ATTEMPT)
    assert is_key(key)
    assert len(key.encode()) <= KEY_BYTES_MAX
    assert key.startswith(ledgers_prefix(prefix, "instance"))
    found = parse_key(key)
    assert found is not None
    assert (found.directory, found.ledger_id, found.attempt) == (base.prefix, ledger_id, ATTEMPT)
    name = base.prefix.rstrip("/").rpartition("/")[2]
    assert len(name) <= LOG_NAME_CHARS_MAX
    assert found.log in (log, None)
    assert found.log is not None or len(name) == LOG_NAME_CHARS_MAX


@given(LOGS, LOGS)
def test_two_logs_have_no_key_in_common(one: str, other: str) -> None:
    bases = {object_base("s", "", "instance", each).prefix for each in (one, other)}
    assert len(bases) == len({one, other})


def test_other_keys_are_none_of_a_ledger() -> None:
    key = object_base("s", "", "i", "/log").key(7, ATTEMPT)
    others = (key + "x", key[:-5], "probe/x", key.replace("/ledgers/", "/others/"), "")
    for other in others:
        assert parse_key(other) is None
