"""The key of an encrypted space: files, what it refuses, what it leaves as it was."""

from __future__ import annotations

import base64
import json
import stat
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from encrypted_support import encrypt_filter, entry, match_naive
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare import Client
from fieldfare.cli.demo.encrypted import SpaceAccess
from fieldfare.client.credentials import PASSPHRASE_VARIABLE
from fieldfare.client.encrypting import opened
from fieldfare.client.encryption import EncryptionError, NumberAttribute, SpaceKey, read_key, write_key
from fieldfare.client.encryption.payload import ExtendedNonceCipher
from fieldfare.client.message import Message
from fieldfare.client.records import DeadMessage, NewSubscription, PulledMessage, SubscriptionInfo
from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
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
    (encrypted,) = key.seal_lines([line(price=18.5)])
    assert again.open_line(encrypted) == line(price=18.5)
    with pytest.raises(EncryptionError, match="does not open"):
        read_key(file, "wrong")
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "correct horse")
    assert read_key(file).numbers == key.numbers
    with pytest.raises(EncryptionError, match="exists already"):
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
        with pytest.raises(EncryptionError, match="not a key file"):
            read_key(file, "x")
    with pytest.raises(EncryptionError, match="cannot read"):
        read_key(tmp_path / "none", "x")


FIRST = json.loads((Path(__file__).parent / "space_key_1.json").read_text())
"""A key file of two epochs, events of both, and filters, as written before scheme 2."""


def test_scheme_1_content_is_decrypted_and_matched(tmp_path: Path) -> None:
    """Data directories and key files are older than the program; both keep their vectors."""
    file = tmp_path / "space.key"
    file.write_text(json.dumps(FIRST["key_file"]))
    key = read_key(file, FIRST["passphrase"])
    assert [epoch.scheme for epoch in key.epochs] == [1, 1] and key.declaration()["dimensions"] == 8
    for plain, encrypted in FIRST["events"]:
        assert key.open_line(encrypted.encode()) == plain.encode()
    for text, encrypted in FIRST["filters"]:
        assert key.open_filter(SubscriptionInfo("a", "s", encrypted, "aspe", 1, ())).filter == text
    texts = [text for text, _ in FIRST["filters"]]
    old = [json.loads(encrypted)["data"] for _, encrypted in FIRST["events"]]
    new = [
        json.loads(each)["data"] for each in key.seal_lines([plain.encode() for plain, _ in FIRST["events"]])
    ]
    for filters in (
        [encrypted for _, encrypted in FIRST["filters"]],
        [encrypt_filter(key, text) for text in texts],
    ):
        index = Index([build_part(entry(n, each) for n, each in enumerate(filters))])
        lines = b"".join(json.dumps({"data": each}).encode() + b"\n" for each in old + new)
        columns = decode_json_lines(memoryview(lines), len(old + new), list(index.paths))
        found = index.match(columns, np.full(len(old + new), 1 << 40, np.int64)).lists()
        assert found == match_naive(texts, [json.loads(plain) for plain, _ in FIRST["events"]] * 2)


def test_an_older_key_goes_on_in_its_own_format(tmp_path: Path) -> None:
    """Its space has vectors of its length, and programs that were not upgraded read its file."""
    file, new = tmp_path / "space.key", tmp_path / "new.key"
    file.write_text(json.dumps(FIRST["key_file"]))
    rotated = read_key(file, FIRST["passphrase"]).rotated()
    write_key(file, rotated, "x", replace=True)
    assert json.loads(file.read_text())["format"] == "fieldfare space key 1"
    again = read_key(file, "x")
    assert [epoch.scheme for epoch in again.epochs] == [1, 1, 1]
    (encrypted,) = rotated.seal_lines([line(price=1)])
    assert again.open_line(encrypted) == line(price=1)
    write_key(new, SpaceKey.generate({"data.a": (0, 9, 1)}).rotated(), "x")
    document = json.loads(new.read_text())
    assert document["format"] == "fieldfare space key 2"
    assert [epoch.scheme for epoch in read_key(new, "x").epochs] == [2, 2]
    new.write_text(json.dumps(document | {"format": "fieldfare space key 1"}))
    with pytest.raises(EncryptionError, match="does not open"):
        read_key(new, "x")


@pytest.mark.parametrize(
    ("key_byte", "bound", "expected"),
    [
        (1, b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        (3, b"c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"),
    ],
)
def test_payloads_are_sealed_as_xaes_256_gcm_specifies(key_byte: int, bound: bytes, expected: str) -> None:
    """The test vectors of c2sp.org/XAES-256-GCM."""
    cipher, nonce = ExtendedNonceCipher(bytes([key_byte]) * 32), b"ABCDEFGHIJKLMNOPQRSTUVWX"
    encrypted = cipher.seal_with(nonce, b"XAES-256-GCM", bound)
    assert encrypted == nonce + bytes.fromhex(expected)
    assert cipher.open(encrypted, bound) == b"XAES-256-GCM"


def test_nonces_of_payloads_have_192_bits_and_never_repeat(key: SpaceKey) -> None:
    """Random nonces of 96 bits bear 2**32 events of a key, which are published in hours."""
    batches = [key.seal_lines([line(price=1)] * 500) for _ in range(4)]
    payloads = [json.loads(each)["data"]["c"].removeprefix("2.") for batch in batches for each in batch]
    payloads += [json.loads(encrypt_filter(key, "data.price < 3"))["c"].removeprefix("2.") for _ in range(50)]
    nonces = {base64.b64decode(each)[:24] for each in payloads}
    assert len(nonces) == len(payloads) == 2050
    assert len({nonce[12:] for nonce in nonces}) == 2050 and len({nonce[:12] for nonce in nonces}) == 54


@pytest.mark.parametrize("changed", ["", "2.", "2", "2.A", "2.AAAA", "3.AAAA", "2.é", "x"])
def test_an_invalid_payload_is_refused(key: SpaceKey, changed: str) -> None:
    document = json.loads(key.seal_lines([line(price=1)])[0])
    document["data"]["c"] = changed
    with pytest.raises(EncryptionError, match="not encrypted with this key, or was changed"):
        key.open_line(json.dumps(document).encode())


def test_no_secret_is_in_a_text_form_of_a_key(key: SpaceKey) -> None:
    """A key ends up in logs, tracebacks and debuggers: by itself, and inside what holds it."""
    epoch = key.epoch
    epoch.transform, epoch.payload  # noqa: B018
    holders = (key, key.epochs, epoch, epoch.transform, {"key": key}, SpaceAccess("s", None, "correct horse"))
    for holder in holders:
        for text in (repr(holder), str(holder), f"{holder}", "%s %r" % (holder, holder)):  # noqa: UP031
            assert repr(epoch.seed) not in text and epoch.seed.hex() not in text
            assert "array" not in text and "horse" not in text
    assert "data.price" in repr(key)


@pytest.mark.parametrize(
    ("filter", "why"),
    [
        ("data.price * 2 > 3", "only comparisons"),
        ("data.symbol LIKE 'Y%'", "equality"),
        ("data.symbol LIKE '%Y%'", "only comparisons"),
        ("data.symbol > 'Y'", "equality"),
        ("data.other = 1", "the key declares data.price, data.volume, data.symbol"),
        ("data.price IS NULL", "condition on data.price is true if .* missing or null, .* agreed value"),
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


@settings(max_examples=drawn(300))
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
    (encrypted,) = key.seal_lines([line(price=123.45, symbol="PLANTED", note="SECRET")])
    new = key.seal_filter(NewSubscription("data.price < 123.45 AND data.symbol = 'PLANTED'", "a"))
    for text in (encrypted.decode(), new.filter):
        assert not any(word in text for word in ("123", "PLANTED", "SECRET", "price", "symbol", "note"))
    twice = key.seal_lines([line(price=123.45)] * 2)
    assert json.loads(twice[0])["data"]["v"] != json.loads(twice[1])["data"]["v"]
    info = SubscriptionInfo("a", "s", new.filter, new.dialect, 1, ())
    assert key.open_filter(info).filter == "data.price < 123.45 AND data.symbol = 'PLANTED'"
    other = SpaceKey.generate({"data.price": (0, 1, 1)})
    assert other.open_filter(info) == info


def test_foreign_content_never_decrypts_to_an_event(key: SpaceKey) -> None:
    """A service that plants a plain event, or changes an encrypted one, is found out."""
    (encrypted,) = key.seal_lines([line(price=1)])
    document = json.loads(encrypted)
    changed = json.loads(encrypted)
    changed["data"]["c"] = changed["data"]["c"][:-8] + "AAAAAAA="
    other_epoch = document | {"data": document["data"] | {"e": 2}}
    for raw in (line(price=1), json.dumps(changed).encode(), json.dumps(other_epoch).encode(), b"{}"):
        message = Message(Position(0, 7, 1), raw, None, encryption=key)  # type: ignore[arg-type]
        with pytest.raises(EncryptionError, match="message at 0-7-1 cannot be decrypted"):
            message.event  # noqa: B018
    message = Message(Position(0, 7, 1), encrypted, None, encryption=key)  # type: ignore[arg-type]
    assert message.raw == line(price=1) and message.event["data"] == {"price": 1}


def test_a_pull_with_an_undecryptable_message_returns_the_others(key: SpaceKey) -> None:
    """A publisher may send an event that cannot be decrypted; a subscriber must be able to skip it."""
    (encrypted,) = key.seal_lines([line(price=1)])
    pulled = [
        PulledMessage(Position(0, n, 0), raw) for n, raw in enumerate((encrypted, line(price=9), encrypted))
    ]
    first, bad, last = opened(key, pulled)
    assert first.event["data"] == last.event["data"] == {"price": 1}
    assert bad.raw == b"" and "0-1-0 cannot be decrypted" in bad.unreadable
    with pytest.raises(EncryptionError, match="0-1-0 cannot be decrypted"):
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
        # Wide ranges have one row each; how many a narrow one has may depend on where its bounds are drawn.
        "(data.price BETWEEN 1 AND 99 OR data.price BETWEEN 200 AND 300) AND data.volume > 5",
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
    with pytest.raises(EncryptionError, match=r"no epoch 2, .* but only 1: get the newer key file"):
        key.open_line(new)
    with pytest.raises(EncryptionError, match=r"no epoch 1, .* but only 2: use a copy .* before .* drop"):
        both.without_old().open_line(old)
    unknown = json.loads(old)
    unknown["data"]["e"] = "x"
    with pytest.raises(EncryptionError, match=r"no epoch 'x', .* but only 1: use the key with which"):
        key.open_line(json.dumps(unknown).encode())
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
        ({"data..a": (0, 1, 1)}, [], "not the name of an attribute"),
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
