"""The formats in docs/upgrading.md are the code's."""

from __future__ import annotations

import re
from pathlib import Path

from fieldfare.client import outbox
from fieldfare.matching import files as index_files
from fieldfare.pipeline import manifest
from fieldfare.storage import backup
from fieldfare.storage.files import match_block
from fieldfare.storage.sql import tables
from fieldfare.storage.sqlite import delayed, links, schema


def test_the_formats_of_files_are_those_of_the_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "upgrading.md").read_text()
    rows = text.partition("|---|---|---|\n")[2]
    assert dict(re.findall(r"^\| (.+?) \| ([^|]+?) \| [^|]*\|$", rows, re.MULTILINE)) == {
        "`log.db`": str(schema.FORMAT),
        "`registry.db`": str(tables.FORMAT),
        "`delayed.db`": str(delayed.FORMAT),
        "`links.db`": str(links.FORMAT),
        "`matches/`, `pasts/` (blocks)": str(match_block.FORMAT),
        "`index/`": f"{manifest.FORMAT} (manifest), {index_files.FORMAT} (parts)",
        "a client's outbox": str(outbox.FORMAT),
        "a backup": str(backup.FORMAT),
    }
