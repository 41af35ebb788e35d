"""One Iceberg table of an archive, through pyiceberg: rows with a watermark, compaction, expiry.

Commits are conditional on the newest snapshot. By default, pyiceberg retries a refused commit on a
newer snapshot, when the rows may be there already. In the end it deletes the files of a commit that
it believes refused, which is fatal if a proxy sent the request twice. Commits here bypass that loop
(`_commit`): each is made once, its files stay, and `append` looks at the table and decides
(`commits.py`).

Exceptions of pyiceberg, SQLAlchemy and object stores have no common base class. They are translated
here.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertTableUUID

from magnetar.arrow.errors import (
    CatalogError,
    EvolutionError,
    MagnetarArrowError,
    OptionError,
    TableBusyError,
    TableError,
)
from magnetar.arrow.iceberg.archive_rows import ENTRY, LEDGER, ORDER
from magnetar.arrow.iceberg.commits import (
    CompactionLimits,
    ExpiryLimits,
    FileSize,
    Head,
    Outcome,
    SnapshotAge,
    expired_snapshots,
    file_groups,
    outcome_of,
)
from magnetar.arrow.iceberg.evolution import evolved, stored_schema, stored_type
from magnetar.arrow.iceberg.watermark import Watermark, encode_watermark, parse_watermark

_log = logging.getLogger(__name__)

WATERMARK = "magnetar.watermark"
TOKEN = "magnetar.commit"
"""Properties of snapshots: docs/formats/iceberg-archive.md. They are stored: never rename them."""

_MAKING_TRIES = 3
"""Attempts to create a catalog's own tables, or a table, which two writers may create at once."""
COMMIT_TRIES_MAX = 8
_WAIT_FIRST_S, _WAIT_MAX_S = 0.1, 10.0
_LINE_CHARACTERS_MAX = 300

_PROPERTIES = {
    "format-version": "2",
    # A commit adds a manifest; without this a query would read one per commit.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "write.parquet.compression-codec": "zstd",
}
"""Properties of the tables that the archive creates."""

_DEFAULT_CATALOG = "default"


class Surroundings(Protocol):
    """What a table needs of its environment, beside the catalog."""

    def token(self) -> str:
        """Return a unique name for a commit."""

    def jitter(self) -> float:
        """Return a random number from 0.5 to 1.5."""

    def wait(self, seconds: float) -> bool:
        """Wait. Return True if the job is to end."""


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open the catalog with this name in pyiceberg's configuration, or the one at a URI.

    Args:
        name: `sqlite:///path`, `postgresql…`: SQL; `http(s)://…`: REST; else a name.
        properties: further ones, by pyiceberg's names.

    Raises:
        CatalogError: it cannot be opened.
    """
    given = dict(properties)
    scheme, is_uri, _ = name.partition("://")
    if is_uri:
        given.setdefault("type", "rest" if scheme in ("http", "https") else "sql")
        given["uri"] = name
        name = given.pop("name", _DEFAULT_CATALOG)
    for number in range(_MAKING_TRIES):
        try:
            return load_catalog(name, **given)
        except Exception as error:
            if number + 1 == _MAKING_TRIES:
                raise CatalogError(
                    f"catalog {name} cannot be opened: {_line(error)}; --catalog is a URI, as "
                    "sqlite:////data/catalog.db, or a name in pyiceberg's configuration"
                ) from error
    raise AssertionError("the last try returns or raises")


class IcebergTable:
    """A table of an archive. For one thread.

    Methods raise, beside what is named:
        CatalogError: an operation of the catalog or the storage fails.
    """

    def __init__(self, catalog: Catalog, name: str, surroundings: Surroundings) -> None:
        """`name`: `namespace.table`.

        Raises:
            OptionError: the name has no namespace.
        """
        self.name = name
        self._catalog = catalog
        self._around = surroundings
        self._identifier = tuple(name.split("."))
        if len(self._identifier) < 2 or not all(self._identifier):
            raise OptionError("table", f"{name!r} is not of the form namespace.table")
        self._table: Table | None = None
        self._failure: Exception | None = None
        """Error of the last attempt."""

    @property
    def is_there(self) -> bool:
        """Whether the table was found, or created."""
        return self._table is not None

    @property
    def uuid(self) -> str:
        return str(self._loaded.metadata.table_uuid)

    def load(self) -> Head:
        """Load the current state of the table; an empty head if the table does not exist.

        Raises:
            TableError: the table has snapshots that no archive has written.
        """
        with _translated(f"table {self.name}"):
            try:
                self._table = self._catalog.load_table(self._identifier)
            except NoSuchTableError:
                self._table = None
                return Head()
        return self._head()

    def create(self, schema: pa.Schema) -> Head:
        """Create the table if it does not exist.

        Another writer may create it, and its namespace, at the same time: a catalog may then refuse
        the second writer instead of finding the table.
        """
        for number in self._tries("creating it"):
            try:
                with _translated(f"table {self.name}"):
                    self._catalog.create_namespace_if_not_exists(self._identifier[:-1])
                    self._table = self._catalog.create_table_if_not_exists(
                        self._identifier, schema=schema, properties=_PROPERTIES
                    )
            except CatalogError as error:
                self._failure = error
                if number + 1 >= _MAKING_TRIES:
                    raise
            else:
                break
        return self._head()

    def takes(self, topic: pa.Schema) -> bool:
        """Return whether the table, as loaded, has these columns or can get them."""
        if not self.is_there:
            return True
        try:
            self._columns_for(topic)
        except EvolutionError:
            return False
        return True

    def evolve(self, topic: pa.Schema) -> None:
        """Add and widen columns, so that rows with these columns fit.

        Raises:
            EvolutionError: the change cannot be expressed.
        """
        wanted = self._columns_for(topic)
        if wanted is None:
            return
        for _ in self._tries("changing its columns"):
            try:
                self._commit(lambda changes, to=wanted: _widen(changes, to))  # type: ignore[misc]
                _log.info("%s: its columns are %s now", self.name, ", ".join(wanted.names))
            except Exception as error:  # noqa: BLE001 - the table says what came of it
                self._failure = error
            self._look_again()
            wanted = self._columns_for(topic)
            if wanted is None:
                return

    def append(self, rows: pa.Table, watermark: Watermark, planned: Head) -> Head:
        """Add rows and move the watermark, in one commit.

        `planned` is the table's head from when the missing rows were determined.

        Raises:
            TableBusyError: another archiver has moved the watermark since.
        """
        token = self._around.token()
        properties = {WATERMARK: encode_watermark(watermark), TOKEN: token}
        found = self._applied(token, planned)
        if found is not None:
            return found
        for _ in self._tries("adding rows"):
            try:
                self._commit(
                    lambda changes: changes.append(
                        self._fitting(rows), snapshot_properties=properties
                    )
                )
                return self._head()
            except Exception as error:  # noqa: BLE001 - the table says what came of it
                self._failure = error
                self._look_again()
            found = self._applied(token, planned)
            if found is not None:
                return found
        raise AssertionError("the tries end with an error")

    def places(self, ledger_ids: Collection[int]) -> set[tuple[object, ...]]:
        """Return topic, ledger, entry and index of all rows of these ledgers."""
        with _translated(f"table {self.name}: reading it"):
            chosen = f"{LEDGER} in ({', '.join(map(str, ledger_ids))})"
            scan = self._loaded.scan(chosen, selected_fields=ORDER)
            columns = scan.to_arrow().select(ORDER).to_pydict()
        return set(zip(*columns.values(), strict=True))

    def _applied(self, token: str, planned: Head) -> Head | None:
        """Return the head if the commit with this token is in the table; else None.

        Raises:
            TableBusyError: another archiver has moved the watermark since.
        """
        found = self._head()
        outcome = outcome_of(token, planned, found)
        if outcome is Outcome.OVERTAKEN:
            raise TableBusyError(
                f"table {self.name}: another archiver wrote at the same time; its rows are "
                "there, and the rest is read again"
            )
        return found if outcome is Outcome.DONE else None

    def compact(self, limits: CompactionLimits, *, groups_max: int) -> int:
        """Merge small files; return how many were merged. Give up if others change the table."""
        with _translated(f"table {self.name}: merging small files"):
            return self._compacted(limits, groups_max)

    def _compacted(self, limits: CompactionLimits, groups_max: int) -> int:
        head = self.load()
        tasks = {
            task.file.file_path: task
            for task in self._loaded.scan().plan_files()
            # Rows that another engine has deleted in place are left to that engine.
            if not task.delete_files
        }
        sizes = [
            FileSize(
                path,
                f"{each.file.spec_id}/{each.file.partition}",
                each.file.record_count,
                each.file.file_size_in_bytes,
            )
            for path, each in sorted(tasks.items(), key=self._first_place)
        ]
        merged = 0
        for group in file_groups(sizes, limits)[:groups_max]:
            head = self._merge([tasks[path] for path in group], head)
            merged += len(group)
        return merged

    def expire(self, limits: ExpiryLimits, *, now_ms: int) -> int:
        """Expire old snapshots, and delete the files that only they needed; return their number."""
        with _translated(f"table {self.name}: expiring snapshots"):
            return self._expired(limits, now_ms)

    def _expired(self, limits: ExpiryLimits, now_ms: int) -> int:
        self.load()
        metadata = self._loaded.metadata
        kept = {each.snapshot_id for each in metadata.refs.values()}
        marked = self._marked()
        if marked is not None:
            kept.add(marked.snapshot_id)
        ages = [SnapshotAge(each.snapshot_id, each.timestamp_ms) for each in metadata.snapshots]
        ids = set(expired_snapshots(ages, kept, limits, now_ms=now_ms))
        if not ids:
            return 0
        gone = [each for each in metadata.snapshots if each.snapshot_id in ids]
        self._loaded.maintenance.expire_snapshots().by_ids(sorted(ids)).commit()
        self.load()
        left = self._loaded.metadata.snapshots
        gone = [each for each in gone if each.snapshot_id not in {one.snapshot_id for one in left}]
        for path in self._only_in(gone, left):
            self._delete(path)
        return len(gone)

    # Parts of the above

    @property
    def _loaded(self) -> Table:
        assert self._table is not None, "the table is loaded or made first"
        return self._table

    def _tries(self, what: str) -> Iterator[int]:
        """Yield attempt numbers, with waits in between.

        Raises:
            CatalogError: all attempts are used up, or the job is to end.
        """
        self._failure = None
        tries = f"{COMMIT_TRIES_MAX} times"
        for number in range(COMMIT_TRIES_MAX):
            if number:
                wait_s = min(_WAIT_MAX_S, _WAIT_FIRST_S * 2**number)
                if self._around.wait(wait_s * self._around.jitter()):
                    tries = f"{number} times, and the job is to end"
                    break
            yield number
        raise CatalogError(
            f"table {self.name}: {what} failed {tries}: "
            f"{_line(self._failure) if self._failure else 'others changed it each time'}"
        ) from self._failure

    def _look_again(self) -> None:
        """Reload the table, if the catalog answers.

        If it does not, the next attempt uses the known state, and is refused if the last one was
        applied after all.
        """
        try:
            self.load()
        except CatalogError as error:
            self._failure = error

    def _commit(self, change: Callable[[Transaction], None]) -> None:
        """Apply changes in one commit, once, on the newest known snapshot."""
        table = self._loaded
        transaction = table.transaction()
        change(transaction)
        same_table = AssertTableUUID(uuid=table.metadata.table_uuid)
        table._do_commit(
            updates=transaction._updates, requirements=(*transaction._requirements, same_table)
        )

    def _head(self) -> Head:
        table = self._loaded
        snapshot = table.current_snapshot()
        if snapshot is None:
            return Head()
        marked = self._marked()
        if marked is None:
            raise TableError(
                f"table {self.name} has snapshots, and none of them carries an archive's watermark:"
                " it was made by something else, or another engine expired the archive's "
                "snapshots; archive to another table"
            )
        tokens = [_property(each, TOKEN) for each in self._ancestors()]
        return Head(
            snapshot.snapshot_id,
            parse_watermark(_property(marked, WATERMARK)),
            frozenset(filter(None, tokens)),
        )

    def _ancestors(self) -> Iterator[Snapshot]:
        """Yield the newest snapshot, and its ancestors that the table still has."""
        metadata = self._loaded.metadata
        snapshot = metadata.current_snapshot()
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else metadata.snapshot_by_id(parent)

    def _marked(self) -> Snapshot | None:
        """Return the newest snapshot that carries a watermark."""
        return next((each for each in self._ancestors() if _property(each, WATERMARK)), None)

    def _columns_for(self, topic: pa.Schema) -> pa.Schema | None:
        """Return the columns that rows with these columns need; None if the table has them.

        Raises:
            EvolutionError: the change cannot be expressed.
        """
        old = self._columns()
        wanted = evolved(old, topic)
        return None if wanted.equals(old) else wanted

    def _columns(self) -> pa.Schema:
        """Return the table's columns with the types of `evolution`."""
        found = schema_to_pyarrow(self._loaded.schema(), include_field_ids=False)
        return pa.schema([pa.field(each.name, stored_type(each.type)) for each in found])

    def _fitting(self, rows: pa.Table) -> pa.Table:
        """Cast rows to the types of the table's columns. Columns that the rows lack are null in the
        table."""
        wanted = stored_schema(list(rows.schema))
        known = self._columns()
        fields = []
        for each in wanted:
            kind = known.field(each.name).type
            fields.append(pa.field(each.name, each.type if pa.types.is_nested(kind) else kind))
        return rows.cast(pa.schema(fields))

    def _merge(self, tasks: Sequence[FileScanTask], head: Head) -> Head:
        """Write the rows of some files as one file, and replace them in one commit."""
        table = self._loaded
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        rows = scan.to_table(tasks)
        order = [(name, "ascending") for name in ORDER if name in rows.column_names]
        rows = rows.sort_by(order)
        properties = {WATERMARK: encode_watermark(head.watermark), TOKEN: self._around.token()}
        self._commit(lambda changes: _replace(changes, tasks, rows, properties))
        return self.load()

    def _first_place(self, item: tuple[str, FileScanTask]) -> tuple[int, ...]:
        """Return the first ledger and entry of a file's rows, from the file's lower bounds."""
        bounds = item[1].file.lower_bounds or {}
        schema = self._loaded.schema()
        found = (bounds.get(schema.find_field(name).field_id, b"") for name in (LEDGER, ENTRY))
        return tuple(int.from_bytes(each, "little", signed=True) for each in found)

    def _only_in(self, gone: Sequence[Snapshot], left: Sequence[Snapshot]) -> set[str]:
        """Return paths of files that no remaining snapshot needs."""
        io = self._loaded.io
        needed = {each.manifest_path: each for snapshot in left for each in snapshot.manifests(io)}
        unneeded = {
            each.manifest_path: each
            for snapshot in gone
            for each in snapshot.manifests(io)
            if each.manifest_path not in needed
        }
        data = {
            entry.data_file.file_path
            for manifest in unneeded.values()
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=False)
        }
        for manifest in needed.values() if data else ():
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
                if entry.status != ManifestEntryStatus.DELETED:
                    data.discard(entry.data_file.file_path)
        return data | set(unneeded) | {each.manifest_list for each in gone}

    def _delete(self, path: str) -> None:
        """Delete an unneeded file. A file that stays costs space, and nothing else."""
        try:
            self._loaded.io.delete(path)
        except Exception as error:  # noqa: BLE001 - of any object store
            _log.warning("%s: %s could not be deleted: %s", self.name, path, _line(error))


def _widen(changes: Transaction, wanted: pa.Schema) -> None:
    with changes.update_schema() as update:
        update.union_by_name(wanted)


def _replace(
    transaction: Transaction,
    tasks: Sequence[FileScanTask],
    rows: pa.Table,
    properties: dict[str, str],
) -> None:
    table = transaction._table
    with transaction.update_snapshot(snapshot_properties=properties).overwrite() as producer:
        for data_file in _dataframe_to_data_files(
            table_metadata=transaction.table_metadata,
            df=rows,
            io=table.io,
            write_uuid=producer.commit_uuid,
        ):
            producer.append_data_file(data_file)
        for task in tasks:
            producer.delete_data_file(task.file)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Translate errors of other libraries to CatalogError."""
    try:
        yield
    except MagnetarArrowError:
        raise
    except Exception as error:
        raise CatalogError(f"{what}: {_line(error)}") from error


def _property(snapshot: Snapshot, name: str) -> str:
    summary = snapshot.summary
    return "" if summary is None else str(summary.additional_properties.get(name, ""))


def _line(error: BaseException) -> str:
    """Return another library's error text, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LINE_CHARACTERS_MAX else f"{text[:_LINE_CHARACTERS_MAX]}…"
