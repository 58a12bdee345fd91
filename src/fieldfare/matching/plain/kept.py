"""A cache for values computed from a filter's text.

Parts are folded again and again while subscriptions change, so new parts mostly contain filters of earlier
ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")

CompileFilter = Callable[[str, str], Any]
"""Compiles a filter from its text and dialect."""

Work = Callable[[CompileFilter, str, str], T]


def kept(count: int, characters_max: int) -> Callable[[Work[T]], Work[T]]:
    """Cache results for at most `count` filters, with texts of at most `characters_max`; this bounds its
    memory."""

    def keeping(work: Work[T]) -> Work[T]:
        known = lru_cache(count)(work)

        def found(compile_filter: CompileFilter, text: str, dialect: str) -> T:
            asked = known if len(text) <= characters_max else work
            return asked(compile_filter, text, dialect)

        return found

    return keeping
