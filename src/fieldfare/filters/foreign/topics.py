"""Topic patterns of MQTT, NATS and AMQP, as conditions on the attribute that has the topic.

A pattern is words and wildcards between separators. ``LIKE`` is enough for most: a topic has more than n
words if it is ``LIKE '%.%'`` with n separators, so one-word wildcards are ``%`` in a topic whose number of
words is fixed. A one-word wildcard between words before an open end is skipped with ``POSITION``. Several
open gaps are matched with each word between separators of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fieldfare.filters.errors import FilterError, Problem, problem_at
from fieldfare.filters.expression import (
    Arithmetic,
    Attribute,
    Call,
    Comparison,
    Expression,
    Like,
    Literal,
    Not,
    Pattern,
    Wild,
)
from fieldfare.filters.foreign.documents import named_items
from fieldfare.filters.foreign.items import Item, Options
from fieldfare.filters.help.conversion import conjunction, disjunction, sql_text

CHARACTERS_MAX = 4_000
"""Maximum characters of a topic pattern; a longer one is rejected, as no LIKE pattern could hold it."""

SKIPPED_MAX = 4
"""Maximum one-word wildcards between words before an open end: each doubles the size of the condition."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Words that a pattern leaves open: ``least`` words, or that many and more."""

    least: int
    is_open: bool


Part = str | Gap
"""A literal word, or a gap; no two gaps are adjacent."""


@dataclass(frozen=True, slots=True)
class Syntax:
    """The syntax of a system's topic patterns.

    Attributes
    ----------
    separator
        The character between words.
    one
        The wildcard for one word.
    many
        The wildcard for several words, and the number of words that it stands for at least.
    check
        Raises FilterError for a pattern that the system does not accept.
    hides_system
        Whether a wildcard at the start does not match topics that begin with ``$``.
    empty_has_words
        Whether an empty topic has one word; otherwise it has none.
    """

    separator: str
    one: str
    many: str
    least: int
    check: Callable[[str], None]
    hides_system: bool = False
    empty_has_words: bool = True


def problem(text: str, start: int, end: int, message: str, hint: str = "") -> FilterError:
    """Return an error at a place of a pattern."""
    return FilterError(text, [problem_at(text, start, max(end, start + 1), message, hint)])


def topic_condition(text: str, syntax: Syntax, attribute: Attribute) -> Expression:
    """Return a condition that is true for the topics that a pattern matches.

    Raises
    ------
    FilterError
        The pattern is invalid, or no condition is true for exactly these topics.
    """
    if len(text) > CHARACTERS_MAX:
        message = f"a topic pattern has at most {CHARACTERS_MAX:,} characters, this has {len(text):,}"
        raise FilterError(text, [Problem(message, 1, 1, "", 0)])
    syntax.check(text)
    parts = _parts(text, syntax)
    condition = _Topics(text, syntax).matching(parts, attribute)
    if (
        not syntax.empty_has_words
        and _least(parts)
        and not any(isinstance(part, str) and part for part in parts)
    ):
        condition = conjunction([condition, Comparison("<>", attribute, Literal(""))])
    if syntax.hides_system and isinstance(parts[0], Gap):
        condition = conjunction([condition, Not(Like(attribute, ("$", Wild.RUN)))])
    return condition


def _parts(text: str, syntax: Syntax) -> list[Part]:
    parts: list[Part] = []
    words = text.split(syntax.separator) if text or syntax.empty_has_words else []
    for word in words:
        gap = {syntax.one: Gap(1, False), syntax.many: Gap(syntax.least, True)}.get(word)
        if gap is None:
            parts.append(word)
        elif parts and isinstance(parts[-1], Gap):
            last = parts[-1]
            parts[-1] = Gap(last.least + gap.least, last.is_open or gap.is_open)
        else:
            parts.append(gap)
    return parts


def _least(parts: list[Part]) -> int:
    """Return the least number of words of a topic that matches."""
    return sum(part.least if isinstance(part, Gap) else 1 for part in parts)


class _Topics:
    """The translation of one pattern."""

    def __init__(self, text: str, syntax: Syntax) -> None:
        self.text = text
        self.separator = syntax.separator
        self.skipped = 0

    def matching(self, parts: list[Part], topic: Expression) -> Expression:
        """Return a condition that a topic, or the rest of one, matches."""
        open_gaps = [at for at, part in enumerate(parts) if isinstance(part, Gap) and part.is_open]
        if not open_gaps:
            return self.fixed(parts, topic)
        closed = [at for at, part in enumerate(parts) if isinstance(part, Gap) and not part.is_open]
        if closed and closed[-1] > open_gaps[0]:
            hint = "write the filter by hand, or split it into several subscriptions"
            message = (
                "a one-word wildcard between words after a wildcard for several words cannot be converted"
            )
            raise FilterError(self.text, [Problem(message, 1, 1, hint, 0)])
        if closed:
            return self.skipping(parts, closed[0], topic)
        if len(open_gaps) == 1:
            return self.one_gap(parts, open_gaps[0], topic)
        return self.several_gaps(parts, topic)

    def joined(self, words: list[str | Wild]) -> Pattern:
        """Return the pattern of words between separators."""
        pattern: list[str | Wild] = []
        for number, word in enumerate(words):
            pieces = [self.separator, word] if number else [word]
            for piece in pieces:
                if isinstance(piece, str) and pattern and isinstance(pattern[-1], str):
                    pattern[-1] += piece
                elif piece != "":
                    pattern.append(piece)
        return tuple(pattern)

    def fixed(self, parts: list[Part], topic: Expression) -> Expression:
        """Match a fixed number of words."""
        words: list[str | Wild] = []
        for part in parts:
            words += [Wild.RUN] * part.least if isinstance(part, Gap) else [part]
        if Wild.RUN not in words:
            return Comparison("=", topic, Literal(self.separator.join(map(str, words))))
        more = Like(topic, self.joined([Wild.RUN] * (len(words) + 1)))
        return conjunction([Like(topic, self.joined(words)), Not(more)])

    def one_gap(self, parts: list[Part], at: int, topic: Expression) -> Expression:
        """Match literal words, an open gap, and literal words."""
        gap = parts[at]
        assert isinstance(gap, Gap)
        before, after = (
            [part for part in some if isinstance(part, str)] for some in (parts[:at], parts[at + 1 :])
        )
        if not before and not after and gap.least <= 1:
            return Like(topic, (Wild.RUN,))
        with_gap = Like(topic, self.joined([*before, *[Wild.RUN] * max(gap.least, 1), *after]))
        if gap.least:
            return with_gap
        none = self.separator.join([*before, *after])
        return disjunction([Comparison("=", topic, Literal(none)), with_gap])

    def skipping(self, parts: list[Part], at: int, topic: Expression) -> Expression:
        """Match literal words, a gap of a fixed number of words, and then the rest of the topic."""
        conditions: list[Expression] = []
        gap = parts[at]
        assert isinstance(gap, Gap)
        if at:
            start = self.separator.join(map(str, parts[:at])) + self.separator
            conditions.append(Like(topic, (start, Wild.RUN)))
            topic = Call("SUBSTRING", (topic, Literal(len(start) + 1)))
        self.skipped += gap.least
        if self.skipped > SKIPPED_MAX:
            message = f"a pattern with an open end has at most {SKIPPED_MAX} one-word wildcards between words"
            raise FilterError(self.text, [Problem(message, 1, 1, "", 0)])
        for _ in range(gap.least):
            conditions.append(Like(topic, (Wild.RUN, self.separator, Wild.RUN)))
            position = Call("POSITION", (Literal(self.separator), topic))
            topic = Call("SUBSTRING", (topic, Arithmetic("+", position, Literal(1))))
        return conjunction([*conditions, self.matching(parts[at + 1 :], topic)])

    def several_gaps(self, parts: list[Part], topic: Expression) -> Expression:
        """Match literal words between open gaps, in a text in which each word has its own separators."""
        if "" in parts:
            message = "an empty word between several wildcards for several words cannot be converted"
            raise FilterError(self.text, [Problem(message, 1, 1, "", 0)])
        pattern: list[str | Wild] = []
        for part in parts:
            pieces: list[str | Wild] = (
                [self.separator, Wild.RUN, self.separator] * part.least or [Wild.RUN]
                if isinstance(part, Gap)
                else [f"{self.separator}{part}{self.separator}"]
            )
            for piece in pieces:
                if isinstance(piece, str) and pattern and isinstance(pattern[-1], str):
                    pattern[-1] += piece
                else:
                    pattern.append(piece)
        separator = Literal(self.separator)
        doubled = Call("REPLACE", (topic, separator, Literal(self.separator * 2)))
        return Like(Call("CONCAT", (separator, doubled, separator)), tuple(pattern))


def _check_mqtt(text: str) -> None:
    if not text:
        raise problem(text, 0, 1, "a topic filter has at least one character")
    if text.startswith("$share/"):
        hint = "convert what follows the group's name; several readers of one subscription share its messages"
        raise problem(text, 0, 7, "this is a shared subscription, not a topic filter", hint)
    if "\0" in text:
        raise problem(text, text.index("\0"), 0, "a topic filter has no NUL")
    levels = text.split("/")
    start = 0
    for number, level in enumerate(levels, 1):
        for sign in "+#":
            if sign in level and level != sign:
                raise problem(text, start, start + len(level), f"{sign} must be alone between two /")
        if level == "#" and number < len(levels):
            raise problem(text, start, start + 1, "# must be the last level")
        start += len(level) + 1


def _check_nats(text: str) -> None:
    tokens = text.split(".")
    start = 0
    for number, token in enumerate(tokens, 1):
        end = start + len(token)
        if not token:
            raise problem(text, start, end, "a subject has no empty tokens")
        if any(character.isspace() for character in token):
            raise problem(text, start, end, "a subject has no spaces")
        for sign in "*>":
            if sign in token and token != sign:
                raise problem(text, start, end, f"{sign} must be alone between two dots")
        if token == ">" and number < len(tokens):
            raise problem(text, start, end, "> must be the last token")
        start = end + 1


def _check_amqp(text: str) -> None:
    if len(text.encode("utf-8", "surrogatepass")) > 255:
        raise FilterError(text, [Problem("a binding key has at most 255 bytes", 1, 1, "", 0)])


MQTT = Syntax("/", "+", "#", 0, _check_mqtt, hides_system=True)
NATS = Syntax(".", "*", ">", 1, _check_nats)
AMQP = Syntax(".", "*", "#", 0, _check_amqp, empty_has_words=False)


def convert_topic(syntax: Syntax) -> Callable[[str, Options], tuple[str, str]]:
    """Return a function that converts one topic pattern."""

    def convert(text: str, options: Options) -> tuple[str, str]:
        return sql_text(topic_condition(text, syntax, Attribute(options.topic)), text), "sql"

    return convert


def read_topics(syntax: Syntax) -> Callable[[str, str, Options], list[Item]]:
    """Return a function that reads a file of names and topic patterns."""
    convert = convert_topic(syntax)

    def read(text: str, name: str, options: Options) -> list[Item]:
        return named_items(text, lambda pattern: convert(pattern, options))

    return read
