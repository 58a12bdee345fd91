"""The first bytes of values in a text."""

from __future__ import annotations

from typing import Any

from fieldfare.matching.compiled import borrowed, compiled, prefetch

_AHEAD = 16


@compiled
def first_bytes(text: Any, words: Any, out: Any) -> None:
    """Write the first byte of each value; a word has the value's start in its upper half."""
    text, words, out = borrowed(text), borrowed(words), borrowed(out)
    for row in range(words.size):
        if row + _AHEAD < words.size:
            prefetch(text, words[row + _AHEAD] >> 32)
        out[row] = text[words[row] >> 32]
