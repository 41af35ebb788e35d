"""An archive on its storage: reading and writing its log, its files as one table.

Topics' schemas change, so a column is as wide as in any file (`widest`). Spark merges the columns
of files only where types are equal. It reads a narrow one as a wide one if it is told to.

The jobs must run where their Parquet lies, on local disks, HDFS or object stores; so the log of an
archive is read and written by the same file systems, by Hadoop's classes, and needs nothing but the
session (`Storage`).
"""

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
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
"""The parts of `__messageId`, so that rows can be put in order."""
ORDER = (TOPIC, LEDGER, ENTRY, INDEX)


@dataclass(frozen=True, slots=True)
class Written:
    """The files of a directory, and the last message of each topic in them."""

    files: tuple[DataFile, ...]
    watermarks: Mapping[str, Watermark]


class ArchiveStore:
    """One writer at a time: who finds a commit of somebody else ends."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        """
        Raises:
            ArchiveError: its log is damaged.
        """
        self._spark = spark
        self.storage = Storage(spark, directory)
        self.state = self._load()

    def commit(self, commit: Commit) -> None:
        """Make it a part of the archive, and delete what it removes.

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
        """Where the files of the next commit go."""
        suffix = f"{random.Random().getrandbits(32):08x}"
        return f"{DATA}/{COMMIT}={self.state.next_commit:08d}-{suffix}"

    def remove_leftovers(self) -> int:
        """Delete what jobs that were killed have left: directories that no commit names, and files
        that the last one has removed. Returns how many directories.

        Raises:
            ArchiveBusyError: another job has committed meanwhile.
        """
        for path in self._removed_last() - self.state.files.keys():
            # Nobody finds them by the log; who reads the directory as a table finds rows twice.
            self.storage.delete(path)
        used = {path.split("/")[1] for path in self.state.files}
        leftovers = [name for name in self.storage.names(DATA) if name not in used]
        if leftovers:
            # A job that still runs looks like one that was killed. It must not commit what is
            # deleted here: this takes the number that it would commit under, and ends it.
            self.commit(Commit())
        for name in leftovers:
            self.storage.delete(f"{DATA}/{name}")
        return len(leftovers)

    def written(self, directory: str) -> Written:
        """What was just written to a directory, as it reads back."""
        if not any(name.startswith(f"{TOPIC}=") for name in self.storage.names(directory)):
            return Written((), {})
        counts = (
            self._reader()
            .parquet(self.storage.at(directory))
            .groupBy(
                "_metadata.file_path",
                "_metadata.file_size",
                TOPIC,
                f.col(DAY).cast("string").alias(DAY),
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
        """Rows of all files, or of some, in no order.

        Raises:
            ArchiveError: there are none, or a column has types that do not go together.
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
                break  # of those before it, a job that was killed may have deleted some
        return fold(reversed(commits))

    def _removed_last(self) -> frozenset[str]:
        """What the last commit removes: before the next one all of it is deleted."""
        numbers = self._commit_numbers()
        if not numbers:
            return frozenset()
        return removed_by(self.storage.read(f"{LOG}/{commit_name(numbers[-1])}"))

    def _commit_numbers(self) -> list[int]:
        return sorted(
            number for name in self.storage.names(LOG) if (number := number_of(name)) is not None
        )


_WIDER = ((IntegerType(), LongType()), (IntegerType(), DoubleType()), (FloatType(), DoubleType()))
"""What Spark reads of Parquet as something wider."""


def widest(schemas: list[StructType]) -> StructType:
    """The columns of all, in the order of their first coming.

    Raises:
        ArchiveError: one is of types that are not the same, nor one wider than the other.
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
        """`root`: a path or URL as Spark takes it."""
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
        """The whole URL of something below."""
        return f"{self.url}/{path}"

    def names(self, directory: str) -> list[str]:
        """What lies in a directory, sorted; nothing if it is not there."""
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
        """Write a file that must not be there: as a whole, or not at all.

        Raises:
            ArchiveBusyError: it is there.
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
        """A file or a whole directory; nothing happens if it is not there."""
        self._files.delete(self._path(path), True)

    def _unique(self) -> str:
        return str(self._jvm.java.util.UUID.randomUUID().toString())[:8]

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path)
