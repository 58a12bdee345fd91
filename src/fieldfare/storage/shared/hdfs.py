"""HDFS through hdfs-native: the file system operations that `SharedFiles` needs.

hdfs-native speaks the native protocol of NameNodes and DataNodes, and reads Hadoop's configuration in
``HADOOP_CONF_DIR``. pyarrow's HDFS needs Hadoop's Java and native libraries on each machine, and fsspec
reports a NameNode that is down as a missing file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from hdfs_native import Client
from pyarrow import fs

_SETTINGS = {"dfs.client.failover.max.attempts": "3"}
"""Default Hadoop settings: 3 failover attempts take a few seconds; Hadoop's default of 15 takes three
minutes."""


class Hdfs:
    """The files of a NameNode or a nameservice; the options of the address are Hadoop settings."""

    type_name = "hdfs"

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.username is not None:
            raise ValueError("the address must not name a user: set HADOOP_USER_NAME, or use Kerberos")
        self.client = Client(f"{parts.scheme}://{parts.netloc}", _SETTINGS | dict(parse_qsl(parts.query)))

    def open_input_stream(self, path: str) -> Any:
        return self.client.read(path)

    def open_output_stream(self, path: str) -> Any:
        return self.client.create(path)

    def get_file_info(self, folder: fs.FileSelector) -> Iterator[fs.FileInfo]:
        try:
            for each in self.client.list_status(folder.base_dir):
                yield fs.FileInfo(each.path, fs.FileType.Directory if each.isdir else fs.FileType.File)
        except FileNotFoundError:
            return

    def create_dir(self, path: str, *, recursive: bool) -> None:
        self.client.mkdirs(path, create_parent=recursive)

    def move(self, path: str, to: str) -> None:
        self.client.rename(path, to, overwrite=True)

    def delete_file(self, path: str) -> None:
        if not self.client.delete(path):
            raise FileNotFoundError(path)
