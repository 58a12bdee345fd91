"""The OpenAPI document describes requests as the service checks them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from fieldfare.gateway.delivery_settings import BadSetting, changed_settings
from fieldfare.gateway.openapi.document import api_document
from fieldfare.gateway.openapi.from_types import described, nullable
from fieldfare.gateway.publishing.events import EventRefused, check_event
from fieldfare.gateway.routes.acks import NackBody, TerminateBody
from fieldfare.gateway.routes.keys import KeyBody
from fieldfare.gateway.routes.messages import PullBody
from fieldfare.gateway.routes.quotas import QuotasBody
from fieldfare.gateway.routes.subscriptions import SpaceBody
from fieldfare.gateway.subscription_store import SubscriptionBody
from fieldfare.model import DeliverySettings, Position, positions_text

DOCUMENT = api_document()

SCHEMAS = DOCUMENT["components"]["schemas"]


def is_described(schema: dict[str, Any], value: Any) -> bool:
    return bool(Draft202012Validator({**schema, "components": DOCUMENT["components"]}).is_valid(value))


def around(schema: dict[str, Any]) -> list[Any]:
    """Values at the bounds of a member and beyond them, and values of other types."""
    bounds = [schema[name] for name in ("minimum", "maximum", "exclusiveMinimum") if name in schema]
    numbers = [value for bound in bounds for value in (bound - 1, bound, bound + 1, bound + 0.5)]
    lists = [[], [0], [-1], [1.5] * 20, [1.5] * 21]
    return [None, True, False, "a", 1, 7.5, *numbers, *lists, {}]


def undescribed(node: Any, place: str = "") -> Iterator[str]:
    """The members of objects, parameters and operations without a description of two words or more."""
    if isinstance(node, dict):
        if node.get("type") == "object":
            for name, member in node.get("properties", {}).items():
                if "$ref" not in member and "oneOf" not in member:
                    yield from () if " " in member.get("description", "") else (f"{place}/{name}",)
        if ("in" in node and "name" in node) or "operationId" in node:
            yield from () if " " in node.get("summary", node.get("description", "")) else (place,)
        for name, each in node.items():
            yield from undescribed(each, f"{place}/{name}")
    elif isinstance(node, list):
        for at, each in enumerate(node):
            yield from undescribed(each, f"{place}/{at}")


def test_every_member_parameter_and_operation_is_described() -> None:
    assert list(undescribed(DOCUMENT)) == []
    assert list(undescribed({"type": "object", "properties": {"a": {"type": "string"}}})) == ["/a"]
    assert list(undescribed([{"in": "query", "name": "limit", "description": "Limit."}])) == ["/0"]


def test_a_cursor_of_a_log_with_several_partitions_is_described() -> None:
    """Responses with a position for each partition did not fit the pattern of one position."""
    ack = DOCUMENT["paths"]["/v1/spaces/{space}/subscriptions/{id}/ack"]["post"]["responses"]["200"]
    schema = ack["content"]["application/json"]["schema"]
    for cursor in ("0-6-0", positions_text([Position(0, 6, 0), Position(1, 4, 2)])):
        assert is_described(schema, {"cursor": cursor})
    assert not is_described(schema, {"cursor": "0-6-0,"})


@pytest.mark.parametrize("name", sorted(SCHEMAS["DeliverySettings"]["properties"]))
def test_a_delivery_setting_is_described_with_the_bounds_that_check_it(name: str) -> None:
    """The bounds stood in the settings' types, in functions that checked them, and in the document."""
    wrong = []
    for value in around(SCHEMAS["DeliverySettings"]["properties"][name]):
        try:
            changed_settings(DeliverySettings(), {name: value})
            is_taken = True
        except BadSetting:
            is_taken = False
        if is_described(SCHEMAS["Delivery"], {name: value}) != is_taken:
            wrong.append((value, is_taken))
    assert not wrong


BODIES = {
    "Filter": (SubscriptionBody, [{"filter": "a = 1"}, {"filter": 5}, {"filter": ["a"], "id": None}]),
    "SpaceBody": (SpaceBody, [{"name": "a"}, {"name": "a", "encryption": None}, {"name": None}]),
    "KeyBody": (KeyBody, [{"rights": ["watch"]}, {"rights": []}, {"rights": ["watch"], "note": "x" * 201}]),
    "QuotasBody": (QuotasBody, [{}, {"connections": None}, {"connections": -1}, {"connections": 1 << 54}]),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_request_is_described_as_it_is_checked(name: str) -> None:
    kind, documents = BODIES[name]
    for document in [*documents, {**documents[0], "other": 1}, []]:
        assert is_described(SCHEMAS[name], document) == is_taken(kind, document), document


MEMBERS = [
    *({"subject": value} for value in (None, "", "a", 5)),
    *({"id": value} for value in (None, "", 5)),
    *({"extension": value} for value in (None, "", "a", 5, True, {}, [])),
    *({"data": value} for value in (None, "", 5, {}, [1])),
    *({"data_base64": value} for value in (None, "YQ==", 5)),
    {"specversion": "0.3"},
]


@pytest.mark.parametrize("members", MEMBERS, ids=str)
def test_an_event_is_described_as_it_is_checked(members: dict[str, Any]) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/x", "type": "t"} | members
    try:
        check_event(json.dumps(event).encode(), 1 << 20)
        is_accepted = True
    except EventRefused:
        is_accepted = False
    assert is_described(SCHEMAS["Event"], event) == is_accepted


@pytest.mark.parametrize("kind", [PullBody, NackBody, TerminateBody])
def test_null_is_described_where_it_is_taken(kind: type) -> None:
    schema = described(kind)
    base = {member: [] for member in schema["required"]}
    for member in schema["properties"]:
        document = base | {member: None}
        assert is_described(schema, document) == is_taken(kind, document), member


def is_taken(kind: type, document: Any) -> bool:
    try:
        msgspec.convert(document, kind)
    except msgspec.ValidationError:
        return False
    return True


def test_members_are_described_by_the_docstring_of_their_type() -> None:
    class Body(msgspec.Struct, forbid_unknown_fields=True):
        """A request.

        Attributes
        ----------
        a
            The first member; None
            for none.
        """

        b: int
        a: str | None = None

    schema = described(Body, b={"maximum": 5})
    assert schema == {
        "type": "object",
        "description": "A request.",
        "properties": {
            "a": {"type": ["string", "null"], "description": "The first member; null for none."},
            "b": {"type": "integer", "maximum": 5},
        },
        "required": ["b"],
        "additionalProperties": False,
    }
    assert nullable(schema)["properties"]["b"]["type"] == ["integer", "null"]
