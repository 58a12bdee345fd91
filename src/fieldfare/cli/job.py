"""``fieldfare match``: a batch job on files, without a service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fieldfare.cli.output import JsonOption, err, fail, need_packages, out, print_json
from fieldfare.cli.service import SPARK_PACKAGES, find_missing


def match(
    events: Annotated[
        Path,
        typer.Argument(
            metavar="EVENTS",
            help="Parquet, Arrow or JSON lines: a file, or a folder of files of one kind.",
        ),
    ],
    subscriptions: Annotated[
        Path,
        typer.Option(
            "--subscriptions",
            "-s",
            metavar="FILE",
            help="CSV, JSON lines, Parquet or Arrow with the columns id and filter, and optionally dialect.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the matches: .parquet, .csv or .jsonl."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Match a file of events against a file of filters: one Spark job on this machine, no service needed.

    Without --output the matches are only counted. It needs the spark extra: pip install 'fieldfare[spark]'.

    Example:
    ```
    fieldfare match flights.parquet --subscriptions alerts.csv --output matches.parquet
    ```
    """
    for path in (events, subscriptions):
        if not path.exists():
            fail(f"{path} does not exist")
    if missing := find_missing(SPARK_PACKAGES):
        need_packages("match", "spark", missing)
    from pyspark.errors import PySparkException

    from fieldfare.runtimes.spark.batch import match_files

    try:
        if err().is_terminal:
            with err().status("matching"):
                summary = match_files(events, subscriptions, output)
        else:
            summary = match_files(events, subscriptions, output)
    except (ValueError, OSError) as error:  # An input or output file is not valid.
        fail(str(error))
    except PySparkException as error:
        fail(_describe_spark_error(error))
    if as_json:
        print_json(
            {
                "events": summary.events,
                "subscriptions": summary.subscriptions,
                "matches": summary.matches,
                "seconds": round(summary.seconds, 3),
                "output": None if summary.output is None else str(summary.output),
            }
        )
        return
    out().print(
        f"{summary.events:,} events x {summary.subscriptions:,} subscriptions: "
        f"{summary.matches:,} matches in {summary.seconds:.1f} s"
    )
    if summary.output is not None:
        out().print(Text(f"written to {summary.output}"))


def _describe_spark_error(error: Exception) -> str:
    text = str(error)
    if "JAVA_GATEWAY_EXITED" in text:
        return "Spark's Java process ended before it was ready"
    head = text.strip().split("\n")[0] or type(error).__name__
    return f"the Spark job failed: {head}"
