"""Random runs of offloading with manifests hold what these promise."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from magnetar.ledger.managed_log.log_objects import ObjectState
from magnetar.ledger.offloading import manifest_sweep, manifest_writer
from magnetar.ledger.offloading.log_manifest import LogManifest
from magnetar.ledger.offloading.manifest_writer import ManifestWriter
from tests.simulation.offloading.manifests import execute


@pytest.mark.parametrize("seed", range(40))
def test_a_manifest_names_what_is_there_and_the_newest_stays(seed: int) -> None:
    run = execute(seed)
    assert not run.problems, "\n".join([*run.problems[:5], run.sim.history.text()[-20_000:]])


def keeping_the_oldest(found: Any, _reached: object) -> Sequence[str]:
    return [key for key, _ in found[1:]]


def keeping_all(_found: object, _reached: object) -> Sequence[str]:
    return ()


def naming_too_early(node: Any) -> Any:
    """The node as if every ledger that is being copied were copied."""
    return node.with_ledgers(
        replace(each, object=replace(each.object, state=ObjectState.COPIED))
        if each.object is not None
        else each
        for each in node.ledgers
    )


def early_manifest(*fields: Any) -> Any:
    instance_id, path, version, written_ms, node, *rest = fields
    return LogManifest(instance_id, path, version, written_ms, naming_too_early(node), *rest)


def never(*_: object) -> bool:
    return False


@pytest.mark.parametrize(
    ("owner", "name", "instead", "invariant"),
    [
        (manifest_sweep, "_old_in", keeping_the_oldest, "OM2"),
        (manifest_sweep, "_old_in", keeping_all, "OM3"),
        (manifest_writer, "LogManifest", early_manifest, "OM1"),
        (ManifestWriter, "is_due", never, "OM3"),
    ],
)
def test_a_rule_that_is_switched_off_is_noticed(
    owner: Any,
    name: str,
    instead: Callable[..., Any],
    invariant: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, name, instead)
    for seed in range(40):
        if any(each.startswith(invariant) for each in execute(seed).problems):
            return
    pytest.fail(f"no run notices a breach of {invariant}")
