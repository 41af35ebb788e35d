from magnetar.bookie.requests.write_gate import ReadOnlyReason, WriteGate


def test_a_new_gate_refuses_nothing() -> None:
    gate = WriteGate()
    assert gate.is_wide_open
    assert gate.is_writable
    assert gate.refusal(1, is_recovery=False) is None


def test_ordinary_adds_are_refused_while_any_reason_holds() -> None:
    gate = WriteGate()
    gate.close(ReadOnlyReason.FORCED)
    gate.close(ReadOnlyReason.DISK_FULL)
    gate.open(ReadOnlyReason.FORCED)
    assert not gate.is_writable
    assert gate.refusal(1, is_recovery=False) == ReadOnlyReason.DISK_FULL.value
    gate.open(ReadOnlyReason.DISK_FULL)
    assert gate.is_wide_open


def test_recovery_adds_are_taken_for_as_long_as_there_is_room_for_them() -> None:
    gate = WriteGate()
    gate.close(ReadOnlyReason.DISK_FULL)
    assert gate.refusal(1, is_recovery=True) is None
    gate.set_room(full_shards=frozenset({0}), has_room_for_recovery=False)
    assert gate.refusal(1, is_recovery=True) is not None
    # The bytes only matter while a disk is full: a small disk is no full one.
    gate.open(ReadOnlyReason.DISK_FULL)
    gate.set_room(full_shards=frozenset(), has_room_for_recovery=False)
    assert gate.is_wide_open
    assert gate.refusal(1, is_recovery=True) is None


def test_a_full_directory_refuses_the_adds_of_its_own_ledgers_only() -> None:
    gate = WriteGate()
    gate.use_shards(lambda ledger_id: ledger_id % 2)
    gate.set_room(full_shards=frozenset({1}), has_room_for_recovery=True)
    assert gate.is_writable
    assert not gate.is_wide_open
    assert gate.refusal(2, is_recovery=False) is None
    assert gate.refusal(3, is_recovery=False) is not None
    assert gate.refusal(3, is_recovery=True) is None


def test_only_what_may_last_and_the_drain_make_the_registration_read_only() -> None:
    gate = WriteGate()
    changes: list[bool] = []
    gate.on_change = lambda: changes.append(gate.is_read_only_mode)
    for reason in ReadOnlyReason:
        gate.close(reason)
        gate.close(reason)  # no news
        gate.open(reason)
    lasting = {ReadOnlyReason.FORCED, ReadOnlyReason.DISK_FULL, ReadOnlyReason.DRAINING}
    assert changes == [each for reason in ReadOnlyReason for each in (reason in lasting, False)]
