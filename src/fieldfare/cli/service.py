"""``fieldfare serve``: the whole service on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fieldfare.cli.output import need_extra


def serve(
    data: Annotated[
        Path, typer.Option("--data", envvar="FIELDFARE_DATA", metavar="DIR", help="Where everything is kept.")
    ] = Path("fieldfare-data"),
    host: Annotated[str, typer.Option("--host", help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")
    ] = 7737,
) -> None:
    """Run the service: the HTTP gateway and the Spark pipeline, until Ctrl-C.

    Everything it keeps is in one directory: SQLite files for the log and the subscriptions, files for the
    matches. Needs the server extra: pip install 'fieldfare[server]'.

    Example:

        fieldfare serve --data ./fieldfare-data --port 7737
    """
    try:
        from fieldfare.runtimes.service import supervisor
    except ImportError as error:
        need_extra("serve", "server", error)
    raise typer.Exit(supervisor.serve(data, host, port))
