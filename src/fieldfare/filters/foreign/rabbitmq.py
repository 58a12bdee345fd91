"""Bindings of RabbitMQ's exchanges, as its management API exports them: a filter for each queue.

A queue gets a message once, if one of its bindings to the exchange matches. So all bindings of a queue to an
exchange are one filter.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from fieldfare.filters.errors import FilterError
from fieldfare.filters.expression import Attribute, Comparison, Exists, Expression, Literal
from fieldfare.filters.foreign.documents import read_document
from fieldfare.filters.foreign.items import DocumentError, Item, Options, literal_of, refusal
from fieldfare.filters.foreign.topics import AMQP, topic_condition
from fieldfare.filters.help.conversion import conjunction, disjunction, sql_text

X_MATCH = "x-match"
KINDS = ("all", "any", "all-with-x", "any-with-x")
_PREDECLARED = {
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
}
"""Exchanges that every virtual host has; they are in no export."""
_NAMES = {"vhost": "/", "source": None, "destination": None, "destination_type": "queue"}
"""Names of a binding, with their defaults, that together name what it binds."""


def convert_arguments(text: str, options: Options) -> tuple[str, str]:
    """Convert the arguments of one binding to a headers exchange, a JSON object.

    Raises
    ------
    FilterError
        The arguments are invalid, or cannot be converted exactly.
    """
    try:
        arguments = read_document(text)
    except DocumentError as error:
        raise refusal(str(error)) from None
    return sql_text(headers_condition(arguments, options), text), "sql"


def headers_condition(arguments: Any, options: Options) -> Expression:
    """Return a condition on the headers of a message, for the arguments of a binding."""
    if not isinstance(arguments, dict):
        raise refusal("the arguments of a binding are an object")
    kind = arguments.get(X_MATCH, "all")
    if kind not in KINDS:
        raise refusal(f"{X_MATCH} is {kind!r}: there are {', '.join(KINDS)}")
    conditions = [
        _header(name, value, options)
        for name, value in sorted(arguments.items())
        if name != X_MATCH and (kind.endswith("-with-x") or not name.startswith("x-"))
    ]
    if kind.startswith("all"):
        return conjunction(conditions)
    return disjunction(conditions)


def _header(name: str, value: Any, options: Options) -> Expression:
    try:
        attribute = options.attribute(name)
    except ValueError as error:
        raise refusal(f"header {name}: {error.args[0]}", error.args[1]) from None
    if value is None:
        return Exists(attribute)
    if isinstance(value, dict | list):
        what = "an array" if isinstance(value, list) else "a table"
        raise refusal(f"header {name}: its value is {what}, which no filter compares")
    if isinstance(value, Decimal):
        value = float(value)
        if not math.isfinite(value):
            raise refusal(f"header {name}: its value is no number that a message can have")
    return Comparison("=", attribute, literal_of(value))


def read_definitions(text: str, name: str, options: Options) -> list[Item]:
    """Read exported definitions; there is an item for each queue that is bound to an exchange.

    Raises
    ------
    DocumentError
        The text holds no bindings.
    """
    document = read_document(text)
    bindings = document.get("bindings") if isinstance(document, dict) else document
    if not isinstance(bindings, list):
        raise DocumentError("there are no bindings: export the definitions with `rabbitmqadmin export FILE`")
    exchanges = document.get("exchanges", []) if isinstance(document, dict) else []
    kinds = {
        (str(found.get("vhost", "/")), str(found.get("name"))): found.get("type")
        for found in (exchanges if isinstance(exchanges, list) else [])
        if isinstance(found, dict)
    }
    queues: dict[tuple[Any, ...], list[tuple[str, dict[str, Any]]]] = {}
    for index, binding in enumerate(bindings):
        place = f"bindings[{index}]"
        if not isinstance(binding, dict):
            raise DocumentError(f"{place}: a binding is an object")
        key = tuple(binding.get(name, default) for name, default in _NAMES.items())
        if not all(isinstance(name, str) for name in key):
            raise DocumentError(f"{place}: a binding has a source and a destination, which are strings")
        queues.setdefault(key, []).append((place, binding))
    return [_item(key, found, kinds, options) for key, found in queues.items()]


def _item(
    key: tuple[Any, ...],
    bindings: list[tuple[str, dict[str, Any]]],
    kinds: dict[tuple[Any, Any], Any],
    options: Options,
) -> Item:
    vhost, exchange, destination, destination_type = key
    kind = kinds.get((vhost, exchange), _PREDECLARED.get(exchange))

    def convert() -> tuple[str, str]:
        if destination_type != "queue":
            hint = "convert the bindings of that exchange, for events that have its messages"
            raise refusal(f"{bindings[0][0]}: the destination is an exchange, not a queue", hint)
        conditions = []
        for place, binding in bindings:
            try:
                conditions.append(_condition(kind, binding, options))
            except FilterError as error:
                problem = error.problems[0]
                raise refusal(f"{place}: {problem.message}", problem.hint) from None
        return sql_text(disjunction(conditions), ""), "sql"

    skipped = "the default exchange: every queue has this binding" if exchange == "" else ""
    source = exchange if vhost == "/" else f"{vhost}/{exchange}"
    return Item(destination, "", convert, source, skipped)


def _condition(kind: Any, binding: dict[str, Any], options: Options) -> Expression:
    if kind == "headers":
        arguments = binding.get("arguments", {})
        return headers_condition({} if arguments == [] else arguments, options)
    topic = Attribute(options.topic)
    key = binding.get("routing_key", "")
    if not isinstance(key, str):
        raise refusal("the routing key is not a string")
    if kind == "topic":
        return topic_condition(key, AMQP, topic)
    if kind == "direct":
        return Comparison("=", topic, Literal(key))
    if kind == "fanout":
        return Literal(True)
    if kind is None:
        raise refusal("the file has no exchange of this name, so its type is not known")
    raise refusal(f"exchanges of type {kind} are not converted: there are headers, topic, direct and fanout")
