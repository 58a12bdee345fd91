"""JSON schemas of types: requests are described by the types that check them, responses by those encoded."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_type_hints

import msgspec
from msgspec import inspect as types

from fieldfare.gateway.openapi.words import Json

_COMPONENT = "#/components/schemas/"


def resolve_types(document: Json) -> Json:
    """Return an OpenAPI document in which each type is replaced by its schema.

    Structs and dataclasses become components, with the names of their types, less a `Document` at the end. A
    member is described by the text in its `Annotated`, or in the docstring of its class; a type of
    `member_types` by msgspec's `Meta`, since it also occurs in lists. Members with defaults may be missing in
    requests (`forbid_unknown_fields`) and in structs with `omit_defaults`, in which None stands for a missing
    member, never for null.
    """
    kinds = list(_types_in(document))
    schemas, named = msgspec.json.schema_components(kinds, ref_template=_COMPONENT + "{name}")
    classes: dict[str, type] = {}
    for kind in types.multi_type_info(kinds):
        _add_classes(kind, classes)
    resolved: Json = _with_schemas(document, iter(schemas))
    components = resolved["components"]["schemas"]
    for name, cls in sorted(classes.items()):
        if _short(name) in components:
            raise ValueError(f"two components are called {_short(name)}")
        is_request = getattr(_config(cls), "forbid_unknown_fields", False)
        components[_short(name)] = _described(_plain(named[name]), cls, is_request=is_request)
    return resolved


def described(kind: Any, **members: Json) -> Json:
    """Return the schema of a struct or dataclass, with the descriptions of its members.

    Parameters
    ----------
    kind
        The type.
    members
        What is known of members beyond their types, by name; a complete schema replaces the member's.
    """
    _, components = msgspec.json.schema_components((kind,), ref_template=_COMPONENT + "{name}")
    found = _described(_plain(components[kind.__name__]), kind, is_request=True)
    for name, more in members.items():
        is_replaced = not more.keys().isdisjoint(("$ref", "oneOf", "type"))
        text = found["properties"][name].get("description")
        schema = ({"description": text} if text else {}) if is_replaced else found["properties"][name]
        found["properties"][name] = schema | more
    return found


def nullable(schema: Json) -> Json:
    """Return the schema of an object without required members, each of which may be null."""
    properties = {
        name: each if "oneOf" in each else _plain({"anyOf": [each, {"type": "null"}]})
        for name, each in schema["properties"].items()
    }
    return {**schema, "properties": properties, "required": []}


def _types_in(node: Any) -> Iterator[Any]:
    """Iterate over the types in a document, in its order."""
    if isinstance(node, dict | list):
        for each in node.values() if isinstance(node, dict) else node:
            yield from _types_in(each)
    elif not isinstance(node, str | int | float | tuple | None):
        yield node


def _with_schemas(node: Any, schemas: Iterator[Json]) -> Any:
    """Return a document with the next schema in place of each type."""
    if isinstance(node, dict):
        return {name: _with_schemas(each, schemas) for name, each in node.items()}
    if isinstance(node, list):
        return [_with_schemas(each, schemas) for each in node]
    if isinstance(node, str | int | float | tuple | None):
        return node
    text = _text(node)
    return _plain(next(schemas)) | ({"description": text} if text else {})


def _add_classes(info: Any, found: dict[str, type]) -> None:
    """Add the structs and dataclasses of a type, and of those that it refers to, by name."""
    if isinstance(info, types.StructType | types.DataclassType):
        if info.cls.__name__ in found:
            return
        found[info.cls.__name__] = info.cls
    if isinstance(info, tuple):
        for each in info:
            _add_classes(each, found)
    elif isinstance(info, types.Type | types.Field):
        for name in info.__struct_fields__:
            _add_classes(getattr(info, name), found)


def _described(schema: Json, kind: type, *, is_request: bool) -> Json:
    """Return the schema of a type with its descriptions, and with the members that it always has."""
    summary, words = _words(kind)
    properties: Json = {}
    required = list(schema.get("required", ()))
    is_short = getattr(_config(kind), "omit_defaults", False)
    for name, each in schema["properties"].items():
        has_default = "default" in each
        if has_default and (not is_request or each["default"] is None):
            default = each.pop("default")
            each = _without_null(each) if is_short and default is None else each
        if has_default and not is_request and not is_short:
            required.append(name)
        properties[name] = each | ({"description": words[name]} if name in words else {})
    return {
        "type": "object",
        **({"description": summary} if summary else {}),
        "properties": properties,
        "required": [name for name in properties if name in required],
        **({"additionalProperties": False} if schema.get("additionalProperties") is False else {}),
    }


def _config(kind: type) -> Any:
    """Return the configuration of a struct; None for a dataclass."""
    return getattr(kind, "__struct_config__", None)


def _words(kind: type) -> tuple[str, dict[str, str]]:
    """Return what a type's docstring and `Annotated` say: of the type, and of its members by name."""
    words: dict[str, str] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if text := _text(hint):
            words[name] = text
    summary = ""
    for each in reversed([each for each in kind.__mro__ if each not in (object, msgspec.Struct)]):
        text = inspect.cleandoc(each.__doc__ or "")
        words.update(re.findall(r"^(\w+)\n((?: {4}.+\n?)+)", text.partition("---\n")[2], re.MULTILINE))
        summary = " ".join(text.partition("\n\n")[0].split())
    return summary, {name: " ".join(each.split()).replace("None", "null") for name, each in words.items()}


def _text(hint: Any) -> str:
    """Return the last text in a type's `Annotated`."""
    return next((each for each in getattr(hint, "__metadata__", ())[::-1] if isinstance(each, str)), "")


def _plain(schema: Json) -> Json:
    """Return a schema with a list of types instead of alternatives, and short names of components."""
    found = {name: _number(each) for name, each in schema.items() if name not in ("anyOf", "title")}
    for name in ("items", "additionalProperties"):
        if isinstance(found.get(name), dict):
            found[name] = _plain(found[name])
    if "properties" in found:
        found["properties"] = {name: _plain(each) for name, each in found["properties"].items()}
    if "$ref" in found:
        found["$ref"] = _COMPONENT + _short(found["$ref"].removeprefix(_COMPONENT))
    alternatives = [_plain(each) for each in schema.get("anyOf", ())]
    if any("$ref" in each for each in alternatives):
        return found | {"anyOf": alternatives}
    kinds: list[str] = []
    for each in [found, *alternatives]:
        of = each.get("type", [])
        kinds += [of] if isinstance(of, str) else of
        found |= {name: value for name, value in each.items() if name not in found}
    unique = list(dict.fromkeys(kinds))
    if "enum" in found and unique == ["null"]:
        del found["type"]
        found["enum"] = [*found["enum"], None]
    elif unique:
        found["type"] = unique[0] if len(unique) == 1 else unique
    return found


def _without_null(schema: Json) -> Json:
    """Return the schema of a member that is missing where its value would be null."""
    if "anyOf" in schema:
        (other,) = (each for each in schema["anyOf"] if each != {"type": "null"})
        return {**{name: each for name, each in schema.items() if name != "anyOf"}, **other}
    if not isinstance(schema.get("type"), list):
        return schema
    kinds = [each for each in schema["type"] if each != "null"]
    return schema | {"type": kinds[0] if len(kinds) == 1 else kinds}


def _short(name: str) -> str:
    return name.removesuffix("Document")


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
