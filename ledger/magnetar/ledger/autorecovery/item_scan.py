"""Finds work items without polling: lists them, and waits for a watch when there is nothing to do.

A watch on a directory costs a listing each time the directory changes. So none is set while there
is work: thousands of items would be listed once for each that is finished. When a listing finds
nothing to do, the directories are watched, and listed again, since an item may have arrived in
between. The pause between listings grows with the duration of a listing (defect A12).
"""

import random
from collections.abc import Callable

from magnetar.ledger.autorecovery.work_items import WorkItems, locks_path
from magnetar.ledger.metadata.store import MetadataStore, Watch, WatchEvent
from magnetar.ledger.ports import Clock

_PAUSE_FACTOR = 10
"""Pause after a listing, as a multiple of its duration: at most an eleventh of the time goes into
listings."""


class ItemScan:
    """The items that no worker has locked, as one worker sees them."""

    def __init__(
        self,
        items: WorkItems,
        store: MetadataStore,
        *,
        clock: Clock,
        random: random.Random,
        root: str,
        rescan_s: float,
        pause_s: float,
        on_news: Callable[[], None],
    ) -> None:
        self._items = items
        self._store = store
        self._clock = clock
        self._random = random
        self._root = root
        self._rescan_s = rescan_s
        self._pause_s = pause_s
        self._on_news = on_news
        self._watches: list[Watch] = []
        self._is_dirty = True
        self._next_s = 0.0
        """No listing before this time."""
        self._rescan_at_s = 0.0
        self.scans = 0

    def look_again(self) -> None:
        """Note that there may be new items since the last listing."""
        self._is_dirty = True

    @property
    def due_at_s(self) -> float:
        """When the next listing is due, if nothing happens before."""
        return self._next_s if self._is_dirty else self._rescan_at_s

    async def find(self, is_ours: Callable[[int], bool]) -> list[int]:
        """Return the ledgers with an item that no worker has locked, in random order, so that
        workers rarely collide. `is_ours` says which ledgers the caller works on already, or has
        postponed.

        Raises:
            MetadataUnavailableError
        """
        self._stop_watching()
        self._is_dirty = False
        started_s = self._clock.monotonic_s()
        try:
            found, paths = await self._list(is_ours)
            while not found:
                before = paths
                for path in paths:
                    self._watches.append(self._store.watch(path, self._on_event))
                found, paths = await self._list(is_ours)
                if set(paths) == set(before):
                    break
                self._stop_watching()  # a new directory: it needs a watch, too
        except BaseException:
            self._is_dirty = True
            raise
        finally:
            now_s = self._clock.monotonic_s()
            self._next_s = now_s + max(self._pause_s, _PAUSE_FACTOR * (now_s - started_s))
            self._rescan_at_s = now_s + self._rescan_s
        if found:
            self._stop_watching()
            self._is_dirty = True  # nothing is watched: list again when these are done
            self._random.shuffle(found)
        return found

    def close(self) -> None:
        self._stop_watching()

    async def _list(self, is_ours: Callable[[int], bool]) -> tuple[list[int], list[str]]:
        self.scans += 1
        directories = await self._items.directories()
        ids = [each for _, ids in directories for each in ids if not is_ours(each)]
        locked = await self._items.locked_ids() if ids else set()
        paths = [path for path, _ in directories]
        return [each for each in ids if each not in locked], [*paths, locks_path(self._root)]

    def _on_event(self, event: WatchEvent) -> None:
        # One event is enough: further changes are not worth a listing each.
        self._stop_watching()
        self._is_dirty = True
        self._on_news()

    def _stop_watching(self) -> None:
        watches, self._watches = self._watches, []
        for watch in watches:
            watch.close()
