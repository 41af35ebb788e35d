"""An archive on its storage: reads and writes its log, and reads its files as one table.

Topics' schemas change, so a column has its widest type of all files (`widest`). Spark merges the
columns of files only where types are equal. It reads a narrow type as a wide one if the schema says
so.

The jobs run where their Parquet is: on local disks, HDFS or object stores. The log of an archive is
therefore read and written through the same file systems, by Hadoop's classes, and needs nothing but
the session (`Storage`).
"""

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StructField,
    StructType,
)

from magnetar.sdk.spark.errors import ArchiveBusyError, ArchiveError
from magnetar.sdk.spark.pipeline.archive_log import (
    COMMITS_PER_STATE,
    UNKNOWN_DAY,
    ArchiveState,
    Commit,
    DataFile,
    Watermark,
    commit_name,
    encode_commit,
    encode_state,
    fold,
    has_state,
    number_of,
    removed_by,
)

LOG, DATA, CHECKPOINT = "log", "data", "checkpoint"
TOPIC, DAY, COMMIT = "topic", "day", "commit"
"""Columns that are in the paths of files instead of in the files."""
LEDGER, ENTRY, INDEX = "__ledgerId", "__entryId", "__batchIndex"
"""The parts of `__messageId`, for sorting rows."""
ORDER = (TOPIC, LEDGER, ENTRY, INDEX)


@dataclass(frozen=True, slots=True)
class Written:
    """The files of a directory, and the last message of each topic in them."""

    files: tuple[DataFile, ...]
    watermarks: Mapping[str, Watermark]


class ArchiveStore:
    """An archive with one writer at a time: a job that finds another job's commit ends."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        """Load the state of an archive.

        Raises:
            ArchiveError: its log is damaged.
        """
        self._spark = spark
        self.storage = Storage(spark, directory)
        self.state = self._load()

    def commit(self, commit: Commit) -> None:
        """Write a commit to the log, and delete the files that it removes.

        Raises:
            ArchiveBusyError: another job has committed.
        """
        number = self.state.next_commit
        self.storage.create(f"{LOG}/{commit_name(number)}", encode_commit(commit))
        self.state = self.state.after(commit)
        for path in commit.remove:
            self.storage.delete(path)
        if self.state.commits_since_state >= COMMITS_PER_STATE:
            number = self.state.next_commit
            self.storage.create(f"{LOG}/{commit_name(number)}", encode_state(self.state))
            self.state = fold([(number, encode_state(self.state))])
            for name in self.storage.names(LOG):
                found = number_of(name)
                if found is not None and found < number:
                    self.storage.delete(f"{LOG}/{name}")

    def new_directory(self) -> str:
        """Return the directory for the files of the next commit."""
        suffix = f"{random.Random().getrandbits(32):08x}"
        return f"{DATA}/{COMMIT}={self.state.next_commit:08d}-{suffix}"

    def remove_leftovers(self) -> int:
        """Delete leftovers of killed jobs; return the number of directories.

        These are directories that no commit names, and files that the last commit has removed.

        Raises:
            ArchiveBusyError: another job has committed meanwhile.
        """
        for path in self._removed_last() - self.state.files.keys():
            # The log does not name them, but a reader of the directory as a table would find rows
            # twice.
            self.storage.delete(path)
        used = {path.split("/")[1] for path in self.state.files}
        leftovers = [name for name in self.storage.names(DATA) if name not in used]
        if leftovers:
            # A job that still runs looks like one that was killed. It must not commit the files
            # that are deleted here: this commit takes its number, and thereby ends it.
            self.commit(Commit())
        for name in leftovers:
            self.storage.delete(f"{DATA}/{name}")
        return len(leftovers)

    def written(self, directory: str) -> Written:
        """Return the files that were just written to a directory, as they read back."""
        if not any(name.startswith(f"{TOPIC}=") for name in self.storage.names(directory)):
            return Written((), {})
        counts = (
            self._reader()
            .parquet(self.storage.at(directory))
            .groupBy(
                "_metadata.file_path",
                "_metadata.file_size",
                TOPIC,
                day_of_path().alias(DAY),
            )
            .agg(f.count("*").alias("rows"), f.max(f.struct(LEDGER, ENTRY, INDEX)).alias("last"))
            .collect()
        )
        found = []
        marks: dict[str, Watermark] = {}
        for row in counts:
            url = unquote(row["file_path"])
            path = url[url.index(f"/{directory}/") + 1 :]
            found.append(DataFile(path, row[TOPIC], row[DAY], row["rows"], row["file_size"]))
            last = Watermark(*row["last"])
            marks[row[TOPIC]] = max(last, marks.get(row[TOPIC], last))
        return Written(tuple(sorted(found, key=lambda each: each.path)), marks)

    def read(self, files: Collection[DataFile] | None = None) -> DataFrame:
        """Return the rows of all files, or of some, in no particular order.

        Raises:
            ArchiveError: there are no files, or a column has incompatible types.
        """
        chosen = list(self.state.files.values() if files is None else files)
        if not chosen:
            raise ArchiveError(f"{self.storage.url} holds no rows; is it an archive?")
        urls = [self.storage.at(each.path) for each in chosen]
        try:
            return self._reader().option("mergeSchema", "true").parquet(*urls).drop(COMMIT)
        except Py4JJavaError as error:
            if "CANNOT_MERGE_SCHEMAS" not in str(error.java_exception):
                raise
        # The files of a commit were written together, and have the same columns.
        firsts = {each.path.split("/")[1]: each.path for each in chosen}
        schemas = [self._reader().parquet(self.storage.at(path)).schema for path in firsts.values()]
        return self._reader().schema(widest(schemas)).parquet(*urls).drop(COMMIT)

    def _reader(self) -> DataFrameReader:
        return self._spark.read.option("basePath", self.storage.at(DATA))

    def _load(self) -> ArchiveState:
        commits: list[tuple[int, str]] = []
        for number in reversed(self._commit_numbers()):
            text = self.storage.read(f"{LOG}/{commit_name(number)}")
            commits.append((number, text))
            if has_state(text):
                break  # a killed job may have deleted some of those before it
        return fold(reversed(commits))

    def _removed_last(self) -> frozenset[str]:
        """Return what the last commit removes: all of it is deleted before the next commit."""
        numbers = self._commit_numbers()
        if not numbers:
            return frozenset()
        return removed_by(self.storage.read(f"{LOG}/{commit_name(numbers[-1])}"))

    def _commit_numbers(self) -> list[int]:
        return sorted(
            number for name in self.storage.names(LOG) if (number := number_of(name)) is not None
        )


def day_of_path() -> Column:
    """Return the day of a row; files of older releases have none for `UNKNOWN_DAY`."""
    return f.coalesce(f.col(DAY).cast("string"), f.lit(UNKNOWN_DAY))


_WIDER = ((IntegerType(), LongType()), (IntegerType(), DoubleType()), (FloatType(), DoubleType()))
"""Types in Parquet that Spark can read as a wider type."""


def widest(schemas: list[StructType]) -> StructType:
    """Return the columns of all schemas, in the order of first occurrence.

    Raises:
        ArchiveError: a column has two types of which neither is wider than the other.
    """
    return reduce(_struct, schemas)


def _struct(one: StructType, other: StructType, at: str = "") -> StructType:
    fields = {each.name: each for each in one.fields}
    for each in other.fields:
        known = fields.get(each.name)
        kind = each.dataType
        if known is not None:
            kind = _type(known.dataType, kind, f"{at}{each.name}")
        fields[each.name] = StructField(each.name, kind)
    return StructType(list(fields.values()))


def _type(one: DataType, other: DataType, at: str) -> DataType:
    if isinstance(one, StructType) and isinstance(other, StructType):
        return _struct(one, other, f"{at}.")
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_type(one.elementType, other.elementType, at))
    if isinstance(one, MapType) and isinstance(other, MapType):
        return MapType(one.keyType, _type(one.valueType, other.valueType, at))
    if one == other or (other, one) in _WIDER:
        return one
    if (one, other) in _WIDER:
        return other
    raise ArchiveError(
        f"column {at} is {one.simpleString()} in some files and {other.simpleString()} in others; "
        f"read them one by one"
    )


class Storage:
    """Files below one directory, named by paths relative to it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        """`root` is a path or URL in Spark's form."""
        jvm: Any = spark._jvm
        self._jvm = jvm
        hadoop = jvm.org.apache.hadoop.fs
        configuration = spark._jsc.hadoopConfiguration()
        self._files = hadoop.Path(root).getFileSystem(configuration)
        self._root = self._files.makeQualified(hadoop.Path(root))
        self._context = hadoop.FileContext.getFileContext(self._root.toUri(), configuration)

    @property
    def url(self) -> str:
        return str(self._root.toString())

    def at(self, path: str) -> str:
        """Return the full URL of a path below the directory."""
        return f"{self.url}/{path}"

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted; empty if the directory does not exist."""
        path = self._path(directory)
        if not self._files.exists(path):
            return []
        return sorted(each.getPath().getName() for each in self._files.listStatus(path))

    def read(self, path: str) -> str:
        stream = self._files.open(self._path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def create(self, path: str, text: str) -> None:
        """Write a file that must not exist yet: as a whole, or not at all.

        Raises:
            ArchiveBusyError: the file exists.
        """
        hadoop = self._jvm.org.apache.hadoop.fs
        target = self._path(path)
        draft = hadoop.Path(target.getParent(), f".{target.getName()}.{self._unique()}")
        stream = self._files.create(draft, True)
        try:
            stream.write(bytearray(text, "utf-8"))
            stream.hsync()
        finally:
            stream.close()
        no_options = self._jvm.java.lang.reflect.Array.newInstance(
            self._jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename"), 0
        )
        try:
            self._context.rename(draft, target, no_options)
        except Py4JJavaError as error:
            self._files.delete(draft, False)
            if "FileAlreadyExists" in str(error.java_exception.getClass().getName()):
                raise ArchiveBusyError(
                    f"{self.at(path)} already exists: another job writes to this archive"
                ) from None
            raise

    def delete(self, path: str) -> None:
        """Delete a file or a whole directory; do nothing if it does not exist."""
        self._files.delete(self._path(path), True)

    def _unique(self) -> str:
        return str(self._jvm.java.util.UUID.randomUUID().toString())[:8]

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path)
