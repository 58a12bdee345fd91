"""``fieldfare backup`` and ``fieldfare restore``: copies of a data directory."""

from __future__ import annotations

import time
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.text import Text

from fieldfare.cli.output import JsonOption, fail, need_packages, out, print_json
from fieldfare.cli.service import find_missing

PACKAGES = ("crc32c", "numpy", "numba", "pyarrow", "sqlalchemy")

BackupArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the backup.")]
DataOption = Annotated[
    Path, typer.Option("--data", envvar="FIELDFARE_DATA", metavar="DIR", help="The service's data directory.")
]


def backup(
    to: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to create.")],
    data: DataOption = Path("fieldfare-data"),
    base: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="An earlier backup on the same disk: files that have not changed since are hard links to its"
            " files.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a data directory, also of a running service.

    The copy has all events that were published before the command started. The index is not copied; it is
    rebuilt after `fieldfare restore`.

    Example:
    ```
    fieldfare backup /backups/monday --data ./fieldfare-data
    ```
    """
    _need_packages("backup")
    from fieldfare.storage.backup import make_backup
    from fieldfare.storage.errors import StorageError
    from fieldfare.storage.folder import DataFolder
    from fieldfare.storage.private import keep_private

    if not data.is_dir():
        fail(f"there is no directory {data}\nhint: --data is the data directory of `fieldfare serve`")
    keep_private()
    begun_s = time.monotonic()
    try:
        folder = DataFolder.at(data.absolute())
        copied = make_backup(folder, to.absolute(), None if base is None else base.absolute())
    except StorageError as error:
        fail(str(error))
    took_s = time.monotonic() - begun_s
    if as_json:
        print_json(
            {
                "folder": str(to),
                "files": len(copied.manifest.files),
                "size_bytes": copied.size_bytes,
                "shared_bytes": copied.shared_bytes,
                "log_end": copied.manifest.log_end,
                "seconds": round(took_s, 3),
            }
        )
        return
    shared = f", {copied.shared_bytes:,} of them shared with {base}" if base is not None else ""
    files = f"{len(copied.manifest.files):,} files, {copied.size_bytes:,} bytes{shared}"
    out().print(Text(f"copied {files}, in {took_s:.1f} s"))
    if folder.log is None:
        out().print(Text(f"events up to record {copied.manifest.log_end} are in {to}"))
    else:
        out().print(Text(f"events and matches are not in {to}: they are in {folder.log}"))


def restore(backup: BackupArgument, data: DataOption = Path("fieldfare-data")) -> None:
    """Create a data directory from a backup.

    All files of the backup are checked first. Stop the service that the backup is from, unless it is gone:
    both would deliver the same messages.

    Example:
    ```
    fieldfare restore /backups/monday --data ./restored
    ```
    """
    _need_packages("restore")
    from fieldfare.storage.backup import restore_backup
    from fieldfare.storage.errors import StorageError
    from fieldfare.storage.private import keep_private

    keep_private()
    try:
        manifest = restore_backup(backup.absolute(), data.absolute())
    except StorageError as error:
        fail(str(error))
    command = f"fieldfare serve --data {quote(str(data))}"
    out().print(Text(f"restored {len(manifest.files):,} files into {data}; start it: {command}"))


def verify(backup: BackupArgument, as_json: JsonOption = False) -> None:
    """Check all files of a backup against their checksums.

    The exit status is 1 if one has changed.

    Example:
    ```
    fieldfare verify /backups/monday
    ```
    """
    _need_packages("verify")
    from fieldfare.storage.backup import check_backup
    from fieldfare.storage.errors import StorageError

    try:
        found = list(check_backup(backup.absolute()))
    except StorageError as error:
        fail(str(error))
    if as_json:
        print_json(found)
    else:
        for each in found:
            out().print(Text(each))
        if not found:
            out().print("all files match their checksums")
    if found:
        raise typer.Exit(1)


def _need_packages(command: str) -> None:
    if missing := find_missing(PACKAGES):
        need_packages(command, "server", missing)
