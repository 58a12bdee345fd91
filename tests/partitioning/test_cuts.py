"""Which spaces are cut again, and when: the machine is given spaces' present states."""

from __future__ import annotations

import pytest

from fieldfare.model import space_key
from fieldfare.partitioning import ONE_SLICE, AttributeSpace, Axis, HashPartitioning, Partitioning
from fieldfare.partitioning.axis import place_before
from fieldfare.planning.cuts import (
    AGAIN_S,
    GROWN,
    GROWN_AGAIN_S,
    PATIENCE,
    Cut,
    CutRequest,
    Cuts,
    CutSettings,
    Drift,
    Searching,
    SpaceState,
)

BY_X = AttributeSpace((Axis(("data", "x"), (place_before(5),)),), ((0, 1),))
MIB = 1 << 20


def settings(text: str, *spaces: str, matchers: int = 1, memory_bytes: int = 1 << 40) -> CutSettings:
    return CutSettings.parsed(text, matchers, spaces, memory_bytes)


def standing(cut: Partitioning = ONE_SLICE, rows: int = 10, size_bytes: int = MIB) -> SpaceState:
    return SpaceState(cut, rows, size_bytes)


def test_by_itself_nothing_is_cut() -> None:
    cuts = Cuts(CutSettings())
    assert cuts.due({"a": standing(size_bytes=1 << 50), "b": standing(rows=0)}, 0.0) == {}


def test_a_cut_space_becomes_one_slice_without_a_wish() -> None:
    assert Cuts(CutSettings()).due({"a": standing(HashPartitioning(3))}, 0.0) == {"a": Cut("hash", 1)}


@pytest.mark.parametrize(
    ("text", "now", "then"),
    [
        ("hash:3", ONE_SLICE, Cut("hash", 3)),
        ("hash:3", HashPartitioning(3), None),
        ("hash:3", HashPartitioning(2), Cut("hash", 3)),
        ("hash:3", BY_X, Cut("hash", 3)),
        ("hash:1", ONE_SLICE, None),
        ("replicated:4", ONE_SLICE, None),
        ("replicated:4", BY_X, Cut("hash", 1)),
        ("attribute_space:2", ONE_SLICE, Cut("attribute_space", 2)),
        ("attribute_space:2", BY_X, None),
        ("attribute_space:3", BY_X, Cut("attribute_space", 3)),
        ("single_attribute:2", BY_X, None),
        ("attribute_space:1", ONE_SLICE, None),
    ],
)
def test_a_space_is_cut_as_is_wished_once_it_has_subscriptions(
    text: str, now: Partitioning, then: Cut | None
) -> None:
    cuts = Cuts(settings("auto", f"a={text}"))
    assert cuts.due({"a": standing(now, rows=0)}, 0.0) == {}
    assert cuts.due({"a": standing(now)}, 0.0).get("a") == then


def test_the_largest_spaces_are_cut_until_the_rest_fits_into_memory() -> None:
    cuts = Cuts(settings("auto", matchers=4, memory_bytes=100 * MIB))
    spaces = {"small": standing(size_bytes=30 * MIB), "large": standing(size_bytes=60 * MIB)}
    assert cuts.due(spaces, 0.0) == {}
    spaces["large"] = standing(size_bytes=80 * MIB)
    assert cuts.due(spaces, 0.0) == {"large": Cut("best", 4, 5.0)}
    # 80 MiB are 20 for each matcher then; cut so, it stays while it would not fit twice as well.
    spaces["large"] = standing(HashPartitioning(4), size_bytes=60 * MIB)
    cuts.tried({"large": 10}, 0.0)
    assert cuts.due(spaces, 1.0) == {}
    spaces["large"] = standing(HashPartitioning(4), size_bytes=15 * MIB)
    assert cuts.due(spaces, 1.0) == {"large": Cut("hash", 1)}


def test_failed_planning_is_retried_with_backoff_or_after_growth() -> None:
    cuts, now_s = Cuts(settings("attribute_space:2")), 0.0
    hashed = {"a": standing(HashPartitioning(2), rows=10)}
    for pause_s in (AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S):
        assert "a" in cuts.due(hashed, now_s)
        cuts.tried({"a": 10}, now_s)
        assert cuts.due(hashed, now_s + pause_s - 1) == {}
        now_s += pause_s
    cuts.tried({"a": 10}, now_s)
    grown = {"a": standing(HashPartitioning(2), rows=10 * GROWN)}
    assert cuts.due(grown, now_s + GROWN_AGAIN_S - 1) == {}
    assert "a" in cuts.due(grown, now_s + GROWN_AGAIN_S)


def test_a_cut_is_planned_again_after_a_lasting_drift() -> None:
    """A burst is forwarding's business."""
    cuts, number = Cuts(settings("attribute_space:2")), 0

    def look(share: float, *, is_new: bool = True) -> bool:
        nonlocal number
        number += is_new
        space = SpaceState(BY_X, 10, MIB, Searching(7, number, share))
        return bool(cuts.due({"a": space}, 0.0))

    burst = [0.5] * (PATIENCE - 1)
    assert not any(map(look, [0.1, 0.11, *burst, 0.1, *burst, 0.11]))
    assert [look(0.5) for _ in range(PATIENCE)] == [False] * (PATIENCE - 1) + [True]
    cuts.tried({"a": 10}, 0.0)
    assert not any(look(0.5) for _ in range(2 * PATIENCE)), "no plan was better: so it is now"


def test_a_repeated_measurement_is_ignored() -> None:
    drift = Drift(7)
    drift.observe(Searching(7, 1, 0.1))
    assert not any(drift.observe(Searching(7, 2, 0.9)) for _ in range(9))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("market", "is not SPACE=PARTITIONING:MATCHERS"),
        ("=hash", "is not SPACE=PARTITIONING:MATCHERS"),
        ("market=mash", "'market=mash': 'mash' is not a partitioning; partitionings are auto"),
        ("market=hash:0", "'0' is not a number of matchers"),
        ("market=hash:", "'' is not a number of matchers"),
        ("market=hash:1001", "'1001' is not a number of matchers, 1 to 1000"),
        ("market=hash:²", "is not a number of matchers"),
    ],
)
def test_invalid_wishes_are_refused_with_the_text(said: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        settings("auto", said)


def test_a_space_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="'market=hash:2': the space market is given twice"):
        settings("auto", "market=replicated", "other=hash", "market=hash:2")


def test_a_space_is_known_by_its_name_also_when_there_was_one_of_that_name_before() -> None:
    known = settings("hash", "market=attribute_space", matchers=3)
    assert known.of("market") == known.of(space_key("market", 2)) == CutRequest("attribute_space", 3)
    assert known.of("other") == CutRequest("hash", 3)
    assert known.new_cut("other") == HashPartitioning(3)
    assert known.new_cut("market") == ONE_SLICE
