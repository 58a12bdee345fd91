"""Files of names and filters, and ids derived from names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldfare.filters.foreign.documents import read_document, read_names
from fieldfare.filters.foreign.items import DocumentError, subscription_id
from fieldfare.gateway.subscriptions import NAME

PROPERTIES = """\
# a comment
! another

red = color = 'red'
heavy: weight > 2.5
  spaced   size BETWEEN 1 \\
      AND 5
with\\ space=a LIKE '50\\\\%' ESCAPE '\\\\'
caf\\u00e9=b
empty
"""


def test_properties_are_read_as_java_reads_them() -> None:
    assert read_names(PROPERTIES) == [
        ("red", "color = 'red'", "line 4"),
        ("heavy", "weight > 2.5", "line 5"),
        ("spaced", "size BETWEEN 1 AND 5", "line 6"),
        ("with space", "a LIKE '50\\%' ESCAPE '\\'", "line 8"),
        ("café", "b", "line 9"),
        ("empty", "", "line 10"),
    ]


def test_json_objects_are_read() -> None:
    assert read_names('{"a": "x = 1"}') == [("a", "x = 1", "a")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=1\na=2", "line 2: the name 'a' is used twice"),
        ("=1", "line 1: a name is missing"),
        ('["a"]', "an object of names and filters"),
        ('{"a": 5}', "a: a filter is a string"),
        ('{"a": "x", "a": "y"}', "the name 'a' twice"),
        ("{", "line 1, column 2: this is not JSON"),
        ('{"a": 1e99999999999999999999}', "the exponent of 1e99999999999999999999 is too large"),
        ("a=\\ud800", "line 1: half of a character"),
    ],
)
def test_errors_name_the_place(text: str, message: str) -> None:
    with pytest.raises(DocumentError, match=re.escape(message)):
        read_names(text)


def test_hostile_documents_are_refused_quickly() -> None:
    for text in ("[" * 300 + "]" * 300, "[" * 10**6, '{"a":' * 10**5, "1" * 5_000):
        with pytest.raises(DocumentError):
            read_document(text)
    assert read_names("a" * 10**6 + " " * 10**6 + "=") == [("a" * 10**6, "", "line 1")]
    assert read_names("\\\n" * 10**4 + "a=b") == [("a", "b", "line 1")]


@given(st.text(max_size=200), st.sampled_from(["", "sns-", "-"]))
def test_every_name_has_a_valid_id(name: str, prefix: str) -> None:
    assert NAME.fullmatch(subscription_id(name, prefix))


def test_ids_resemble_names() -> None:
    assert subscription_id("shop:paid") == "shop:paid"
    assert subscription_id("a b/c", "sns-") == "sns-a-b-c"
    assert subscription_id(".hidden") == "_.hidden"
    assert subscription_id("") == "_"
    long, other = subscription_id("a" * 200), subscription_id("a" * 201)
    assert len(long) == len(other) == 128 and long != other
