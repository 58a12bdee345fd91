"""Encrypted filters match the same events as the plain ones, including values next to a bound."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from encrypted_support import (
    columns_of,
    encrypt_filter,
    entry,
    event,
    found_by,
    match_naive,
    places_inside,
)

from fieldfare.client.encryption import EncryptionError, NumberAttribute, SpaceKey
from fieldfare.client.encryption.curves import Curves, CurveTransform
from fieldfare.client.encryption.space_key import Epoch, random_numbers
from fieldfare.client.encryption.vectors import Transform, half_step_margin
from fieldfare.filters.encrypted import DIMENSIONS_MAX, compile_encrypted, decode_encrypted
from fieldfare.matching.aspe import kernels
from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.index import Index, LiveIndex
from fieldfare.matching.libraries import ASPE
from fieldfare.matching.part import Part, build_part
from fieldfare.model import Change

STEPS = (1, 2, 3, 1000, 10**6)
PINNED_X = [
    [-0.9997317705575692, -0.9986395349498196],
    [-0.7077914380687484, -0.26907649138565726],
    [0.9968832664031959, 0.9998862151832666],
    [-0.976616239249089, -0.9404072290577629],
    [-0.8441890349670578, -0.3612265760354686],
    [0.7299039813192298, 0.9756062436623996],
]
PINNED_Z = [
    [-0.00035920957102200896, -0.001440658596904626],
    [-0.3360886550090559, -0.43298595849838334],
    [-0.004273909296867471, -0.00010581309806566416],
    [-0.028944104572148768, -0.10084386268744186],
    [-0.18093000251082095, -0.7745725974652893],
    [-0.28300664798199976, -0.04379538130894121],
]
PINNED_OUTER = [0.33170570409067335, 0.5100246233623233, 0.6523958002543794, 0.90354701547787]
TRIALS, TRIALS_ALL = 10_000, 1_000_000


def seeded(seed: int) -> Any:
    return np.random.default_rng(seed).random


def make_transform(
    scheme: int, numbers: int, steps: int, uniform: Any, spread: float = 2.0
) -> Transform | CurveTransform:
    if scheme == 1:
        return Transform.draw(numbers, uniform, spread)
    return CurveTransform.draw(Curves.draw([steps] * numbers, uniform), uniform, spread)


def rows_of(transform: Transform | CurveTransform, ranges: Any, steps: int, uniform: Any) -> Any:
    """The rows of ranges of (number, first, last), each number having equally many steps."""
    many = np.full(max(number for number, _, _ in ranges) + 1, steps)
    return transform.rows(np.array(ranges, np.int64), many, uniform)[0]


def _wrong_signs(scheme: int, numbers: int, steps: int, spread: float, trials: int, seed: int) -> int:
    """Return how many trials at or next to a bound the index decides wrongly."""
    uniform, random = seeded(seed), np.random.default_rng(seed + 1)
    transform = make_transform(scheme, numbers, steps, uniform, spread)
    transform.check([steps] * numbers)
    boxes = max(1, int(trials**0.5) // 4)
    ends = np.sort(random.integers(0, steps + 1, (boxes, numbers, 2)), axis=2)
    ends[::3, :, 1] = ends[::3, :, 0]  # a single value
    near = random.integers(-1, 2, (trials // boxes, numbers))
    box = random.integers(0, boxes, trials // boxes)
    side = random.integers(0, 2, (trials // boxes, numbers))
    places = np.clip(ends[box[:, None], np.arange(numbers)[None], side] + near, 0, steps)
    places[random.random(places.shape) < 0.02] = -1
    events = transform.events(places, np.full(numbers, steps), uniform)
    encrypted = []
    for each in ends.tolist():
        rows = rows_of(transform, [(n, a, b) for n, (a, b) in enumerate(each)], steps, uniform)
        encrypted.append({"e": 1, "r": [base64.b64encode(row.tobytes()).decode() for row in rows]})
    index = Index(
        [build_part(entry(n, json.dumps({"any": [one], "c": ""})) for n, one in enumerate(encrypted))]
    )
    lines = [
        json.dumps({"data": {"e": 1, "v": base64.b64encode(row.tobytes()).decode()}}).encode()
        for row in events
    ]
    columns = decode_json_lines(memoryview(b"\n".join(lines) + b"\n"), len(lines), list(index.paths))
    found = index.match(columns, np.full(len(lines), 1 << 40, np.int64))
    answers = np.zeros((len(lines), boxes), bool)
    answers[np.repeat(np.arange(len(lines)), np.diff(found.indptr)), found.subscriptions] = True
    return int(np.count_nonzero(answers != places_inside(places, ends)))


@pytest.mark.parametrize(("scheme", "spread"), [(1, 2.0), (1, 60.0), (2, 2.0)])
@pytest.mark.parametrize("numbers", [1, 4, 13])
@pytest.mark.parametrize("steps", STEPS)
def test_matches_one_step_from_a_bound_are_correct(
    scheme: int, numbers: int, steps: int, spread: float
) -> None:
    assert _wrong_signs(scheme, numbers, steps, spread, TRIALS, seed=numbers + steps) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "spread"), [(1, 2.0), (1, 60.0), (2, 2.0)])
@pytest.mark.parametrize("numbers", [1, 2, 4, 13])
@pytest.mark.parametrize("steps", STEPS)
def test_a_million_random_matches_are_correct(scheme: int, numbers: int, steps: int, spread: float) -> None:
    assert _wrong_signs(scheme, numbers, steps, spread, TRIALS_ALL, seed=7 * numbers + steps) == 0


def finest(scheme: int) -> tuple[Transform | CurveTransform, int]:
    """A transform of two numbers with as many steps as it can distinguish."""
    if scheme == 1:
        transform = Transform.draw(2, seeded(3))
        steps = int(1 / (8 * transform.error))
        assert transform.error <= half_step_margin(steps) / 2 < 1.01 * transform.error
        return transform, steps
    few = Curves.draw([1000] * 2, seeded(3))
    found = CurveTransform.draw(few, seeded(4), 2.0)
    steps = int(few.least_margin().min() * 1002 / (2 * found.error)) - 2
    finer = CurveTransform.of(replace(few, steps=np.array([steps] * 2)), found.forward, found.inverse)
    assert finer.error <= finer.curves.least_margin().min() / 2 < 1.01 * finer.error
    return finer, steps


@pytest.mark.parametrize("scheme", [1, 2])
def test_the_finest_grid_of_a_key_is_distinguished(scheme: int) -> None:
    """At the limit, errors use up all but a quarter of the margin, and the sign is still correct."""
    transform, steps = finest(scheme)
    uniform, random = seeded(4), Random(5)
    for _ in range(300):
        first = random.randrange(1, steps)
        last = min(steps - 1, first + random.choice([0, 1, 10, steps // 3]))
        rows = rows_of(transform, [(0, first, last)], steps, uniform)
        for place in (first - 1, first, last, last + 1, -1):
            sent = transform.events(np.array([[place, 0]]), np.array([steps, steps]), uniform)
            inside = all(float(row @ sent[0]) > 0 for row in rows)
            assert inside == (first <= place <= last), (first, last, place)


def test_a_key_with_too_fine_a_grid_is_rejected() -> None:
    with pytest.raises(EncryptionError, match="cannot tell 1,000,000,000,000 steps apart"):
        SpaceKey.generate({"data.a": (0, 10**12, 1)})
    for scheme in (1, 2):
        badly = make_transform(scheme, 4, 1000, seeded(1), spread=1e8)
        with pytest.raises(EncryptionError, match="larger step"):
            badly.check([1000] * 4)


FILTERS = (
    *("data.price < 18.5", "data.price >= 18.555", "data.price BETWEEN 3 AND 3.01", "data.price = 7.25"),
    *("data.price <> 7.25", "NOT (data.price > 5 AND data.price < 9)", "data.price IS NOT NULL"),
    *("data.symbol = 'YHOO'", "data.symbol <> 'YHOO'", "data.symbol IN ('A', 'B''C', 'YHOO')"),
    *("data.symbol = 'YHOO' AND data.price < 10", "data.symbol = 'A' OR data.volume > 10"),
    *("data.price < 5 AND data.volume BETWEEN 2 AND 900 AND data.symbol NOT IN ('A', 'é')", "TRUE", "FALSE"),
    *("data.price > 5000", "data.price IN (1, 2, 3.5)", "data.symbol IS NOT NULL AND data.volume <= 0"),
)


def make_key() -> SpaceKey:
    return SpaceKey.generate({"data.price": (0, 50, "0.01"), "data.volume": (-5, 1000, 1)}, ["data.symbol"])


def random_events(count: int, seed: int) -> list[dict[str, Any]]:
    random = Random(seed)
    found = []
    for _ in range(count):
        data = {
            "price": random.choice([random.randrange(5001) / 100, 7.25, 18.5, 3, 3.01, 5, 9, None]),
            "volume": random.choice([random.randrange(-5, 1001), 2, 900, 901, 0, 10, 11]),
            "symbol": random.choice(["YHOO", "A", "B'C", "é", "yhoo", "", None]),
        }
        found.append(event(**{name: data[name] for name in data if random.random() < 0.9}))
    return found


def test_encrypted_filters_match_like_plain_ones() -> None:
    key, events = make_key(), random_events(300, 11)
    index = Index([build_part(entry(n, encrypt_filter(key, text)) for n, text in enumerate(FILTERS))])
    assert found_by(key, events, index) == match_naive(FILTERS, events)


def test_an_index_survives_saving_and_opening(tmp_path: Path) -> None:
    key, events = make_key(), random_events(60, 12)
    part = build_part(entry(n, encrypt_filter(key, text)) for n, text in enumerate(FILTERS))
    part.save(tmp_path / "p")
    opened = Part.open(tmp_path / "p", verify=True)
    assert opened.library == ASPE.name
    assert found_by(key, events, Index([opened])) == match_naive(FILTERS, events)
    assert "encrypted" in str(opened.explain().lines()[0]) or opened.filters.explain().lines()


def test_validity_applies_to_encrypted_filters() -> None:
    """Deltas, closings and folds, which do not depend on the library, work for encrypted filters."""
    key, random = make_key(), Random(13)
    live, current = LiveIndex(), dict[int, str]()
    for revision in range(1, 90):
        number = random.randrange(12)
        text = random.choice(FILTERS) if random.random() < 0.8 or number not in current else None
        encrypted = None if text is None else encrypt_filter(key, text)
        live.apply([Change(revision, "s", number, encrypted, "aspe" if encrypted else None)])
        if text is None:
            current.pop(number)
        else:
            current[number] = text
        if revision % 22 == 0:
            events = random_events(30, revision)
            columns = columns_of(key, events, live.index)
            found = live.index.match(columns, np.full(30, revision, np.int64)).lists()
            numbers = sorted(current)
            named = match_naive([current[each] for each in numbers], events)
            assert found == [[numbers[place] for place in each] for each in named]


def test_two_epochs_together_and_a_removed_old_one() -> None:
    old = make_key()
    both = old.rotated()
    new = both.without_old()
    events = random_events(40, 14)
    expected = match_naive(FILTERS, events)

    def index_of(key: SpaceKey) -> Index:
        return Index([build_part(entry(n, encrypt_filter(key, text)) for n, text in enumerate(FILTERS))])

    for publisher, subscriber in ((old, old), (old, both), (both, both), (new, both), (new, new)):
        assert found_by(publisher, events, index_of(subscriber)) == expected
    nothing: list[list[int]] = [[]] * len(events)
    assert found_by(old, events, index_of(new)) == nothing
    assert found_by(make_key(), events, index_of(new)) != expected


def test_a_space_of_texts_alone_has_no_rows() -> None:
    key = SpaceKey.generate(texts=["data.symbol"])
    texts = ["data.symbol = 'A'", "data.symbol <> 'A'", "TRUE", "data.symbol IN ('A', 'B')"]
    events = [event(symbol=each) for each in ("A", "B", "C", None)]
    index = Index([build_part(entry(n, encrypt_filter(key, text)) for n, text in enumerate(texts))])
    assert found_by(key, events, index) == match_naive(texts, events)


def test_invalid_vectors_match_nothing() -> None:
    """A publisher may send any bytes; the matches of other events are unaffected."""
    key = SpaceKey.generate({"data.a": (0, 10, 1)})
    index = Index([build_part([entry(0, encrypt_filter(key, "data.a >= 0"))])])
    good = json.loads(key.seal_lines([json.dumps(event(a=3)).encode()])[0])["data"]["v"]
    size = len(base64.b64decode(good)) // 8

    def sent(values: Any) -> str:
        return base64.b64encode(np.array(values, np.float64).tobytes()).decode()

    bad = [None, 7, "", "?" * len(good), good[:-4], good + "AAAA", good[:-1] + "é", {}, sent([np.nan] * size)]
    bad += [sent([np.inf] * size), sent([0.0] * size), sent([1e300] * size), sent([1e-300] * size)]
    data: list[dict[str, Any]] = [{"e": 1, "v": each} for each in bad]
    data += [{"e": each, "v": good} for each in (None, "1", 1.5, True, 2, 1 << 70)] + [{"v": good}, {"e": 1}]
    lines = [json.dumps({"data": each}).encode() for each in [*data, {"e": 1, "v": good}]]
    columns = decode_json_lines(memoryview(b"\n".join(lines) + b"\n"), len(lines), list(index.paths))
    found = index.match(columns, np.full(len(lines), 1 << 40, np.int64)).lists()
    assert found == [[]] * len(data) + [[0]]


def test_malformed_rows_do_not_affect_other_filters() -> None:
    """Rows of any length, duplicate or mostly zero, share groups with the rows of other members."""
    random, size = np.random.default_rng(31), 12

    def drawn(count: int) -> Any:
        vectors = random.standard_normal((count, size))
        vectors[1::4] *= 10.0 ** random.integers(-29, 29, (len(vectors[1::4]), 1))
        vectors[2::4] *= 10.0 ** random.uniform(-12, 12, (len(vectors[2::4]), size))
        vectors[3::4, 1:] = 0
        return vectors[random.integers(0, count, count)]

    def sent(vector: Any) -> str:
        return base64.b64encode(vector.tobytes()).decode()

    filters, events = [drawn(int(random.integers(1, 6))) for _ in range(300)], drawn(400)
    texts = (json.dumps({"any": [{"e": 1, "r": [*map(sent, rows)]}], "c": ""}) for rows in filters)
    index = Index([build_part(entry(n, text) for n, text in enumerate(texts))])
    lines = b"".join(json.dumps({"data": {"e": 1, "v": sent(each)}}).encode() + b"\n" for each in events)
    columns = decode_json_lines(memoryview(lines), len(events), list(index.paths))
    found = index.match(columns, np.full(len(events), 1 << 40, np.int64)).lists()

    def unit(vectors: Any) -> Any:
        return vectors / np.abs(vectors).max(axis=1, keepdims=True)

    products = [unit(events) @ unit(rows).T for rows in filters]
    sure = [(np.abs(each) > 1e-12).all(axis=1) for each in products]
    expected = [(each > 0).all(axis=1) for each in products]
    for at, numbers in enumerate(found):
        matched = set(numbers)
        assert all((n in matched) == expected[n][at] for n in range(len(filters)) if sure[n][at])
    assert sum(map(len, found)) > 5_000


def test_many_epochs_of_a_hostile_subscriber_cost_nothing(tmp_path: Path) -> None:
    """A subscriber may name any epochs; epochs that no event has cost nothing."""
    key = SpaceKey.generate({"data.a": (0, 10, 1)})
    good = encrypt_filter(key, "data.a >= 3")
    rows = json.loads(good)["any"][0]["r"]
    hostile = [
        json.dumps({"any": [{"e": 2 + 512 * n + e, "r": rows * (1 + e % 3)} for e in range(512)], "c": ""})
        for n in range(4)
    ]
    part = build_part(entry(n, text) for n, text in enumerate([*hostile, good]))
    assert len(part.filters.arrays()) == len(build_part([entry(0, good)]).filters.arrays())
    part.save(tmp_path / "p")
    index = Index([Part.open(tmp_path / "p", verify=True)])
    events = [event(a=value) for value in (2, 3, 10)]
    assert found_by(key, events, index) == [[], [4], [4]]
    assert len(index.parts[0].filters._lanes) == 1  # type: ignore[attr-defined]


def test_subnormal_numbers_are_screened_as_zeros() -> None:
    """A processor takes fifty times as long for them, at the expense of other spaces' events."""
    tiny = np.array([1.0, -1e-39, 5e-324, 2.0**-60, -(2.0**-61)])
    assert kernels.without_negligible(tiny).tolist() == [1.0, 0.0, 0.0, 2.0**-60, 0.0]
    assert 2 * DIMENSIONS_MAX * kernels.NEGLIGIBLE < 2 * 2.0**-24  # the spare margin of the floor


def test_filters_of_different_dimensions_cannot_be_in_one_index() -> None:
    one, two = (
        SpaceKey.generate({"data.a": (0, 9, 1)}),
        SpaceKey.generate({"data.a": (0, 9, 1), "data.b": (0, 9, 1)}),
    )
    with pytest.raises(ValueError, match="cannot be in one index"):
        build_part([entry(0, encrypt_filter(one, "data.a > 1")), entry(1, encrypt_filter(two, "data.a > 1"))])


def test_the_screen_agrees_with_its_twin_in_plain_python() -> None:
    random = np.random.default_rng(15)
    lanes = random.standard_normal(7 * kernels.LANES).astype(np.float32)
    events = random.standard_normal(7 * 9).astype(np.float32)
    where = 7 * np.array([3, 8, 0, 4, 4, 1], np.int64)
    words = [np.zeros(1, np.uint64) for _ in range(2)]
    expected = kernels._screen(lanes, 0, events, where, 1, 7, np.float32(-0.3), words[0])
    assert _compiled_screen(lanes, events, where, words[1]) == expected != 0
    assert words[0] == words[1] != 0 and expected & words[0][0] == words[0][0] != expected


@kernels.compiled
def _compiled_screen(lanes: Any, events: Any, where: Any, sure: Any) -> Any:
    return kernels.screen(lanes, 0, events, where, 1, 7, np.float32(-0.3), sure)


def test_the_curves_of_a_seed_do_not_change() -> None:
    """A key file contains only the seed: changed curves would not match existing filters."""
    transform = Epoch(1, bytes(range(32)), (1000, 7)).transform
    assert isinstance(transform, CurveTransform)
    curves, number = transform.curves, np.array([[0], [0], [0], [1], [1], [1]])
    x, z = curves.points(number, curves.inside(number, np.array([[0], [500], [1000], [0], [3], [7]])))
    assert np.allclose(x, PINNED_X, rtol=0, atol=1e-12)
    assert np.allclose(z, PINNED_Z, rtol=0, atol=1e-12)
    assert np.allclose(curves.outer[:, 1, 0], PINNED_OUTER, rtol=0, atol=1e-12)


def test_a_row_keeps_its_noise_within_its_margin() -> None:
    """Two rows of one range always differ, and a row's length does not reveal the width of its range."""
    epoch = Epoch(1, bytes(32), (1000,))
    rows = rows_of(epoch.transform, [(0, 400, 700)] * 50, 1000, random_numbers)
    assert len({row.tobytes() for row in rows}) == 50
    attribute = NumberAttribute.of("data.a", 0, 1000, 1)
    assert attribute.steps == 1000
    lengths = np.linalg.norm(
        rows_of(epoch.transform, [(0, 0, n) for n in range(500)], 1000, random_numbers), axis=1
    )
    assert abs(np.corrcoef(lengths, np.arange(500))[0, 1]) < 0.2
    fine = Epoch(1, bytes(32), (10**7,))
    assert len(rows_of(epoch.transform, [(0, 500, 500)], 1000, random_numbers)) == 1
    assert len(rows_of(fine.transform, [(0, 5 * 10**6, 5 * 10**6)], 10**7, random_numbers)) == 2


def test_the_compiled_form_decodes_to_the_filter_sent() -> None:
    key = make_key()
    found = decode_encrypted(
        compile_encrypted(encrypt_filter(key, "data.symbol = 'YHOO' AND data.price < 3")).compiled
    )
    assert [(each.epoch, len(each.rows)) for each in found] == [(1, 1)]
    assert "YHOO" not in found[0].text and "price" not in found[0].text
