"""Warnings about names in a filter that no event has, with the attribute that was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import cached_property

from fieldfare.filters.help.cautions import Caution
from fieldfare.filters.sql.paths import format_path
from fieldfare.model import Path

CONTEXT_ATTRIBUTES = frozenset(
    ("id", "source", "specversion", "type", "datacontenttype", "dataschema", "subject", "time", "data")
)
"""The attributes that CloudEvents defines, and the data; any other is an extension."""

_OF_OTHERS = {"JMSType": "type", "JMSMessageID": "id", "JMSTimestamp": "time", "detail-type": "type"}
"""Names of these attributes in other services: JMS, EventBridge."""

_ENVELOPES = ("detail", "Message", "MessageAttributes", "message", "body", "payload", "event", "attributes")
"""Names of the data, or of envelopes around it, in other services: EventBridge, SNS, and others."""

_ATTRIBUTE = re.compile("[a-z0-9]+")
_CLOSE = 0.75

LIKELY_MAX = 100
"""Maximum wrong names whose likely attribute is remembered; at the bound all are forgotten."""


class KnownNames:
    """The attributes that events have, prepared for many calls of `likely_path`.

    Parameters
    ----------
    paths
        The attributes, in the order in which they are preferred.
    """

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self._paths = dict.fromkeys(paths)
        self._likely: dict[Path, Path | None] = {}
        """Results of `likely_path`: generated filters repeat a wrong name."""

    def __contains__(self, path: Path) -> bool:
        return path in self._paths

    def __iter__(self) -> Iterator[Path]:
        return iter(self._paths)

    def likely(self, path: Path) -> Path | None:
        """Return what `likely_path` returns, for the last `LIKELY_MAX` names without computing it again."""
        if path in (likely := self._likely):
            return likely[path]
        if len(likely) >= LIKELY_MAX:
            self._likely = likely = {}  # not cleared: another thread may read it
        likely[path] = found = likely_path(path, self)
        return found

    @cached_property
    def texts(self) -> dict[str, Path]:
        """The attributes by their text."""
        return {format_path(path): path for path in self._paths}

    @cached_property
    def folded(self) -> dict[str, list[tuple[tuple[str, ...], Path]]]:
        """The attributes and their names as `_folded` returns them, by the last of these names."""
        found: dict[str, list[tuple[tuple[str, ...], Path]]] = {}
        for path in self._paths:
            names = tuple(map(_folded, path))
            found.setdefault(names[-1], []).append((names, path))
        return found


def impossible_names(paths: Iterable[Path], known: KnownNames | None = None) -> list[Caution]:
    """Warn of attributes that no CloudEvent can have; ``known`` are those that events have."""
    found = []
    for path in sorted(paths, key=format_path):
        if not _ATTRIBUTE.fullmatch(str(path[0])):
            message = (
                f"no event has {format_path(path)}: attributes have names of lower-case letters and digits"
            )
            meant = (known or KnownNames()).likely(path) or ("data", *path)
            found.append(Caution(message, f"did you mean {format_path(meant)}?"))
    return found


def missing_names(paths: Iterable[Path], known: KnownNames) -> list[Caution]:
    """Warn of attributes that no event of a sample has; ``known`` are those that its events have."""
    found = []
    for path in sorted(paths, key=format_path):
        meant, hint = known.likely(path), ""
        if meant:
            hint = f"did you mean {format_path(meant)}?"
        elif len(path) == 1 and path[0] not in CONTEXT_ATTRIBUTES:
            hint = f"to read a field of an event's data, write {format_path(('data', *path))}"
        found.append(Caution(f"no event of the sample has {format_path(path)}", hint))
    return found


def likely_path(path: Path, known: KnownNames) -> Path | None:
    """Return the attribute that was probably meant by a name that no event has; None if none is likely."""
    of_others = _OF_OTHERS.get(str(path[0])) if len(path) == 1 else None
    if of_others is not None:
        return (of_others,)
    candidates: list[Path] = [("data", *path)]
    if len(path) > 1 and path[0] in _ENVELOPES:
        candidates += [("data", *path[1:]), path[1:]]
    for candidate in candidates:
        if candidate in known:
            return candidate
    wanted = tuple(map(_folded, path))
    inner = [each for names, each in known.folded.get(wanted[-1], ()) if names[-len(wanted) :] == wanted]
    if inner:
        return min(inner, key=len)
    near = get_close_matches(format_path(path), known.texts, n=1, cutoff=_CLOSE)
    return known.texts[near[0]] if near else None


def _folded(step: str | int) -> str:
    """Return a name without the differences of camelCase, snake_case and kebab-case."""
    return re.sub("[_-]", "", str(step)).lower()
