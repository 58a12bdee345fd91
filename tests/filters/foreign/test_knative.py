"""Knative Triggers against a naive matcher."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.filters import FilterError, compile_filter
from fieldfare.filters.foreign.items import DocumentError, Options
from fieldfare.filters.foreign.knative import convert_trigger
from fieldfare.filters.foreign.systems import SYSTEMS, Conversion, convert_documents

NAMES = ["type", "source", "subject", "myext", "region"]
TEXTS = ["a", "ab", "order.paid", "5", "true", "b"]
CESQL = {
    "type = 'ab'": lambda event: event.get("type") == "ab",
    "EXISTS myext": lambda event: "myext" in event,
    "myext LIKE 'a%'": lambda event: str(event.get("myext", "")).startswith("a"),
    "NOT (EXISTS myext)": lambda event: "myext" not in event,
}
maps = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TEXTS), min_size=1, max_size=2)
simple = st.one_of(
    *(maps.map(lambda found, name=name: {name: found}) for name in ("exact", "prefix", "suffix")),  # type: ignore[misc]
    st.sampled_from(sorted(CESQL)).map(lambda text: {"cesql": text}),
)
filters = st.recursive(
    simple,
    lambda inner: st.one_of(
        inner.map(lambda found: {"not": found}),
        st.builds(
            lambda name, found: {name: found},
            st.sampled_from(["all", "any"]),
            st.lists(inner, min_size=1, max_size=3),
        ),
    ),
    max_leaves=6,
)
events = st.builds(
    lambda needed, other: {**needed, **other},
    st.fixed_dictionaries({"type": st.sampled_from(TEXTS), "source": st.sampled_from(TEXTS)}),
    st.dictionaries(st.sampled_from(NAMES[2:]), st.sampled_from(TEXTS)),
)
attributes = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["a", "ab", "", ""]), max_size=2)


def naive(filter: dict[str, Any], event: dict[str, str]) -> bool:
    """Knative, "Trigger filters": what each dialect says of attributes, which arrive as strings."""
    ((name, inner),) = filter.items()
    if name == "cesql":
        return bool(CESQL[inner](event))
    if name == "not":
        return not naive(inner, event)
    if name in ("all", "any"):
        return (all if name == "all" else any)(naive(each, event) for each in inner)
    test = {"exact": str.__eq__, "prefix": str.startswith, "suffix": str.endswith}[name]
    return all(each in event and test(event[each], text) for each, text in inner.items())


def trigger(spec: Any, name: str = "t", namespace: str | None = None) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Trigger",
        "metadata": metadata,
        "spec": {"broker": "default", **spec},
    }


def converted(spec: Any) -> Any:
    return compile_filter(*convert_trigger(yaml.safe_dump(trigger(spec)), Options()))


@settings(max_examples=drawn(300))
@given(st.lists(filters, min_size=1, max_size=2), st.lists(events, min_size=1, max_size=5))
def test_filters_agree_with_a_naive_matcher(some: list[Any], found: list[dict[str, str]]) -> None:
    filter = converted({"filters": some, "filter": {"attributes": {"type": "ignored beside filters"}}})
    for event in found:
        assert filter.matches(event) is all(naive(each, event) for each in some), (some, event)


@settings(max_examples=drawn(200))
@given(attributes, st.lists(events, min_size=1, max_size=5))
def test_attributes_agree_with_a_naive_matcher(some: dict[str, str], found: list[dict[str, str]]) -> None:
    """Knative: an event must have all of the attributes; an empty string is any value."""
    filter = converted({"filter": {"attributes": some}})
    for event in found:
        expected = all(
            event.get(name, "") not in ("",) and text in ("", event[name]) for name, text in some.items()
        )
        assert filter.matches(event) is expected, (some, filter.text, event)


def test_an_empty_string_is_any_value() -> None:
    filter = converted({"filter": {"attributes": {"myext": ""}}})
    events = [{"myext": "a"}, {"myext": 5}, {"myext": ""}, {"myext": None}, {}]
    assert [filter.matches(event) for event in events] == [True, True, False, False, False]


def test_a_trigger_without_a_filter_takes_all() -> None:
    for spec in ({}, {"filter": {}}, {"filter": None}, {"filters": []}, {"filter": {"attributes": {}}}):
        assert converted(spec).matches({"type": "a"})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"filters": [{"exact": {"time": "x"}}]}, r"spec.filters\[0\].exact.time: Knative compares the time"),
        (
            {"filters": [{"any": [{"not": {"prefix": {"schemaurl": "x"}}}]}]},
            r"\[0\].any\[0\].not.prefix.schemaurl",
        ),
        ({"filters": [{"exact": {"type": 5}}]}, r"exact.type: the value is a string\n  hint: write \"5\""),
        ({"filters": [{"regex": {"type": "x"}}]}, "spec.filters.0..regex: there is no such filter"),
        ({"filters": [{"cesql": "priority + 5"}]}, "the expression is not a condition"),
        ({"filters": [{"cesql": "type = "}]}, r"spec.filters\[0\].cesql, column \d+: "),
        ({"filters": [{"cesql": "a = 1 OR b = 2 AND c = 3"}]}, "implementations disagree about it"),
        ({"filters": [{"exact": {"type": "a"}, "prefix": {"type": "a"}}]}, "an object with one name"),
        ({"filters": [{}]}, "an object with one name"),
        ({"filters": ["x"]}, r"spec.filters\[0\]: a filter is an object"),
        ({"filters": {"exact": {"type": "a"}}}, "spec.filters: this is a list of filters"),
        ({"filter": {"attributes": {"type": 5}}}, "spec.filter.attributes.type: the value is a string"),
        ({"filter": {"attributes": {"my-ext": "5"}}}, "no event has a context attribute 'my-ext'"),
        ({"filter": {"attributes": {"time": "5"}}}, "Knative compares the time"),
        # Go writes the time of an event without one as 0001-01-01: an empty string takes such an event, too.
        ({"filter": {"attributes": {"time": ""}}}, "Knative compares the time"),
        ({"filter": {"sourceAndType": {"type": "a"}}}, "there is only spec.filter.attributes"),
    ],
)
def test_what_cannot_be_said_is_refused_with_its_path(spec: Any, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        converted(spec)


def convert(text: str, source: str | None = None) -> Conversion:
    return convert_documents(SYSTEMS["knative"], [(text, "t.yaml", "t")], Options(source=source))


FILE = """\
# what kubectl prints, and other resources beside it
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata:
  name: paid
  namespace: shop
spec:
  broker: default
  filter:
    attributes:
      type: order.paid
      day: 2026-01-02
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: paid}
---
apiVersion: triggers.tekton.dev/v1
kind: Trigger
metadata: {name: other}
---
apiVersion: v1
kind: List
items:
- apiVersion: eventing.knative.dev/v1
  kind: Trigger
  metadata: {name: bad, namespace: shop}
  spec:
    broker: default
    filters: [{exact: {type: yes}}]
"""


def test_documents_and_lists_of_triggers_are_read() -> None:
    found = convert(FILE)
    assert [(each.id, each.place, each.filter) for each in found.converted] == [
        ("shop:paid", "t.yaml, line 2", "type = 'order.paid' AND day = '2026-01-02'")
    ]
    assert [(each.name, each.place) for each in found.refused] == [("shop:bad", "t.yaml, line 22, items[0]")]


def test_triggers_of_several_brokers_need_a_choice() -> None:
    both = [trigger({}, "a", "x"), trigger({"broker": "other"}, "b", "x")]
    text = yaml.safe_dump_all(both)
    with pytest.raises(DocumentError, match=r"2 sources \('x/default', 'x/other'\)"):
        convert(text)
    assert [each.id for each in convert(text, "x/other").converted] == ["x:b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x [1]\nb: *x\n", r"line 2: aliases \(\*x\) are not accepted"),
        ("[" * 5_000, "line 1: this is nested deeper than 200 levels"),
        ("a: 1\na: 2\n", "line 2, column 1: this is not YAML: 'a' is used twice"),
        ("a: [1", "this is not YAML"),
        ("a: !!python/object:os.system x", "this is not YAML"),
        ("a: \x00", "this is not YAML"),
        *(
            (f"a: {value}", "not of the type")
            for value in ("!!bool x", "!!timestamp x", "!!int ''", "!!map [x]")
        ),
        ("? [a]\n: b", "a name is a string"),
    ],
)
def test_hostile_yaml_is_refused(text: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        convert(text)


def test_without_pyyaml_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(DocumentError, match=r"pip install 'fieldfare\[yaml\]'"):
        convert(FILE)


def test_one_filter_is_one_trigger() -> None:
    with pytest.raises(FilterError, match="the text holds 0 Triggers, not one"):
        convert_trigger("a: 1", Options())
