"""``fieldfare doctor``: find damage in a data directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fieldfare.cli.output import JsonOption, fail, need_packages, out, print_json
from fieldfare.cli.service import find_missing

PACKAGES = ("crc32c", "numpy", "numba", "pyarrow", "sqlalchemy")
EXIT_DAMAGED = 1
_HINT = "hint: --data is the data directory of `fieldfare serve`"


def doctor(
    data: Annotated[
        Path,
        typer.Option("--data", envvar="FIELDFARE_DATA", metavar="DIR", help="The service's data directory."),
    ] = Path("fieldfare-data"),
    as_json: JsonOption = False,
) -> None:
    """Check all data in a data directory against its checksums, and report damage and what to do.

    It works whether or not the service is running. The exit status is 1 if something is damaged.

    Example:
    ```
    fieldfare doctor --data ./fieldfare-data
    ```
    """
    if missing := find_missing(PACKAGES):
        need_packages("doctor", "server", missing)
    from fieldfare.runtimes.process.locks import is_locked
    from fieldfare.storage.doctor import examine
    from fieldfare.storage.errors import StorageError
    from fieldfare.storage.folder import DataFolder

    if not data.is_dir():
        fail(f"there is no directory {data}\n{_HINT}")
    try:
        folder = DataFolder.at(data.absolute())
        findings = list(examine(folder, is_running=is_locked(folder.lock_of("serve"))))
    except StorageError as error:
        fail(str(error))
    if not findings and not any(path.exists() for path in folder.databases):
        fail(f"there is no data of a service in {data}\n{_HINT}")
    if as_json:
        print_json([{"file": str(each.file), "what": each.what, "to_do": each.to_do} for each in findings])
    else:
        for each in findings:
            out().print(Text(f"{each.file}: {each.what}\n  to do: {each.to_do}"))
        if not findings:
            out().print("no damage found")
    if findings:
        raise typer.Exit(EXIT_DAMAGED)
