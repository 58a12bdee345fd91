"""Shared by all systems: options, the filters found in a document, and how names become ids."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from fieldfare.filters.errors import FilterError, Problem
from fieldfare.filters.expression import Attribute, Literal
from fieldfare.model import Path

ID_CHARACTERS_MAX = 128
"""Maximum characters of a subscription's id; a longer name is cut, and a digest of it is appended."""

_CONTEXT_NAME = re.compile("[a-z0-9]+")
_NOT_CONTEXT = ("data", "database64")
_OTHER = re.compile(r"[^A-Za-z0-9_.:@~-]")
_DIGEST_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Options:
    """How messages of another system become events, and which filters of a document are wanted.

    Attributes
    ----------
    at
        The object in an event that has the message's attributes; None: the system's default.
    names
        Attributes that are elsewhere: their names, and their paths in an event.
    body
        The value in an event that is the message's body.
    topic
        The attribute that has the message's topic, subject or routing key.
    scope
        The scope of an SNS policy that does not name one.
    source
        The bus, topic, broker or exchange whose filters are wanted; None if there is only one.
    disabled
        Whether filters that are disabled are wanted too.
    plain_values
        Whether messages have no arrays and nulls where the system does not document how they match.
    """

    at: Path | None = None
    names: Mapping[str, Path] = field(default_factory=dict)
    body: Path = ("data",)
    topic: Path = ("subject",)
    scope: str | None = None
    source: str | None = None
    disabled: bool = False
    plain_values: bool = False

    def attribute(self, name: str) -> Attribute:
        """Return the attribute of an event that has a message's attribute.

        Raises
        ------
        ValueError
            No event can have an attribute of this name; the second argument is a hint.
        """
        if name in self.names:
            return Attribute(self.names[name])
        if self.at:
            return Attribute((*self.at, name))
        if not _CONTEXT_NAME.fullmatch(name) or name in _NOT_CONTEXT:
            hint = (
                f"say where it is: --map '{name}=data.{name}' for this one, "
                "or --at data.attributes for all of them"
            )
            raise ValueError(
                f"no event has a context attribute {name!r}: their names have the letters a-z and digits",
                hint,
            )
        return Attribute((name,))


@dataclass(frozen=True, slots=True)
class Item:
    """One filter of a document, not converted yet.

    Attributes
    ----------
    name
        Its name in the other system.
    place
        Where it is in the document.
    convert
        Returns the filter and its dialect; raises FilterError.
    source
        The bus, topic, broker or exchange whose messages it selects from; "" if the document does not say.
    skipped
        The reason why it is left out, or "".
    """

    name: str
    place: str
    convert: Callable[[], tuple[str, str]]
    source: str = ""
    skipped: str = ""


class DocumentError(ValueError):
    """A document that cannot be read at all."""


def refusal(message: str, hint: str = "", text: str = "") -> FilterError:
    """Return an error about an entire filter."""
    return FilterError(text, [Problem(message, 1, 1, hint, 0)])


def subscription_id(name: str, prefix: str = "") -> str:
    """Return the id of the subscription for a filter's name: other characters than an id has become ``-``."""
    id = _OTHER.sub("-", prefix + name)
    if not id or not (id[0].isalnum() or id[0] == "_"):
        id = f"_{id}"
    if len(id) > ID_CHARACTERS_MAX:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]
        id = f"{id[: ID_CHARACTERS_MAX - _DIGEST_DIGITS - 1]}-{digest}"
    return id


def literal_of(value: str | int | float) -> Literal:
    """Return a constant; a double stands for the shortest decimal that reads back as it, as in JSON."""
    if not isinstance(value, float):
        return Literal(value)
    number = Decimal(repr(value))
    whole = number.to_integral_value()
    return Literal(int(whole) if number == whole else number)
