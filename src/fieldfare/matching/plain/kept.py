"""What is worked out of a filter's text is kept.

While subscriptions change parts are folded again and again: each new one has filters that others had before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")

CompileFilter = Callable[[str, str], Any]
"""Makes a filter of its text and dialect."""

Work = Callable[[CompileFilter, str, str], T]


def kept(count: int, characters_max: int) -> Callable[[Work[T]], Work[T]]:
    """Keep what is worked out of so many filters with texts no longer than that: clients fill no more."""

    def keeping(work: Work[T]) -> Work[T]:
        known = lru_cache(count)(work)

        def found(compile_filter: CompileFilter, text: str, dialect: str) -> T:
            asked = known if len(text) <= characters_max else work
            return asked(compile_filter, text, dialect)

        return found

    return keeping
