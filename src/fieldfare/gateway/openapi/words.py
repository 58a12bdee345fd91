"""The words in which the OpenAPI description is written."""

from __future__ import annotations

import re
from typing import Any

from fieldfare.gateway.problems import MEDIA_TYPE, ProblemDocument

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


def boolean(description: str) -> Json:
    return {"type": "boolean", "description": description}


def array(items: Any, description: str = "", **more: Any) -> Json:
    described = {"description": description} if description else {}
    return {"type": "array", "items": items, **described, **more}


def or_null(schema: Json) -> Json:
    """Return the schema of a value of one type, or null."""
    return {**schema, "type": [schema["type"], "null"]}


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def content(schema: Any, example: Any = None, media: str = "application/json") -> Json:
    described: Json = {"schema": schema}
    if example is not None:
        described["example"] = example
    return {media: described}


def answer(description: str, schema: Any = None, example: Any = None) -> Json:
    """Describe a response whose content has a schema: JSON, or the type that is encoded."""
    described: Json = {"description": description}
    if schema is not None:
        described["content"] = content(schema, example)
    return described


def problem(description: str) -> Json:
    return {
        "description": description,
        "content": content(ProblemDocument, None, MEDIA_TYPE),
    }


def body(schema: Any, example: Any, *, required: bool = True) -> Json:
    return {"required": required, "content": content(schema, example)}


def parameter(name: str, place: str, schema: Any, description: str) -> Json:
    required = place == "path"
    return {"name": name, "in": place, "required": required, "description": description, "schema": schema}


_IN_PATHS = {
    "space": "Name of the space.",
    "id": "Id of the subscription.",
    "broker": "Name of the neighbor that sends.",
    "key": "Id of the API key, as in the list of keys; not the secret key itself.",
    "delayed": "Id of the delayed events: `id` in the response that accepted them, and in the list.",
    "position": "Position of the quarantined record, as in the list.",
}
_PROBLEMS = {
    "400": "The request is invalid; the response names the place of the error.",
    "404": "The space or the subscription does not exist, or the caller has no rights in the space.",
    "409": "The subscription's list of dead letters is full: retry or clear some first.",
    "413": "The body has too many bytes, or too many items.",
    "415": "The service does not accept this Content-Type or Content-Encoding.",
    "429": "Too many changes of subscriptions are waiting. Retry after the seconds in Retry-After.",
    "default": "The caller or the request was refused (401, 403, 408, 421, 431), or the service cannot"
    " respond (500, 503).",
}
NO_KEYS = "The service requires no API keys, so there are none to manage."


def path(template: str, **operations: Json) -> Json:
    """Describe the operations of a path, by method."""
    names = re.findall(r"\{(\w+)\}", template)
    item: Json = {"parameters": [parameter(name, "path", string(), _IN_PATHS[name]) for name in names]}
    return {template: {**(item if names else {}), **operations}}


def operation(
    name: str,
    summary: str,
    description: str = "",
    *,
    answers: Json,
    problems: str = "",
    parameters: list[Json] | None = None,
    takes: Json | None = None,
) -> Json:
    """One operation; ``answers`` by status, or the one of 200, and the statuses of the usual problems."""
    described: Json = {"operationId": name, "summary": summary}
    if description:
        described["description"] = description
    if parameters:
        described["parameters"] = parameters
    if takes:
        described["requestBody"] = takes
    usual = [*problems.split(), *(("413", "415") if takes else ()), "default"]
    described["responses"] = {
        **({"200": answers} if "description" in answers else answers),
        **{status: problem(_PROBLEMS[status]) for status in usual},
    }
    return described
