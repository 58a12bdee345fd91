"""The demo's own parts: its verdict must be able to say no, and its figures must be right."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fieldfare.cli.demo.check import (
    as_positions,
    compare,
    match_naively,
    open_events,
    position_text,
    write_events,
)
from fieldfare.cli.demo.display import LineDisplay, make_display
from fieldfare.cli.demo.figures import DemoFigures, Rate, latency_ms
from fieldfare.cli.demo.memory import tree_memory_bytes

pytestmark = pytest.mark.long


def positions(*pairs: tuple[int, int]) -> np.ndarray:
    offsets, indexes = zip(*pairs, strict=True) if pairs else ((), ())
    return as_positions(np.array(offsets, np.int64), np.array(indexes, np.int32))


def test_positions_sort_as_the_log_does_and_read_as_the_service_writes_them() -> None:
    packed = positions((0, 9_999), (1, 0), (7, 12))
    assert sorted(packed) == packed.tolist()
    assert [position_text(int(position)) for position in packed] == ["0-0-9999", "0-1-0", "0-7-12"]


def test_the_same_positions_in_another_order_are_equal() -> None:
    assert compare("a", "TRUE", "here", positions((0, 1), (5, 2)), positions((5, 2), (0, 1))) is None


def test_a_lost_match_is_named() -> None:
    difference = compare("mine", "x = 1", "in the match log", positions((0, 1), (5, 2)), positions((0, 1)))
    assert str(difference) == "mine [x = 1] in the match log: 1 missing (0-5-2)"


def test_an_event_delivered_twice_is_one_too_many() -> None:
    difference = compare("mine", "x = 1", "as delivered", positions((3, 4)), positions((3, 4), (3, 4)))
    assert str(difference) == "mine [x = 1] as delivered: 1 too many (0-3-4)"


def test_many_differences_are_counted_and_a_few_are_shown() -> None:
    found = positions(*((9, index) for index in range(100)))
    difference = compare("mine", "x = 1", "as delivered", positions((1, 1)), found)
    text = str(difference)
    assert "1 missing (0-1-1); 100 too many (0-9-0, 0-9-1, 0-9-2, 0-9-3, 0-9-4, ...)" in text


def test_the_naive_evaluator_asks_every_filter_about_each_event(tmp_path: Path) -> None:
    texts = [b'{"n":%d,"s":"%d"}' % (number, number % 3) for number in range(12_000)]
    write_events(pa.array(texts, pa.large_binary()), tmp_path / "events.arrow")
    assert open_events(tmp_path / "events.arrow")[7].as_py() == texts[7]
    seen: list[int] = []
    found = match_naively(tmp_path / "events.arrow", 11_000, ["s = '1'", "n >= 10998", "n < 0"], seen.append)
    assert found[0].tolist() == list(range(1, 11_000, 3))
    assert found[1].tolist() == [10_998, 10_999]
    assert found[2].tolist() == []
    assert sum(seen) == 11_000


def test_memory_counts_a_process_and_its_children() -> None:
    alone = tree_memory_bytes(os.getpid())
    code = (
        "held = bytearray(200_000_000); held[::4096] = b'x' * len(held[::4096]); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        assert tree_memory_bytes(os.getpid()) > alone + 190_000_000
        child.stdin.close()


def test_a_rate_looks_at_the_last_seconds_only() -> None:
    rate = Rate()
    assert rate.update(0.0, 0) == 0.0
    assert rate.update(1.0, 500) == 500.0
    for second in range(2, 10):
        last = rate.update(float(second), 500 + 100 * (second - 1))
    assert last == 100.0


def test_no_deliveries_have_no_latency() -> None:
    assert latency_ms(np.empty(0), 0.5) is None
    assert latency_ms(np.array([0.1, 0.2, 0.3]), 0.5) == 200.0


def test_a_pipe_gets_plain_lines() -> None:
    stream = io.StringIO()
    display = make_display(stream)
    assert isinstance(display, LineDisplay)
    with display.step("count", 3) as advance:
        advance(3)
    with display.replay("replay") as show:
        show(DemoFigures(10, 5, 3, 7, 2, 1000.0, 2000.0, None, None))
    display.table("In figures", [("events", "10"), ("matches a second", "7")])
    lines = stream.getvalue().splitlines()
    assert lines[0] == "count ..."
    assert lines[1].startswith("count: done (3, ")
    assert lines[-2:] == ["  events            10", "  matches a second  7"]
    assert "\x1b" not in stream.getvalue()
