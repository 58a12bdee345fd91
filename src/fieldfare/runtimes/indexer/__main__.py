"""``python -m fieldfare.runtimes.indexer --data DIR``: the indexer's process.

It follows the registry of one data directory until SIGTERM (exit status 0), or until it cannot continue (1,
with the reason in the last line of its log; `EXIT_FORMAT` if no other process could continue either). It can
be killed at any time; the next one resumes from the newest manifest.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fieldfare.planning.cuts import AUTO, CutSettings
from fieldfare.runtimes.indexer.following import run_indexer
from fieldfare.runtimes.process.locks import LockTimeoutError
from fieldfare.runtimes.process.program import EXIT_FAILED, EXIT_FORMAT, begin, only_one
from fieldfare.runtimes.process.successors import wait_for_turn
from fieldfare.runtimes.process.without_pandas import leave_out_pandas
from fieldfare.storage.errors import FormatError
from fieldfare.storage.folder import DataFolder

_log = logging.getLogger("fieldfare.indexer")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m fieldfare.runtimes.indexer", description="Index a service's subscriptions."
    )
    parser.add_argument("--data", type=Path, required=True, help="the service's data directory")
    parser.add_argument(
        "--lock-wait", type=float, default=15.0, metavar="SECONDS",
        help="how long to wait for another indexer on this directory to end (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--partitioning", default=AUTO, help="how spaces are partitioned into slices (default: %(default)s)"
    )
    parser.add_argument(
        "--matchers",
        type=int,
        default=1,
        help="number of slices of a partitioned space (default: %(default)s)",
    )
    parser.add_argument(
        "--slices", action="append", default=[], metavar="SPACE=PARTITIONING:MATCHERS",
        help="how one space is partitioned; may be given several times",
    )  # fmt: skip
    parser.add_argument("--matcher-memory", type=int, default=0, metavar="BYTES")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit status."""
    options = parse(arguments)
    cuts = CutSettings.parsed(
        options.partitioning, options.matchers, options.slices, options.matcher_memory or half_of_memory()
    )
    stop = begin("indexer")
    folder = DataFolder.at(options.data.resolve())
    if not wait_for_turn(stop):
        return EXIT_FAILED
    try:
        folder.make()
        with only_one(folder.lock_of("indexer"), options.lock_wait):
            run_indexer(folder, stop, cuts)
    except LockTimeoutError as error:
        _log.error("another indexer runs on this data directory: %s", error)
        return EXIT_FAILED
    except FormatError as error:
        _log.error("%s", error)
        return EXIT_FORMAT
    except Exception as error:
        _log.error("the indexer failed: %s: %s", type(error).__name__, error)
        _log.debug("traceback", exc_info=True)
        return EXIT_FAILED
    _log.info("stopped")
    return 0


def half_of_memory() -> int:
    """Return half of this machine's memory, in bytes: the rest is for events and other processes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


if __name__ == "__main__":
    leave_out_pandas()
    sys.exit(main())
