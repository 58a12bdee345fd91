"""Requests and the meaning of answers, without a network: signatures, headers, retry times, pickles."""

from __future__ import annotations

import base64
import copy
import pickle
import time
from email.utils import formatdate

import msgspec
import pytest

from fieldfare.delivery.keys import key_of
from fieldfare.gateway.delivery_settings import BadSetting, changed_settings
from fieldfare.gateway.push.messages import Outgoing, id_of, request_of
from fieldfare.gateway.push.sender import RETRY_AFTER_MAX_S, Meaning, _meaning
from fieldfare.gateway.push.signing import key_of as secret_key
from fieldfare.gateway.push.signing import signature
from fieldfare.model import DeliverySettings, Position, PushSettings

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_the_example_that_libraries_for_standard_webhooks_are_tested_with():
    """id, timestamp, body and signature as the libraries' own tests have them."""
    signed = signature([SECRET], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    "secret",
    [
        *("", "whsec_", "whsec_???", SECRET.removeprefix("whsec_"), "whsk_" + "A" * 44, "whsec_é" + "A" * 44),
        *("whsec_" + base64.b64encode(b"x" * 23).decode(), "whsec_" + base64.b64encode(b"x" * 65).decode()),
        "whsec_ MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    ],
)
def test_what_is_no_secret_is_refused_and_not_repeated(secret):
    assert secret_key(secret) is None
    with pytest.raises(BadSetting) as refused:
        changed_settings(DeliverySettings(), {"push": {"url": "https://example.com/", "secrets": [secret]}})
    assert refused.value.pointer == "/push/secrets"
    assert not secret.strip("whsec_") or secret not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("url", [5, None, "x", "ftp://example.com/"]),
        ("mode", ["json", 5, ["batch"]]),
        ("batch_max", [0, 1001, 1.5, True]),
        ("requests_max", [0, 65, "1"]),
        ("secrets", ["x", SECRET, [SECRET] * 3, [5], {}]),
        ("authorization", ["", " x", "x\r\ny", "é", 5, "x" * 2001]),
        ("secret", [SECRET]),
        ("signed", [1]),
    ],
)
def test_a_bad_setting_of_an_address_is_refused_by_its_name(name, values):
    for value in values:
        with pytest.raises(BadSetting) as refused:
            changed_settings(DeliverySettings(), {"push": {"url": "https://example.com/"} | {name: value}})
        assert refused.value.pointer == f"/push/{name}"
    for whole in (5, "https://example.com/", [], {}, {"mode": "batch"}):
        with pytest.raises(BadSetting, match="push"):
            changed_settings(DeliverySettings(), {"push": whole})


def test_secrets_are_in_no_text_and_no_pickle():
    push = PushSettings("https://example.com/", secrets=(SECRET,), authorization="Bearer b")
    settings = DeliverySettings(push=push)
    assert settings.to_public()["push"] == {
        "url": "https://example.com/",
        "mode": "structured",
        "authorized": True,
        "requests_max": 1,
        "signed": 1,
    }
    for shown in (
        repr(settings),
        str(settings.changed()),
        msgspec.json.encode(settings.to_public()).decode(),
    ):
        assert SECRET not in shown and "Bearer b" not in shown
    for whole in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            whole(settings)
    stored = msgspec.json.decode(msgspec.json.encode(settings.changed()), type=DeliverySettings)
    assert stored == settings


def test_a_request_has_the_same_id_when_it_is_repeated_and_no_other_has_it():
    one, two, three = (Outgoing(key_of(Position(0, 5, index)), b"{}") for index in range(3))
    ids = [id_of(7, each) for each in ([one], [two], [one, two], [one, two, three], [one, three])]
    assert len(set(ids)) == 5 and id_of(7, [one, two]) == ids[2] and id_of(8, [one]) != ids[0]
    assert not any("." in id for id in ids), "a dot would divide what is signed elsewhere"


def test_a_batch_and_a_structured_event_are_the_events_as_they_are():
    messages = [Outgoing(1, b'{"id":"1"}'), Outgoing(2, b'{"id":"2"}')]
    headers, body = request_of("batch", messages)
    assert body == b'[{"id":"1"},{"id":"2"}]'
    assert headers == [(b"content-type", b"application/cloudevents-batch+json; charset=utf-8")]
    headers, body = request_of("structured", messages[:1])
    assert (headers[0][1], body) == (b"application/cloudevents+json; charset=utf-8", b'{"id":"1"}')


@pytest.mark.parametrize(
    ("event", "kind", "body"),
    [
        (b'{"id":"1","data":{"x": 1.0}}', b"application/json", b'{"x": 1.0}'),
        (b'{"id":"1","data":"a"}', b"application/json", b'"a"'),
        (b'{"id":"1","datacontenttype":"text/plain","data":"\xc3\xa4"}', b"text/plain", b"\xc3\xa4"),
        (
            b'{"id":"1","datacontenttype":"a/b+json; charset=utf-8","data":[]}',
            b"a/b+json; charset=utf-8",
            b"[]",
        ),
        (b'{"id":"1","datacontenttype":"a/b","data_base64":"AAE="}', b"a/b", b"\0\x01"),
        (b'{"id":"1"}', None, None),
        (b'{"id":"1","data":null}', None, None),
        (b'{"id":"1","datacontenttype":"text/plain; charset=latin-1","data":"\xc3\xa4"}', None, None),
        (b'{"id":"1","datacontenttype":"application/xml","data":{"x":1}}', None, None),
        (b'{"id":"1","datacontenttype":"a/b\\r\\nx: y","data_base64":"AAE="}', b"a/b%0D%0Ax: y", b"\0\x01"),
    ],
)
def test_binary_mode_has_the_data_as_its_type_says_or_is_structured(event, kind, body):
    headers, sent = request_of("binary", [Outgoing(1, event)])
    if kind is None:
        assert (headers[0][1], sent) == (b"application/cloudevents+json; charset=utf-8", event)
    else:
        assert (headers[0], sent) == ((b"content-type", kind), body)
        assert (b"ce-id", b"1") in headers


def test_no_text_of_an_event_makes_another_header():
    event = msgspec.json.encode({"id": "1\r\nx: y", "subject": '\0\x7fé€😀 "%', "data": 1})
    headers, _ = request_of("binary", [Outgoing(1, event)])
    assert dict(headers)[b"ce-id"] == b"1%0D%0Ax:%20y"
    assert dict(headers)[b"ce-subject"] == b"%00%7F%C3%A9%E2%82%AC%F0%9F%98%80%20%22%25"


@pytest.mark.parametrize(
    ("said", "least_s", "most_s"),
    [
        *((b"", 0, 0), (b"5", 5, 5), (b" 7 ", 7, 7), (b"-3", 0, 0), (b"1.5", 0, 0), (b"soon", 0, 0)),
        (b"999999999", RETRY_AFTER_MAX_S, RETRY_AFTER_MAX_S),
        (b"9" * 400, RETRY_AFTER_MAX_S, RETRY_AFTER_MAX_S),
        (b"Sun, 06 Nov 1994 08:49:37 GMT", 0, 0),
        (b"Fri, 31 Dec 9999 23:59:59 GMT", RETRY_AFTER_MAX_S, RETRY_AFTER_MAX_S),
        (b"\xff\xfe", 0, 0),
    ],
)
def test_when_a_receiver_wants_to_be_asked_again(said, least_s, most_s):
    answer = _meaning(429, {b"retry-after": said}, b"")
    assert answer.meaning is Meaning.BUSY and least_s <= answer.wait_s <= most_s


def test_a_receiver_may_name_the_time_instead():
    at = formatdate(time.time() + 600, usegmt=True).encode()
    assert 300 <= _meaning(503, {b"retry-after": at}, b"").wait_s <= 601


@pytest.mark.parametrize(
    ("body", "failed"),
    [
        (b"", frozenset()),
        (b'{"failed": ["0-1-2"]}', frozenset()),
        (b'{"failed_positions": []}', frozenset()),
        (b'{"failed_positions": ["0-1-2"], "more": 1}', frozenset({"0-1-2"})),
        (b'{"failed_positions": ["0-1-2", "x"]}', None),
        (b'{"failed_positions": "0-1-2"}', None),
        (b'{"failed_positions": [5]}', None),
        (b'{"failed_positions": ["0-1', None),
        (b'["failed_positions"]', None),
    ],
)
def test_what_an_answer_says_of_a_batch(body, failed):
    answer = _meaning(200, {}, body, {"0-1-2", "0-1-3"})
    if failed is None:
        assert answer.meaning is Meaning.FAILED, "some are wanted again, and one cannot see which"
    else:
        assert (answer.meaning, answer.failed) == (Meaning.ACCEPTED, failed)
