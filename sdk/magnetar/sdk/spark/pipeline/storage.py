"""Small files wherever Spark keeps its data: local disks, HDFS, object stores, by Hadoop's classes.

The jobs must run where their Parquet lies; so the log of an archive is read and written by the
same file systems, and needs nothing but the session.
"""

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from magnetar.sdk.spark.pipeline.errors import ArchiveBusyError


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
                    f"{self.at(path)} is there already: another job writes to this archive"
                ) from None
            raise

    def delete(self, path: str) -> None:
        """A file or a whole directory; nothing happens if it is not there."""
        self._files.delete(self._path(path), True)

    def _unique(self) -> str:
        return str(self._jvm.java.util.UUID.randomUUID().toString())[:8]

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path)
