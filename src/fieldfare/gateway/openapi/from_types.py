"""JSON schemas of the types that check requests: what is described is what is checked."""

from __future__ import annotations

import inspect
import re
from typing import Any

import msgspec

from fieldfare.gateway.openapi.words import Json


def described(kind: Any, **members: Json) -> Json:
    """Return the schema of a struct or dataclass, with the descriptions in its docstring.

    Parameters
    ----------
    kind
        The type.
    members
        What is known of members beyond their types, by name; with a ``$ref`` it replaces the member's schema.
    """
    _, components = msgspec.json.schema_components((kind,), ref_template="{name}")
    found: Json = components[kind.__name__]
    text = inspect.cleandoc(kind.__doc__ or "")
    told = dict(re.findall(r"^(\w+)\n((?: {4}.+\n?)+)", text.partition("---\n")[2], re.MULTILINE))
    properties: Json = {}
    for name, schema in found["properties"].items():
        more = members.get(name, {})
        schema = _plain({} if "$ref" in more or "oneOf" in more else schema)
        if name in told:
            schema["description"] = " ".join(told[name].split()).replace("None", "null")
        properties[name] = schema | more
    summary = text.partition("\n\n")[0]
    closed = {"additionalProperties": False} if "additionalProperties" in found else {}
    return {
        "type": "object",
        **({"description": " ".join(summary.split())} if summary else {}),
        "properties": properties,
        "required": found.get("required", []),
        **closed,
    }


def nullable(schema: Json) -> Json:
    """Return the schema of an object without required members, each of which may be null."""
    properties = {
        name: each if "oneOf" in each else _plain({"anyOf": [each, {"type": "null"}]})
        for name, each in schema["properties"].items()
    }
    return {**schema, "properties": properties, "required": []}


def _plain(schema: Json) -> Json:
    """Return a schema without a default of null, and with a list of types instead of alternatives."""
    alternatives = schema.pop("anyOf", [schema])
    found: Json = {**schema}
    types: list[str] = []
    for each in alternatives:
        found |= {name: _number(value) for name, value in each.items() if name != "type"}
        of = each.get("type", [])
        types += [of] if isinstance(of, str) else of
    unique = list(dict.fromkeys(types))
    if "enum" in found and unique == ["null"]:
        found["enum"] = [*found["enum"], None]
    elif unique:
        found["type"] = unique[0] if len(unique) == 1 else unique
    if found.get("default", "") is None:
        del found["default"]
    if "items" in found:
        found["items"] = _plain(dict(found["items"]))
    return found


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
