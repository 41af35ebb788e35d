"""Reading and changing single records of tenants, namespaces and policies."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.policies.model import Record, decode
from magnetar.ledger.errors import (
    BadVersionError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.store import MetadataStore

_CHANGES_TRIED = 40
"""Of those who change a record at once one wins each time; brokers fan out to 16 requests."""

R = TypeVar("R", bound=Record)
T = TypeVar("T")


async def asked(answer: Awaitable[T], what: str) -> T:
    """An answer of the store.

    Raises:
        NoNodeError: as it came.
        BrokerMetadataError: any other trouble; `what` says what was tried.
    """
    try:
        return await answer
    except NoNodeError:
        raise
    except MetadataError as error:
        raise BrokerMetadataError(f"cannot {what}: {error}") from error


async def read_record(
    store: MetadataStore, kind: type[R], path: str, *, is_sure: bool = False
) -> tuple[R, int] | None:
    """A record and its version; None: there is none. With `is_sure`, absence is asked for twice:
    the server that answered may have been behind.

    Raises:
        BrokerMetadataError
    """
    found = await _read(store, kind, path, is_sure=is_sure)
    return (found[0], found[1]) if found is not None and found[0] is not None else None


async def _read(
    store: MetadataStore, kind: type[R], path: str, *, is_sure: bool
) -> tuple[R | None, int] | None:
    """The same; a node without a value, which is there for its children alone, holds no record but
    has a version."""
    for attempt in (0, 1):
        try:
            found = await asked(store.get(path), f"read {path}")
        except NoNodeError:
            if not is_sure or attempt:
                return None
            await asked(store.catch_up(), f"read {path}")
        else:
            return (decode(kind, path, found.value) if found.value else None, found.version)
    return None


async def change_record(
    store: MetadataStore,
    kind: type[R],
    path: str,
    change: Callable[[R | None], R | None],
) -> R | None:
    """Replace a record by what `change` makes of it; None stands for no node. Returns it.

    `change` is called again when somebody else was faster, and raises to leave all as it is. It is
    not asked about what it has made itself, by a write whose outcome nobody knew at first.

    Raises:
        BrokerMetadataError: also when the record changed too often meanwhile.
    """
    tried: tuple[R | None] | None = None
    for _ in range(_CHANGES_TRIED):
        found = await _read(store, kind, path, is_sure=True)
        before, version = found if found is not None else (None, None)
        if tried is not None and before == tried[0]:
            return before
        after = change(before)
        if after == before:
            return after
        try:
            if version is None:
                assert after is not None, "it differs from what is not there"
                await store.create(path, after.encode())
            elif after is None:
                await store.delete(path, version=version)
            else:
                await store.set(path, after.encode(), version=version)
        except UnknownOutcomeError:
            tried = (after,)
            continue  # Perhaps it is there: look.
        except (BadVersionError, NodeExistsError, NoNodeError):
            continue  # Somebody else changed it: look again.
        except MetadataError as error:
            raise BrokerMetadataError(f"cannot change {path}: {error}") from error
        return after
    raise BrokerMetadataError(f"{path} was not changed: others did, {_CHANGES_TRIED} times")
