"""The pages about papers, and docs/comparisons.md: what they say is what the experiments found."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "bluedove": "bluedove",
    "autotuned": "autotuned",
    "estreamhub": "estreamhub",
    "routing": "ddbr_merc",
    "padres": "padres",
}
"""The folders of the experiments, and their pages."""
sys.path += [str(ROOT / "experiments" / folder) for folder in (".", *FOLDERS)]

import spark_tables  # noqa: E402
import support  # noqa: E402
import tables  # noqa: E402

PAGES = {
    name: "\n".join(path.read_text() for path in sorted((ROOT / "docs" / "papers").glob(f"{page}*.md")))
    for name, page in FOLDERS.items()
}
"""The pages of each paper, joined."""


def test_the_tables_of_the_pages_are_what_the_results_say() -> None:
    """A row of METR-LA was missing, and figures of one engine stood beside figures of the next: the tables
    had been typed. `python experiments/tables.py` makes them."""
    assert list(tables.stale()) == []


def test_every_table_that_can_be_made_stands_on_a_page() -> None:
    marked = {found[2] for page in tables.PAGES for found in tables.MARKED.finditer(page.read_text())}
    assert marked == set(tables.TABLES)


def test_every_picture_is_on_its_page_and_every_page_shows_pictures_that_are_there() -> None:
    """Nobody saw the pictures' faults, as no page showed them."""
    for name, page in PAGES.items():
        results = ROOT / "experiments" / name / "results"
        shown = set(re.findall(r"!\[[^]]+\]\(\.\./\.\./experiments/\w+/results/(\w+\.png)\)", page))
        assert shown == {path.name for path in results.glob("*.png")}


def test_every_figure_has_its_command_beside_it() -> None:
    """Each program that draws or measures is named on its page, so that a reader can run it."""
    helpers = {
        "__main__",
        "support",
        "client_tuner",
        "http_support",
        "http_tables",
        "systems",
        "paper_points",
        "spark_tables",
        "workload_charts",
        "elastic_runs",
        "elastic_service",
        "overlay_runs",
        "routing_summary",
        "routing_tables",
        "balancing_runs",
        "balancing_summary",
        "balancing_tables",
    }
    for name, page in PAGES.items():
        programs = {path.stem for path in (ROOT / "experiments" / name).glob("*.py")} - helpers
        assert {
            program for program in programs if f"{program}.py" not in page and f"`{program}`" not in page
        } == set()


def test_no_measurement_is_written_down_as_several() -> None:
    """`our tuner` has no N to begin with; one run of it stood in five rows, as if begun from each."""
    rows = [row for row in support.read_table("first_batch_size") if row["tuner"] == support.OURS]
    assert [row["load_per_s"] for row in rows] == list(support.DURATION_S)
    assert {row["first_batch_messages"] for row in rows} == {""}


def test_several_runs_come_to_their_median_their_least_and_their_most() -> None:
    """Policies were ranked by one run each, where two runs of the same differ by a fifth."""
    rows = [
        {
            **dict.fromkeys(spark_tables.KEY, "x"),
            "messages_per_s": rate,
            "matches_per_s": 2 * rate,
            "busy_us": 1.0,
            "imbalance": 0.1,
            "searched": 7,
            "copies": 1.0,
            "shuffled_bytes": 0,
        }
        for rate in (300, 100, 200)
    ]
    (found,) = spark_tables.summarise(rows)
    assert (found["messages_per_s"], found["messages_per_s_least"], found["messages_per_s_most"]) == (
        200,
        100,
        300,
    )
    assert (found["runs"], found["matches_an_event"]) == (3, 2)
    assert spark_tables.spread(found, "messages_per_s") == "200 (100 to 300)"
    assert spark_tables.spread(found, "searched") == "7"
