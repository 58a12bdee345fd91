"""The words in which the OpenAPI description is written."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def record(properties: Json, required: list[str] | None = None, **more: Any) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        **more,
    }


def taken(properties: Json, required: list[str] | None = None, **more: Any) -> Json:
    """A record that a request brings: the service refuses members it does not know."""
    return record(properties, required, additionalProperties=False, **more)


def string(description: str = "", **more: Any) -> Json:
    return {"type": "string", **({"description": description} if description else {}), **more}


def integer(description: str = "", **more: Any) -> Json:
    return {"type": "integer", **({"description": description} if description else {}), **more}


def number(description: str = "", **more: Any) -> Json:
    return {"type": "number", **({"description": description} if description else {}), **more}


def array(items: Json, **more: Any) -> Json:
    return {"type": "array", "items": items, **more}


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def content(schema: Json, example: Any = None, media: str = "application/json") -> Json:
    described: Json = {"schema": schema}
    if example is not None:
        described["example"] = example
    return {media: described}


def answer(description: str, schema: Json | None = None, example: Any = None) -> Json:
    described: Json = {"description": description}
    if schema is not None:
        described["content"] = content(schema, example)
    return described


def problem(description: str) -> Json:
    return {
        "description": description,
        "content": content(ref("Problem"), None, "application/problem+json"),
    }


def body(schema: Json, example: Any, *, required: bool = True) -> Json:
    return {"required": required, "content": content(schema, example)}


def path_parameter(name: str, description: str) -> Json:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string"},
    }


def parameter(name: str, place: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": place, "required": False, "description": description, "schema": schema}
