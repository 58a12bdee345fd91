"""The predicates of a filter: comparisons, BETWEEN, IN, LIKE, IS.

Each reads what follows an operand, and is told where that starts, and whether there is a NOT before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count

from fieldfare.filters.expression import (
    CONDITIONS,
    And,
    Arithmetic,
    Attribute,
    Between,
    Call,
    Comparison,
    Element,
    Expression,
    In,
    IsNull,
    IsTruth,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Pattern,
    Quantified,
    walk,
)
from fieldfare.filters.functions import Type
from fieldfare.filters.patterns import MAX_PATTERN_CHARACTERS, folded, parse_like
from fieldfare.filters.sql import cursor, mistakes
from fieldfare.filters.sql.literals import literals_of_list
from fieldfare.filters.sql.mistakes import as_string, shown
from fieldfare.filters.sql.operands import Operands
from fieldfare.filters.sql.paths import unquoted
from fieldfare.filters.sql.types import SHOWN, as_interval, as_timestamp

QUANTIFIERS = {"ANY": "ANY", "SOME": "ANY", "ALL": "ALL"}

_AFTER_IS = {"TRUE": True, "FALSE": False, "UNKNOWN": None}
_TIMES = (Type.TIMESTAMP, Type.INTERVAL)


class Predicates(Operands):
    """Reads what follows an operand and makes it a condition."""

    def comparison(self, left: Expression, start: int, negated: bool) -> Expression:
        operator, height, left_type = self.kind, self.height, self.type
        self.advance()
        first = self.index
        if self.kind == "path" and self.kinds[first + 1] == "(" and self.word() in QUANTIFIERS:
            return self.comparison_with_elements(left, operator, start)
        return self.compared(left, left_type, height, operator, start)

    def compared(
        self, left: Expression, left_type: Type, height: int, operator: str, start: int
    ) -> Expression:
        """A comparison, with its right side from here on; what is left of it starts at ``start``."""
        first = self.index
        right = self.expression(cursor.ADD)
        self.refuse_quoted_string(right, first)
        if self.type is not left_type:
            places = [(left, left_type, start), (right, self.type, first)]
            left, right = self.alike(places, start)
            self.height += 2 if left_type in _TIMES or self.type in _TIMES else 0
        self.grow(max(height, self.height), first)
        self.type = Type.BOOLEAN
        if operator == "<=>":
            self.count(cursor.COMPUTED_SIZE, first)
            return Call("EQUAL_NULL", (left, right))
        return Comparison(operator, left, right)

    def alike(self, operands: list[tuple[Expression, Type, int]], start: int) -> list[Expression]:
        """Operands of a comparison, with attributes read as timestamps beside a timestamp.

        Refuses what computes as numbers, but means something else.
        """
        types = {found for _, found, _ in operands} - {Type.ANY}
        wanted = next((time for time in _TIMES if time in types), None)
        if wanted is None:
            if len(types) > 1 and len(operands) == 2:
                kinds = " with ".join(SHOWN[found] for _, found, _ in operands)
                hint = "values of two types are never equal, less or greater; nothing is converted"
                self.warn(start, f"this compares {kinds}, which is always unknown", hint)
            return [operand for operand, _, _ in operands]
        result = []
        for operand, found, first in operands:
            read: Expression | None = operand
            if found is not wanted and operand != Literal(None):
                if found is Type.ANY and wanted is Type.TIMESTAMP:
                    read = as_timestamp(operand)
                else:
                    read = as_interval(operand) if wanted is Type.INTERVAL else None
            if read is None:
                what = "an attribute" if found is Type.ANY else SHOWN[found]
                hint = mistakes.conversion_hint(wanted, operand)
                raise self.mistake_over(
                    first, self.end_of_operand(first), f"{SHOWN[wanted]} cannot be compared with {what}", hint
                )
            result.append(read)
        return result

    def end_of_operand(self, start: int) -> int:
        """Where the operand that starts here ends, for a message: before the next operator outside of it."""
        depth, index = 0, start
        while index < self.index:
            kind = self.kinds[index]
            depth += (kind == "(") - (kind == ")")
            if depth < 0 or (not depth and index > start and kind in _ENDS):
                break
            index += 1
        return index

    def comparison_with_elements(self, left: Expression, operator: str, start: int) -> Expression:
        """``'red' = ANY(data.tags)``: the same for each element."""
        quantifier, left_type, first, height = QUANTIFIERS[self.word()], self.type, self.index, self.height
        self.advance()
        self.open()
        array = self.name()
        self.close(first + 1)
        return self.compared_with_elements(left, left_type, height, operator, quantifier, array, start)

    def compared_with_elements(
        self,
        left: Expression,
        left_type: Type,
        height: int,
        operator: str,
        quantifier: str,
        array: Attribute | Element,
        start: int,
    ) -> Expression:
        """A value compared with the elements of an array, all read; the first of both starts at ``start``."""
        first = self.index - 1
        taken = {str(part.path[0]) for part in walk(left) if isinstance(part, Attribute)}
        taken.update(part.variable for part in walk(left) if isinstance(part, Element))
        variable = next(name for name in _variables() if name not in taken and name not in self.variables)
        element: Expression = Element(variable)
        if left_type in _TIMES:
            places = [(left, left_type, start), (element, Type.ANY, first)]
            left, element = self.alike(places, start)
        computed = sum(isinstance(part, Arithmetic | Call | Negate) for part in walk(left))
        inside = self.tokens_between(start, self.index) + cursor.COMPUTED_SIZE * computed
        self.repeat(inside, array, start)
        self.grow(max(height, 2) + 1, first)
        self.type = Type.BOOLEAN
        condition: Expression = Comparison(operator, left, element)
        if operator == "<=>":
            condition = Call("EQUAL_NULL", (left, element))
        return Quantified(quantifier, array, variable, condition)

    def between(self, left: Expression, start: int, negated: bool) -> Expression:
        height, left_type = self.height, self.type
        self.advance()
        self.open_betweens += 1
        first = self.index
        low = self.expression(cursor.ADD)
        low_type = self.type
        self.refuse_quoted_string(low, first)
        height = max(height, self.height)
        if self.kind != "AND":
            hint = "write BETWEEN low AND high"
            if low == Attribute(("SYMMETRIC",)):
                hint += ", or for bounds in any order BETWEEN LEAST(low, high) AND GREATEST(low, high)"
            raise self.mistake(self.index, f"expected AND, found {shown(self.token())}", hint)
        self.open_betweens -= 1
        self.advance()
        second = self.index
        high = self.expression(cursor.ADD)
        self.refuse_quoted_string(high, second)
        height = max(height, self.height)
        if not (left_type is low_type is self.type):
            places = [(left, left_type, start), (low, low_type, first), (high, self.type, second)]
            left, low, high = self.alike(places, start)
            height += 2 if {left_type, low_type, self.type} & set(_TIMES) else 0
        self.grow(height, second)
        self.type = Type.BOOLEAN
        between = Between(left, low, high)
        return self.opposite(between, second) if negated else between

    def opposite(self, condition: Expression, index: int) -> Expression:
        """NOT before a condition that was read."""
        self.grow(self.height, index)
        return Not(condition)

    def in_list(self, left: Expression, start: int, negated: bool) -> Expression:
        height, left_type = self.height, self.type
        self.advance()
        opening = self.index
        if self.kind in ("path", "quoted") and self.kinds[opening + 1] != "(":
            array = self.name()
            found: Expression = self.compared_with_elements(left, left_type, height, "=", "ANY", array, start)
            return self.opposite(found, opening) if negated else found
        if self.kind != "(":
            hint = "write IN (1, 2, 3), or IN data.tags for an attribute that is an array"
            raise self.mistake(opening, f"expected (, found {shown(self.token())}", hint)
        self.open()
        self.refuse_subquery()
        items: list[Expression] = []
        types: list[Type] = []
        starts: list[int] = []
        known: dict[str, Literal] = {}
        while not items or self.kind == ",":
            if items:
                self.advance()
            if self.kind == ")":
                what = "a comma with nothing after it" if items else "IN needs at least one value"
                raise self.mistake(self.index, what, "write IN (1, 2, 3)")
            first = self.index
            literals, their_types, end = literals_of_list(self.tokens, first, known)
            if literals:  # the short way for what long lists are made of
                items += literals
                types += their_types
                starts += range(first, end, 2)
                self.index, self.kind = end, self.kinds[end]
                continue
            items.append(self.expression(cursor.ADD))
            types.append(self.type)
            starts.append(first)
            self.refuse_quoted_string(items[-1], first)
            height = max(height, self.height)
        if self.kind not in (")", "end"):
            hint = "put a comma between the values of a list"
            raise self.mistake(self.index, f"expected , or ), found {shown(self.token())}", hint)
        self.close(opening)
        if left_type in _TIMES or not set(types).isdisjoint(_TIMES):
            places = [(left, left_type, start), *zip(items, types, starts, strict=True)]
            left, *items = self.alike(places, start)
            height += 2
        self.grow(height, opening)
        self.type = Type.BOOLEAN
        found = In(left, tuple(items))
        return self.opposite(found, opening) if negated else found

    def like(self, left: Expression, start: int, negated: bool) -> Expression:
        height, keyword = self.height, self.kind
        before = self.size
        if self.type not in (Type.STRING, Type.ANY):
            message = f"{keyword} tests strings, this is {SHOWN[self.type]}"
            raise self.mistake_over(start, self.index, message)
        self.advance()
        token, quantifier = self.index, ""
        if self.kind == "path" and self.kinds[token + 1] == "(" and self.word() in QUANTIFIERS:
            quantifier = QUANTIFIERS[self.word()]
            patterns = self.patterns(keyword)
        else:
            patterns = [self.pattern(keyword)]
        if keyword == "ILIKE":
            self.count(cursor.COMPUTED_SIZE, token)
            left, patterns, height = Call("CASEFOLD", (left,)), list(map(folded, patterns)), height + 1
        self.type = Type.BOOLEAN
        self.grow(height + negated, token)
        tests: list[Expression] = [Like(left, pattern) for pattern in patterns]
        if negated:
            tests = list(map(Not, tests))
        if len(tests) == 1:
            return tests[0]
        # Each pattern is a LIKE of its own, and the value, a keyword and what joins them are there again.
        again = self.tokens_between(start, token) + self.size - before + 2
        self.count((len(tests) - 1) * again, token)
        self.grow(self.height, token)
        return (Or if quantifier == "ANY" else And)(tuple(tests))

    def patterns(self, keyword: str) -> list[Pattern]:
        """``ANY ('a%', 'b%')``."""
        self.advance()
        opening = self.index
        self.open()
        patterns = [self.pattern(keyword, alone=False)]
        while self.kind == ",":
            self.advance()
            patterns.append(self.pattern(keyword, alone=False))
        if self.kind not in (")", "end"):
            hint = f"write {keyword} ANY ('a%', 'b%')"
            raise self.mistake(self.index, f"expected , or ), found {shown(self.token())}", hint)
        self.close(opening)
        return patterns

    def pattern(self, keyword: str, *, alone: bool = True) -> Pattern:
        token = self.index
        text, escape = self.string_after(keyword, f"data.name {keyword} 'A%'"), None
        if self.kind == "ESCAPE" and alone:
            self.advance()
            escape = self.string_after("ESCAPE", rf"{keyword} '50\%' ESCAPE '\'")
            if len(escape) != 1:
                raise self.mistake(self.index - 1, "the escape character is exactly one character")
        elif found := _ESCAPED.search(text):
            message = (
                f"{found[0]} is a backslash and a wildcard: no character escapes another unless it is named"
            )
            shortest = mistakes.shortened(self.texts[token])
            self.warn(token, message, rf"write {keyword} {shortest} ESCAPE '\' to find a {found[0][1]}")
        if len(text) > MAX_PATTERN_CHARACTERS:
            raise self.mistake(token, f"a pattern has at most {MAX_PATTERN_CHARACTERS:,} characters")
        try:
            return parse_like(text, escape)
        except ValueError as error:
            raise self.mistake(token, str(error)) from None

    def string_after(self, keyword: str, example: str) -> str:
        token = self.token()
        if token.kind == "quoted":
            raise self.mistake(
                self.index, f"{keyword} needs a string", f"a string has single quotes: {as_string(token)}"
            )
        if token.kind != "string":
            message = f"{keyword} needs a string, found {shown(token)}"
            raise self.mistake(self.index, message, f"for example {example}")
        self.advance()
        return unquoted(token.text)

    def is_test(self, left: Expression, start: int) -> Expression:
        self.advance()
        negated = self.kind == "NOT"
        if negated:
            self.advance()
        test: Expression
        if self.kind == "path" and self.word() == "DISTINCT":
            return self.distinct(left, start, negated)
        if self.kind == "NULL":
            test = IsTruth(left, None) if isinstance(left, CONDITIONS) else IsNull(left)
        elif self.kind in _AFTER_IS:
            if self.type not in (Type.BOOLEAN, Type.ANY):
                message = f"this is {SHOWN[self.type]}, not a condition"
                hint = "compare it with something, as in data.price > 5"
                raise self.mistake_over(start, self.index - 1 - negated, message, hint)
            test = IsTruth(left, _AFTER_IS[self.kind])
        else:
            token = self.token()
            words = ("NULL", "NOT", *_AFTER_IS, "DISTINCT FROM")
            hint = mistakes.after_is(token, words)
            message = f"expected NULL, TRUE, FALSE or UNKNOWN after IS, found {shown(token)}"
            raise self.mistake(self.index, message, hint)
        self.advance()
        self.type = Type.BOOLEAN
        self.grow(self.height, start)
        if negated:
            self.grow(self.height, start)
            return Not(test)
        return test

    def distinct(self, left: Expression, start: int, negated: bool) -> Expression:
        """``IS [NOT] DISTINCT FROM``: a comparison that is never unknown."""
        left_type, height = self.type, self.height
        self.advance()
        self.expect("FROM", "write a IS DISTINCT FROM b")
        found = self.compared(left, left_type, height, "<=>", start)
        return found if negated else self.opposite(found, start)

    def refuse_quoted_string(self, expression: Expression, start: int) -> None:
        """Refuse ``data.symbol = "YHOO"``: it would compare with an attribute named YHOO."""
        if self.kinds[start] != "quoted" or not isinstance(expression, Attribute) or len(expression.path) > 1:
            return
        token = self.tokens[start]
        message = "double quotes name an attribute; a string has single quotes"
        hint = f"write {as_string(token)} (or ({mistakes.shortened(token.text)}) if you mean the attribute)"
        self.record(self.mistake(start, message, hint))


_ENDS = ("=", "<>", "<=>", "<", "<=", ">", ">=", "BETWEEN", "IN", "AND", "NOT", ",", "end")


_ESCAPED = re.compile(r"\\[%_]")


EACH = re.compile(r"each(_[0-9]+)?")
"""The names that `_variables` gives."""


def _variables() -> Iterator[str]:
    """Names for the element of a quantifier that the text does not name."""
    yield "each"
    yield from (f"each_{i}" for i in count(2))


PREDICATES: dict[str, Callable[[Predicates, Expression, int, bool], Expression]] = {
    "BETWEEN": Predicates.between,
    "IN": Predicates.in_list,
    "LIKE": Predicates.like,
    "ILIKE": Predicates.like,
    **dict.fromkeys(("=", "<>", "<=>", "<", "<=", ">", ">="), Predicates.comparison),
}
"""The operators that make conditions of values."""
