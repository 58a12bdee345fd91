"""The key of an encrypted space: files, what it refuses, what it leaves as it was."""

from __future__ import annotations

import json
import stat
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare import Client
from fieldfare.client.encrypting import opened
from fieldfare.client.encryption import EncryptionError, NumberAttribute, SpaceKey, read_key, write_key
from fieldfare.client.encryption.key_file import PASSPHRASE_VARIABLE
from fieldfare.client.message import Message
from fieldfare.client.records import DeadMessage, NewSubscription, PulledMessage, SubscriptionInfo
from fieldfare.model import Position


@pytest.fixture(scope="module")
def key() -> SpaceKey:
    return SpaceKey.generate({"data.price": (0, 500, "0.01"), "data.volume": (-5, 10**6, 1)}, ["data.symbol"])


def line(**data: object) -> bytes:
    return msgspec.json.encode({"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": data})


def test_a_key_comes_back_from_its_file_with_its_passphrase_only(
    key: SpaceKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "space.key"
    write_key(file, key, "correct horse")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert all(epoch.seed.hex() not in file.read_text() for epoch in key.epochs)
    again = read_key(file, "correct horse")
    assert (again.numbers, again.texts) == (key.numbers, key.texts)
    (sealed,) = key.seal_lines([line(price=18.5)])
    assert again.open_line(sealed) == line(price=18.5)
    with pytest.raises(EncryptionError, match="does not open"):
        read_key(file, "wrong")
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "correct horse")
    assert read_key(file).numbers == key.numbers
    with pytest.raises(EncryptionError, match="there already"):
        write_key(file, key, "x")
    assert list(tmp_path.iterdir()) == [file]
    document = json.loads(file.read_text())
    for changed in (
        {"scrypt_n": 1 << 40},
        {"scrypt_n": 3},
        {"salt": "?"},
        {"format": "other"},
        {"sealed": 1},
    ):
        file.write_text(json.dumps(document | changed))
        with pytest.raises(EncryptionError):
            read_key(file, "correct horse")
    for text in ("", "{", "[]", "null"):
        file.write_text(text)
        with pytest.raises(EncryptionError, match="no key"):
            read_key(file, "x")
    with pytest.raises(EncryptionError, match="cannot read"):
        read_key(tmp_path / "none", "x")


@pytest.mark.parametrize(
    ("filter", "why"),
    [
        ("data.price * 2 > 3", "only comparisons"),
        ("data.symbol LIKE 'Y%'", "equality"),
        ("data.symbol LIKE '%Y%'", "only comparisons"),
        ("data.symbol > 'Y'", "equality"),
        ("data.other = 1", "the key declares data.price, data.volume, data.symbol"),
        ("data.price IS NULL", "missing"),
        ("data.price < data.volume", "only comparisons"),
        ("data.price IN (1,3,5,7,9,11,13,15,17) AND data.volume IN (1,3,5,7,9,11,13,15,17)", "alternatives"),
        ("data.price <", "expected|value"),
    ],
)
def test_a_filter_that_cannot_be_encrypted_is_refused_with_a_hint(
    key: SpaceKey, filter: str, why: str
) -> None:
    with pytest.raises(EncryptionError, match=why):
        key.seal_filter(NewSubscription(filter))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"price": 18.555}, "steps of 0.01"),
        ({"price": 500.01}, "from 0 to 500"),
        ({"price": "18"}, "declared as a number"),
        ({"price": True}, "declared as a number"),
        ({"volume": 10**30}, "from -5 to"),
        ({"volume": 10**400}, "declared as a number"),
        ({"volume": Decimal("1e400")}, "declared as a number"),
        ({"symbol": 3}, "declared as a text"),
    ],
)
def test_an_event_that_is_not_on_the_grid_is_refused(
    key: SpaceKey, data: dict[str, object], why: str
) -> None:
    """Rounded, it would match what it does not."""
    with pytest.raises(EncryptionError, match=f"event 1: .*{why}"):
        key.seal_lines([line(price=1), line(**data)])


@settings(max_examples=drawn(300), deadline=None, derandomize=True)
@given(
    st.decimals(-1000, 1000, places=3),
    st.sampled_from(["0.01", "0.125", "3", "1/3", "1e-9"]),
    st.integers(-10, 5010),
    st.one_of(st.none(), st.floats(-2000, 2000), st.decimals(-2000, 2000, places=4)),
)
def test_a_value_has_the_place_that_fractions_say(low: Decimal, step: str, at: int, other: Any) -> None:
    """The naive twin; nothing is rounded, whether a value lies on the grid or beside it."""
    attribute = NumberAttribute.of("data.a", str(low), str(Fraction(low) + 5000 * Fraction(step)), step)
    near = attribute.low + at * attribute.step
    value = Decimal(near.numerator) / near.denominator if other is None else other
    place = (Fraction(repr(value) if isinstance(value, float) else value) - attribute.low) / attribute.step
    if place.denominator == 1 and 0 <= place <= 5000:
        assert attribute.place(value) == place
    else:
        with pytest.raises(EncryptionError, match="in steps of"):
            attribute.place(value)


def test_nothing_of_an_event_or_a_filter_is_in_what_is_sent(key: SpaceKey) -> None:
    (sealed,) = key.seal_lines([line(price=123.45, symbol="PLANTED", note="SECRET")])
    new = key.seal_filter(NewSubscription("data.price < 123.45 AND data.symbol = 'PLANTED'", "a"))
    for text in (sealed.decode(), new.filter):
        assert not any(word in text for word in ("123", "PLANTED", "SECRET", "price", "symbol", "note"))
    twice = key.seal_lines([line(price=123.45)] * 2)
    assert json.loads(twice[0])["data"]["v"] != json.loads(twice[1])["data"]["v"]
    info = SubscriptionInfo("a", "s", new.filter, new.dialect, 1, ())
    assert key.open_filter(info).filter == "data.price < 123.45 AND data.symbol = 'PLANTED'"
    other = SpaceKey.generate({"data.price": (0, 1, 1)})
    assert other.open_filter(info) == info


def test_what_somebody_else_made_is_never_taken_for_an_event(key: SpaceKey) -> None:
    """A service that plants a plain event, or changes an encrypted one, is found out."""
    (sealed,) = key.seal_lines([line(price=1)])
    document = json.loads(sealed)
    changed = json.loads(sealed)
    changed["data"]["c"] = changed["data"]["c"][:-8] + "AAAAAAA="
    other_epoch = document | {"data": document["data"] | {"e": 2}}
    for raw in (line(price=1), json.dumps(changed).encode(), json.dumps(other_epoch).encode(), b"{}"):
        message = Message(Position(0, 7, 1), raw, None, encryption=key)  # type: ignore[arg-type]
        with pytest.raises(EncryptionError, match="message at 0-7-1 cannot be read"):
            message.event  # noqa: B018
    message = Message(Position(0, 7, 1), sealed, None, encryption=key)  # type: ignore[arg-type]
    assert message.raw == line(price=1) and message.event["data"] == {"price": 1}


def test_one_message_that_cannot_be_read_leaves_the_others_of_a_pull(key: SpaceKey) -> None:
    """Whoever may publish may send what nobody can decrypt; a subscriber must get past it."""
    (sealed,) = key.seal_lines([line(price=1)])
    pulled = [PulledMessage(Position(0, n, 0), raw) for n, raw in enumerate((sealed, line(price=9), sealed))]
    first, bad, last = opened(key, pulled)
    assert first.event["data"] == last.event["data"] == {"price": 1}
    assert bad.raw == b"" and "0-1-0 cannot be read" in bad.unreadable
    with pytest.raises(EncryptionError, match="0-1-0 cannot be read"):
        bad.event  # noqa: B018
    (dead,) = opened(key, [DeadMessage(Position(0, 1, 0), line(price=9), 1, "why", 0)])
    assert dead.unreadable == bad.unreadable


def test_filters_sealed_together_are_those_sealed_alone(key: SpaceKey) -> None:
    """Each keeps its own text, alternatives and rows, however many are multiplied at once."""
    both = key.rotated()
    texts = [
        "data.price < 3",
        "TRUE",
        "FALSE",
        "data.symbol = 'A'",
        "data.price IN (1, 3) AND data.volume > 5",
    ]
    given = [NewSubscription(text, str(n)) for n, text in enumerate(texts * 300)]
    ready = both.seal_filter(NewSubscription("data.price < 4", "ready"))
    together = list(both.seal_filters([*given, ready]))
    assert together[-1] == ready and [each.id for each in together[:-1]] == [each.id for each in given]
    for alone, new in zip(map(both.seal_filter, given[:5]), together[1000:], strict=False):
        shape = [[(one["e"], len(one["r"]), one["t"]) for one in json.loads(each.filter)["any"]]
                 for each in (alone, new)]  # fmt: skip
        assert shape[0] == shape[1]
        info = SubscriptionInfo("a", "s", new.filter, new.dialect, 1, ())
        assert both.open_filter(info).filter == texts[int(alone.id or 0)]


def test_epochs_open_what_was_sealed_with_them(key: SpaceKey) -> None:
    both = key.rotated()
    (old,), (new,) = key.seal_lines([line(price=1)]), both.seal_lines([line(price=2)])
    assert [both.open_line(raw) for raw in (old, new)] == [line(price=1), line(price=2)]
    with pytest.raises(EncryptionError, match="no epoch 2"):
        key.open_line(new)
    with pytest.raises(EncryptionError, match="no epoch 1"):
        both.without_old().open_line(old)
    token = json.loads(key.seal_lines([line(symbol="A")])[0])["data"]["t"]
    assert token != json.loads(both.seal_lines([line(symbol="A")])[0])["data"]["t"]


@pytest.mark.parametrize(
    ("numbers", "texts", "why"),
    [
        ({}, [], "at least one"),
        ({"data.a": (0, 1, 1)}, ["data.a"], "twice"),
        ({"data.a": (1, 1, 1)}, [], "above low"),
        ({"data.a": (0, 1, 0)}, [], "step above 0"),
        ({"data.a": (0, 1, "0.3")}, [], "whole number of steps"),
        ({"data.a": (0, "x", 1)}, [], "must be a number"),
        ({"data.a": (0, float("inf"), 1)}, [], "must be a number"),
        ({"data..a": (0, 1, 1)}, [], "no attribute"),
        ({"data.a": (0, 10**14, 1)}, [], "told apart"),
    ],
)
def test_a_key_that_makes_no_sense_is_refused(numbers: dict[str, object], texts: list[str], why: str) -> None:
    with pytest.raises(EncryptionError, match=why):
        SpaceKey.generate(numbers, texts)  # type: ignore[arg-type]


def test_a_table_is_refused_and_so_is_a_question_about_a_filter(key: SpaceKey) -> None:
    """Both would go out plain."""
    with Client("http://127.0.0.1:9", encryption=key) as client:
        with pytest.raises(EncryptionError, match="publish_many"):
            client.publish_table(object())
        with pytest.raises(EncryptionError, match="explain"):
            client.explain_filter("data.price < 3")
