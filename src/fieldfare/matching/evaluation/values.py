"""Values of any type by columns: the first of several, one or the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.evaluation import text_kernels
from fieldfare.matching.evaluation.kinds import KIND_ANY, KIND_ASK
from fieldfare.matching.evaluation.numbers import step_of
from fieldfare.matching.evaluation.operands import filled, spread
from fieldfare.matching.evaluation.tables import frozen
from fieldfare.matching.evaluation.view import Values
from fieldfare.matching.events.columns import KIND_NULL, KIND_STRING

_MOST_BYTES = (1 << 31) - 1
_LENGTH_BITS = 0xFFFFFFFF


def first_value(size: int, first: Values, second: Values) -> Values:
    """COALESCE(first, second)."""
    step, first = step_of(first, second), spread(first, size)
    chosen = either(first.kinds > KIND_NULL, first, spread(second, size), step)
    kinds: Any = np.maximum(chosen.kinds, np.uint8(KIND_NULL))
    kinds[first.kinds >= KIND_ASK] = KIND_ANY
    return filled(kinds, chosen.words, chosen.seconds, chosen.text, step)


def either(chooses_first: NDArray[np.bool_], first: Values, second: Values, step: int) -> Values:
    """The first value where it is chosen, else the second."""
    if chooses_first.all():
        return first._replace(step=step)
    kinds: Any = np.where(chooses_first, first.kinds, second.kinds)
    words: Any = np.where(chooses_first, first.words, second.words)
    seconds: Any = np.zeros(0, np.int64)
    if first.seconds.size or second.seconds.size:
        nothing = np.zeros(len(kinds), np.int64)
        sides = [each.seconds if each.seconds.size else nothing for each in (first, second)]
        seconds = np.where(chooses_first, *sides)
    text = first.text
    if second.text is not text:
        strings = kinds == KIND_STRING
        from_second = strings & ~chooses_first
        if not (strings & chooses_first).any():
            text = second.text
        elif from_second.any():
            text = _joined(first.text, second.text, kinds, words, from_second)
    return filled(kinds, words, seconds, text, step)


def _joined(
    text: NDArray[np.uint8], other: NDArray[np.uint8], kinds: Any, words: Any, from_other: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """One text for strings of two; changes the words. Strings that fit into none are of any value."""
    total = int((words[kinds == KIND_STRING] & _LENGTH_BITS).sum())
    if total <= text.size + other.size:
        packed: Any = np.empty(total, np.uint8)
        text_kernels.pack_strings(kinds, words, from_other, text, other, packed)
        return frozen(packed)
    if text.size + other.size > _MOST_BYTES:
        kinds[from_other] = KIND_ANY
        return text
    words[from_other] += text.size << 32
    return frozen(np.concatenate([text, other]))
