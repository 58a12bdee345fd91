"""The words in which the OpenAPI description is written."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from fieldfare.gateway.problems import MEDIA_TYPE, ProblemDocument

Json = dict[str, Any]
Handler = TypeVar("Handler", bound=Callable[..., Any])


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


def number(**more: Any) -> Json:
    return {"type": "number", **more}


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


def answer(
    description: str, schema: Any = None, example: Any = None, media: str = "application/json"
) -> Json:
    """Describe a response whose content has a schema: JSON, or the type that is encoded."""
    described: Json = {"description": description}
    if schema is not None:
        described["content"] = content(schema, example, media)
    return described


def json_body(schema: Any, example: Any, *, required: bool = True) -> Json:
    return {"required": required, "content": content(schema, example)}


def parameter(name: str, schema: Any, description: str, place: str = "query") -> Json:
    required = place == "path"
    return {"name": name, "in": place, "required": required, "description": description, "schema": schema}


def page_limit(maximum: int, description: str, default: int = 100) -> Json:
    """Describe the query parameter that limits the entries of a response."""
    return parameter("limit", integer(minimum=1, maximum=maximum, default=default), description)


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

OPERATIONS: dict[Callable[..., Any], Json] = {}
"""The described operations, by their handlers."""


def operation(
    answers: Json,
    problems: str = "",
    *,
    takes: Json | None = None,
    parameters: list[Json] | None = None,
    name: str = "",
) -> Callable[[Handler], Handler]:
    """Describe the operation of a handler, whose docstring is the operation's summary and description.

    Parameters
    ----------
    answers
        The responses by status, or the one of 200. A text alone describes a response without content, or,
        from status 400 on, a problem.
    problems
        The statuses of the usual problems, separated by spaces.
    takes
        The request's body.
    parameters
        The parameters in the query and the headers.
    name
        The operation's id, if it is not the handler's name.
    """
    usual = [*problems.split(), *(("413", "415") if takes else ()), "default"]
    by_status: Json = {"200": answers} if "description" in answers else answers
    by_status = by_status | {status: _PROBLEMS[status] for status in usual}

    def described(handler: Handler) -> Handler:
        summary, _, description = (inspect.getdoc(handler) or "").partition("\n\n")
        OPERATIONS[handler] = {
            "operationId": name or handler.__name__,
            "summary": " ".join(summary.split()).removesuffix("."),
            **({"description": " ".join(description.split())} if description else {}),
            **({"parameters": parameters} if parameters else {}),
            **({"requestBody": takes} if takes else {}),
            "responses": {status: _response(status, each) for status, each in by_status.items()},
        }
        return handler

    return described


def _response(status: str, described: Json | str) -> Json:
    if not isinstance(described, str):
        return described
    is_problem = status == "default" or int(status) >= 400
    return answer(described, *((ProblemDocument, None, MEDIA_TYPE) if is_problem else ()))
