"""HDFS: what `SharedFiles` asks of a file system, asked of hdfs-native.

That speaks the NameNode's and the DataNodes' own protocol, and reads Hadoop's configuration where
``HADOOP_CONF_DIR`` says. pyarrow's way there needs Hadoop's Java and native libraries on each machine; and
through fsspec a NameNode that is down is a file that is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from hdfs_native import Client
from pyarrow import fs

_SETTINGS = {"dfs.client.failover.max.attempts": "3"}
"""So often an answer is asked for, some seconds together: Hadoop's 15 are three minutes."""


class Hdfs:
    """A NameNode's files, or a nameservice's; the options of the address are settings of Hadoop's."""

    type_name = "hdfs"

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.username is not None:
            raise ValueError("whose files are written in HDFS is said by HADOOP_USER_NAME or by Kerberos")
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
