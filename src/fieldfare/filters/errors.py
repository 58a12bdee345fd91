"""Errors in a filter's text: problems with a place, displayed with a caret under it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

SHOWN_CHARACTERS = 100
"""Characters of a line that the display shows around a problem; the rest is cut."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in a filter's text, or one warning about it.

    Attributes
    ----------
    message
        What is wrong, a sentence without a full stop.
    line, column
        Its start; both count from 1, columns in characters.
    hint
        What to write instead, or "".
    length
        Characters that it covers on its line; 0 if it is about the entire filter.
    """

    message: str
    line: int
    column: int
    hint: str = ""
    length: int = 1


class FilterError(ValueError):
    """A filter that cannot be used; ``str()`` shows each problem with its line.

    Attributes
    ----------
    text
        The filter's text.
    problems
        The errors, in the order of the text; at least one.
    """

    def __init__(self, text: str, problems: Iterable[Problem]) -> None:
        self.text = text
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__(display(text, self.problems))

    def __reduce__(self) -> tuple[type[FilterError], tuple[str, tuple[Problem, ...]]]:
        return FilterError, (self.text, self.problems)


def problem_at(text: str, start: int, end: int, message: str, hint: str = "") -> Problem:
    """Return a problem that covers ``text[start:end]``, up to the end of the first line."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    if line_end < 0:
        line_end = len(text)
    length = max(1, min(end, line_end) - start)
    return Problem(message, text.count("\n", 0, start) + 1, start - line_start + 1, hint, length)


def display(text: str, problems: Sequence[Problem]) -> str:
    """Format problems: for each the message, the line, a caret under the place, and the hint."""
    lines = text.split("\n")
    blocks = []
    for problem in problems:
        place = f"line {problem.line}, column {problem.column}: " if problem.length else ""
        block = [place + problem.message]
        if problem.length:
            block += _excerpt(lines[problem.line - 1], problem.column - 1, problem.length)
        if problem.hint:
            block.append(f"  hint: {problem.hint}")
        blocks.append("\n".join(block))
    return "\n".join(blocks)


def _excerpt(line: str, start: int, length: int) -> list[str]:
    """Return the line, or its part around the place, and the carets under the place."""
    line = "".join(character if character.isprintable() else " " for character in line)
    first = max(0, start - SHOWN_CHARACTERS // 2) if len(line) > SHOWN_CHARACTERS else 0
    shown = line[first : first + SHOWN_CHARACTERS]
    before, after = "... " if first else "", " ..." if first + len(shown) < len(line) else ""
    carets = "^" * max(1, min(length, first + len(shown) - start))
    return [f"  {before}{shown}{after}".rstrip(), "  " + " " * (len(before) + start - first) + carets]


def nearest(word: str, candidates: Iterable[str], least: float = 0.6) -> str:
    """Return the candidate most similar to a misspelt word; "" if none has a similarity of `least`."""
    found = get_close_matches(word.upper(), list(candidates), n=1, cutoff=least)
    return found[0] if found else ""


class Mistake(Exception):
    """An error at ``text[start:end]``, raised inside a parser, which turns it into a Problem.

    After a ``fatal`` mistake the parser stops; after others it looks for more.
    """

    def __init__(self, start: int, end: int, message: str, hint: str = "", *, fatal: bool = False) -> None:
        super().__init__(message)
        self.start, self.end, self.message, self.hint, self.fatal = start, end, message, hint, fatal

    def problem(self, text: str) -> Problem:
        return problem_at(text, self.start, self.end, self.message, self.hint)
