"""Knative Triggers: documents of YAML, with ``filters`` or with ``filter.attributes``."""

from __future__ import annotations

import json
from typing import Any

from fieldfare.filters.cesql.parser import parse_cesql
from fieldfare.filters.cesql.types import result_type
from fieldfare.filters.cesql.values import CesqlType
from fieldfare.filters.errors import FilterError
from fieldfare.filters.expression import Comparison, Expression, IsNull, IsTruth, Literal, Not
from fieldfare.filters.foreign.documents import DEPTH_MAX
from fieldfare.filters.foreign.items import DocumentError, Item, Options, refusal
from fieldfare.filters.help.conversion import conjunction, sql_text
from fieldfare.filters.subscriptions_api import parse_subscriptions

GROUP = "eventing.knative.dev/"
_NOT_COMPARED = {
    "time": "Knative compares the time as Go writes it, not as the event has it",
    "schemaurl": "it is no attribute of CloudEvents 1.0",
    "datamediatype": "it is no attribute of CloudEvents 1.0",
    "datacontentencoding": "it is no attribute of CloudEvents 1.0",
}
_MAPS = ("exact", "prefix", "suffix")


def convert_trigger(text: str, options: Options) -> tuple[str, str]:
    """Convert the only Trigger of a text.

    Raises
    ------
    FilterError
        The text does not hold one Trigger, or its filter cannot be converted exactly.
    """
    try:
        items = read_triggers(text, "", options)
    except DocumentError as error:
        raise refusal(str(error)) from None
    if len(items) != 1:
        raise refusal(f"the text holds {len(items)} Triggers, not one", "give a file of several with --file")
    return items[0].convert()


def read_triggers(text: str, name: str, options: Options) -> list[Item]:
    """Read the Triggers of a text, also from lists; other resources are ignored.

    Raises
    ------
    DocumentError
        The text is not YAML, or PyYAML is not installed.
    """
    items: list[Item] = []
    for line, document in _documents(text):
        resources = [document]
        if isinstance(document, dict) and str(document.get("kind", "")).endswith("List"):
            resources = document.get("items") or []
        for number, resource in enumerate(resources if isinstance(resources, list) else []):
            place = f"line {line}" if resource is document else f"line {line}, items[{number}]"
            if (
                isinstance(resource, dict)
                and resource.get("kind") == "Trigger"
                and str(resource.get("apiVersion", "")).startswith(GROUP)
            ):
                items.append(_item(resource, place))
    return items


def _item(resource: dict[str, Any], place: str) -> Item:
    metadata, spec = resource.get("metadata"), resource.get("spec")
    metadata = metadata if isinstance(metadata, dict) else {}
    name, namespace = metadata.get("name"), metadata.get("namespace")
    broker = spec.get("broker", "default") if isinstance(spec, dict) else ""
    named = isinstance(name, str) and isinstance(namespace, str | None)

    def convert() -> tuple[str, str]:
        if not named:
            raise refusal("metadata.name: a Trigger has a name, a string")
        if not isinstance(spec, dict):
            raise refusal("spec: a Trigger has a spec, an object")
        return _spec(spec)

    shown = f"{namespace}:{name}" if namespace else str(name)
    source = f"{namespace}/{broker}" if namespace else str(broker)
    return Item(shown, place, convert, source)


def _spec(spec: dict[str, Any]) -> tuple[str, str]:
    filters, filter = spec.get("filters"), spec.get("filter")
    if filters:  # Knative ignores spec.filter then.
        if not isinstance(filters, list):
            raise refusal("spec.filters: this is a list of filters")
        _check_filters(filters, "spec.filters")
        text = json.dumps(filters, ensure_ascii=False)
        parse_subscriptions(text)
        return text, "subscriptions"
    if isinstance(filter, dict) and filter.keys() - {"attributes"}:
        raise refusal(
            f"spec.filter.{min(filter.keys() - {'attributes'})}: there is only spec.filter.attributes"
        )
    attributes = filter.get("attributes") if isinstance(filter, dict) else filter
    if not attributes:
        return "TRUE", "sql"
    if not isinstance(attributes, dict):
        raise refusal("spec.filter.attributes: this is an object of attributes and strings")
    return sql_text(conjunction([_attribute(*pair) for pair in attributes.items()]), ""), "sql"


def _attribute(name: Any, value: Any) -> Expression:
    place = f"spec.filter.attributes.{name}"
    if not isinstance(name, str) or not isinstance(value, str):
        raise refusal(f"{place}: the value is a string", f'write "{value}"')
    try:
        attribute = Options().attribute(name)
    except ValueError as error:
        raise refusal(f"{place}: {error.args[0]}") from None
    if name in _NOT_COMPARED:
        raise refusal(f"{place}: {_NOT_COMPARED[name]}")
    if value:
        return Comparison("=", attribute, Literal(value))
    is_empty = Comparison("=", attribute, Literal(""))
    return conjunction([Not(IsNull(attribute)), Not(IsTruth(is_empty, True))])


def _check_filters(filters: Any, place: str) -> None:
    """Reject what Knative and the Subscriptions API do not compare alike."""
    for index, filter in enumerate(filters):
        _check_filter(filter, f"{place}[{index}]")


def _check_filter(filter: Any, place: str) -> None:
    if not isinstance(filter, dict):
        raise refusal(f"{place}: a filter is an object")
    for name, inner in filter.items():
        at = f"{place}.{name}"
        if name in _MAPS and isinstance(inner, dict):
            for attribute, value in inner.items():
                if not isinstance(value, str):
                    raise refusal(f"{at}.{attribute}: the value is a string", f'write "{value}"')
                if attribute in _NOT_COMPARED:
                    raise refusal(f"{at}.{attribute}: {_NOT_COMPARED[attribute]}")
        elif name in ("all", "any") and isinstance(inner, list):
            _check_filters(inner, at)
        elif name == "not":
            _check_filter(inner, at)
        elif name == "cesql" and isinstance(inner, str):
            _check_cesql(inner, at)
        else:
            raise refusal(
                f"{at}: there is no such filter", "there are exact, prefix, suffix, all, any, not, cesql"
            )


def _check_cesql(text: str, place: str) -> None:
    try:
        node, warnings = parse_cesql(text)
    except FilterError as error:
        problem = error.problems[0]
        raise refusal(f"{place}, column {problem.column}: {problem.message}", problem.hint) from None
    if result_type(node) is not CesqlType.BOOLEAN:
        raise refusal(f"{place}: the expression is not a condition")
    for warning in warnings:
        if "without parentheses" in warning.message:
            message = (
                f"{place}, column {warning.column}: {warning.message}: implementations disagree about it"
            )
            raise refusal(message, warning.hint)


def _documents(text: str) -> list[tuple[int, Any]]:
    """Return the documents of a YAML text, with the lines where they begin."""
    try:
        import yaml
    except ImportError:
        raise DocumentError("Triggers are YAML: pip install 'fieldfare[yaml]'") from None
    try:
        _refuse_hostile(yaml, text)
        loader = _loader_class(yaml)(text)
        found = []
        while loader.check_node():
            node = loader.get_node()
            found.append((node.start_mark.line + 1, loader.construct_document(node)))
        return found
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise DocumentError(f"{place}this is not YAML: {getattr(error, 'problem', None) or error}") from None
    except ValueError as error:
        raise DocumentError(f"this is not YAML: {error}") from None
    except (AttributeError, LookupError, TypeError):  # PyYAML's, for a value that is not of its tag: !!bool x
        raise DocumentError("this is not YAML: a value is not of the type that its tag names") from None


def _refuse_hostile(yaml: Any, text: str) -> None:
    """Reject aliases, which can repeat a small text without end, and deep nesting."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise DocumentError(f"line {line}: aliases (*{event.anchor}) are not accepted: repeat the value")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_MAX:
                raise DocumentError(f"line {line}: this is nested deeper than {DEPTH_MAX} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _loader_class(yaml: Any) -> Any:
    """Return a safe loader that leaves dates as strings and rejects duplicate names."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
            for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names: set[Any] = set()
            for key, _ in node.value:
                name = self.construct_object(key, deep=True)
                if isinstance(name, dict | list) or name in names:
                    what = (
                        "a name is a string" if isinstance(name, dict | list) else f"{name!r} is used twice"
                    )
                    raise yaml.constructor.ConstructorError(None, None, what, key.start_mark)
                names.add(name)
            return super().construct_mapping(node, deep)

    return Loader
