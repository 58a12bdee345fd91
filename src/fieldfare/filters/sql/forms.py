"""What is written in a way of its own and stands where a value does: CASE, CAST, and some calls of functions.

Most become what could be written otherwise, too: ``ARRAY_CONTAINS(a, 5)`` is ``5 = ANY(a)``.
"""

from __future__ import annotations

from collections.abc import Callable

from fieldfare.filters.expression import Arithmetic, Attribute, Call, Element, Expression, Literal
from fieldfare.filters.functions import FUNCTIONS, Type
from fieldfare.filters.sql import cursor, mistakes
from fieldfare.filters.sql.cursor import COMPUTED_SIZE
from fieldfare.filters.sql.literals import INTERVAL_UNITS
from fieldfare.filters.sql.mistakes import shown
from fieldfare.filters.sql.operands import AFTER_A_WORD, CASE_WORDS
from fieldfare.filters.sql.paths import MAX_INDEX, MAX_STEPS
from fieldfare.filters.sql.predicates import Predicates
from fieldfare.filters.sql.types import SHOWN

CASTS = {
    **dict.fromkeys(("BIGINT", "LONG"), "BIGINT"),
    **dict.fromkeys(("INT", "INTEGER"), "INT"),
    **dict.fromkeys(("DOUBLE", "FLOAT", "REAL"), "NUMBER"),
    **dict.fromkeys(("DECIMAL", "DEC", "NUMERIC"), "DECIMAL"),
    **dict.fromkeys(("STRING", "VARCHAR", "CHAR", "TEXT"), "STRING"),
    **dict.fromkeys(("BOOLEAN", "BOOL"), "BOOLEAN"),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"), "TIMESTAMP"),
    "DATE": "DATE",
}
"""The types that CAST knows, and the functions that it is."""

_CASE = "write CASE WHEN data.a > 5 THEN 'high' ELSE 'low' END"


class Forms(Predicates):
    """Reads them."""

    def form(self, word: str) -> Expression | None:
        read = _FORMS.get(word)
        return None if read is None else read(self)

    def is_word_of_case(self) -> bool:
        """Whether a CASE around here goes on."""
        return self.open_cases > 0 and self.kind == "path" and self.word() in CASE_WORDS

    def opens_case(self) -> bool:
        """Whether the word here begins a CASE."""
        following = self.kinds[self.index + 1]
        return self.word() == "CASE" and (following == "(" or following in AFTER_A_WORD)

    def case(self) -> Expression:
        """``CASE WHEN condition THEN value ... ELSE value END``, or ``CASE value WHEN value THEN ...``."""
        start = self.index
        self.count(COMPUTED_SIZE, start)
        self.enter(start)
        self.open_cases += 1
        self.advance()
        tested = None
        if not self.is_word_of_case():
            tested = self.tested()
        operands: list[Expression] = []
        types: list[Type] = []
        heights = [1]
        while self.is_word_of_case() and self.word() == "WHEN":
            operands.append(self.branch(tested, len(operands) > 0))
            heights.append(self.height)
            self.expect("THEN", _CASE)
            self.case_value(operands, types, heights)
        if not operands:
            raise self.mistake(self.index, f"expected WHEN, found {shown(self.token())}", _CASE)
        if self.is_word_of_case() and self.word() == "ELSE":
            self.advance()
            self.case_value(operands, types, heights)
        else:
            operands.append(Literal(None))
        if not self.is_word_of_case() or self.word() != "END":
            raise self.mistake(self.index, f"expected END, found {shown(self.token())}", _CASE)
        self.advance()
        self.open_cases -= 1
        self.nesting -= 1
        return self.finished_case(operands, types, start, max(heights))

    def tested(self) -> tuple[Expression, Type, int, int, int]:
        """What a CASE compares: its type, its height, where it starts, and what it counts."""
        start, before = self.index, self.size
        tested = self.expression(cursor.ADD)
        counts = self.tokens_between(start, self.index) + self.size - before
        return tested, self.type, self.height, start, counts

    def branch(self, tested: tuple[Expression, Type, int, int, int] | None, again: bool) -> Expression:
        """The condition behind WHEN."""
        when = self.index
        self.advance()
        if tested is None:
            condition = self.disjunction()
            self.require_condition(when + 1)
            return condition
        value, kind, height, start, counts = tested
        self.count(1 + counts * again, when)
        return self.compared(value, kind, height, "=", start)

    def case_value(self, operands: list[Expression], types: list[Type], heights: list[int]) -> None:
        """A value behind THEN or ELSE."""
        first = self.index
        operands.append(self.disjunction())
        self.refuse_quoted_string(operands[-1], first)
        if operands[-1] != Literal(None):
            types.append(self.type)
        heights.append(self.height)

    def finished_case(
        self, operands: list[Expression], types: list[Type], start: int, height: int
    ) -> Expression:
        places = [*range(1, len(operands) - 1, 2), len(operands) - 1]
        values = [operands[place] for place in places]
        known = iter(types)
        given = [Type.ANY if value == Literal(None) else next(known) for value in values]
        values, self.type = self.one_type(FUNCTIONS["CASE"], values, given, start)
        if Type.ANY not in types and len(set(types)) == 1:  # a NULL beside them says nothing
            self.type = types[0]
        for place, value in zip(places, values, strict=True):
            operands[place] = value
        self.grow(height + (self.type is Type.TIMESTAMP), start)
        return Call("CASE", tuple(operands))

    def cast(self) -> Expression:
        """``CAST(data.a AS BIGINT)``; TRY_CAST is the same, for a cast never fails."""
        start, name = self.index, self.word()
        example = f"write {name}(data.a AS BIGINT)"
        self.count(COMPUTED_SIZE, start)
        self.advance()
        self.open()
        self.enter(start)
        first = self.index
        operand = self.expression(cursor.ADD)
        found, height, last = self.type, self.height, self.index
        self.nesting -= 1
        self.expect("AS", example)
        function = FUNCTIONS.get(CASTS.get(self.word(), "")) if self.kind == "path" else None
        if function is None:
            raise self.mistake(
                self.index, f"there is no cast to {shown(self.token())}", mistakes.cast_hint(self.token())
            )
        after, self.index = self.index + 1, last  # for the place of a mistake
        self.type, self.height = found, height
        if function.name in ("TIMESTAMP", "DATE"):
            operand = self.as_moment(operand, first)
        else:
            self.check_operand(function, function.parameter(0), operand, first)
        found, height = self.type, self.height
        self.index, self.kind = after, self.kinds[after]
        operands, types = [operand], [found]
        if self.kind == "(" and function.name == "DECIMAL":
            more = self.digits()
            operands += more
            types += [Type.NUMBER] * len(more)
        elif self.kind == "(":
            raise self.mistake(
                self.index, "this type has no length here", "write LEFT(..., 10) around the CAST"
            )
        self.close(start + 1)
        if function.name == "TIMESTAMP":
            self.type, self.height = found, height
            return operand
        self.height = height
        return self.checked_call(function, operands, types, start, height)

    def digits(self) -> list[Expression]:
        """The ``(10, 2)`` of DECIMAL."""
        function, opening = FUNCTIONS["DECIMAL"], self.index
        self.open()
        found: list[Expression] = []
        while not found or (self.kind == "," and len(found) < 2):
            if found:
                self.advance()
            first = self.index
            if self.kind != "number":
                raise self.mistake(
                    first, f"expected a number, found {shown(self.token())}", "write DECIMAL(10, 2)"
                )
            operand = self.operand()
            found.append(self.check_operand(function, function.parameter(1 + len(found)), operand, first))
        self.close(opening)
        return found

    def as_moment(self, operand: Expression, start: int) -> Expression:
        """A value as a timestamp, for what reads texts as such on demand."""
        kind = self.type
        if kind not in (Type.TIMESTAMP, Type.STRING, Type.ANY):
            message = f"{SHOWN[kind]} is no timestamp"
            raise self.mistake_over(start, self.index, message, mistakes.EPOCH)
        self.type = Type.TIMESTAMP
        if kind is Type.TIMESTAMP or operand == Literal(None):
            return operand
        self.grow(self.height, start)
        function = FUNCTIONS["TIMESTAMP"]
        if isinstance(operand, Literal):
            self.type = Type.STRING
            self.check_operand(function, function.parameters[0], operand, start)
            self.type = Type.TIMESTAMP
        return Call("TIMESTAMP", (operand,))

    def date(self) -> Expression:
        """``DATE(time)``; of a text that is written here ``DATE '2026-01-31'``."""
        start = self.index
        if self.kinds[start + 2] == "string" and self.kinds[start + 3] == ")":
            self.advance()
            self.open()
            first = self.index
            literal = self.operand()
            moment = self.as_moment(literal, first)
            self.close(start + 1)
            self.count(COMPUTED_SIZE, start)
            self.grow(self.height, start)
            return Call("DATE", (moment,))
        return self.call_of(FUNCTIONS["DATE"], start)

    def date_add(self) -> Expression:
        """``DATE_ADD(time, 3)``: three days after its day."""
        start, word = self.index, self.word()
        example = f"write {word}(time, 3) for days, or time + INTERVAL '3' HOUR"
        self.count(2 * COMPUTED_SIZE, start)
        self.advance()
        self.open()
        self.enter(start)
        first = self.index
        moment = self.expression(cursor.ADD)
        if self.kind != ",":
            raise self.mistake(self.index, f"expected , found {shown(self.token())}", example)
        day = Call("DATE", (self.as_moment(moment, first),))
        height = self.height + 1
        self.advance()
        second = self.index
        days = self.expression(cursor.ADD)
        if self.type not in (Type.NUMBER, Type.ANY):
            message = f"{word} takes a number of days, this is {SHOWN[self.type]}"
            raise self.mistake_over(second, self.index, message, example)
        self.nesting -= 1
        if self.kind == ",":
            raise self.mistake(self.index, f"{word} takes 2 values", example)
        self.close(start + 1)
        if isinstance(days, Literal) and type(days.value) is int:
            length: Expression = Call("INTERVAL", (Literal(days.value * _DAY_S),))
        else:
            self.count(COMPUTED_SIZE, start)
            length = Call("INTERVAL", (Arithmetic("*", Call("BIGINT", (days,)), Literal(_DAY_S)),))
            self.height += 2
        self.type = Type.TIMESTAMP
        self.grow(max(height, self.height + 1), start)
        return Arithmetic("-" if word == "DATE_SUB" else "+", day, length)

    def array_contains(self) -> Expression:
        """``ARRAY_CONTAINS(data.tags, 'red')``."""
        start = self.index
        example = "write ARRAY_CONTAINS(data.tags, 'red') or 'red' = ANY(data.tags)"
        self.advance()
        self.open()
        array = self.name()
        if self.kind != ",":
            raise self.mistake(self.index, f"expected , found {shown(self.token())}", example)
        self.advance()
        self.enter(start)
        value = self.expression(cursor.ADD)
        kind, height = self.type, self.height
        self.nesting -= 1
        self.close(start + 1)
        return self.compared_with_elements(value, kind, height, "=", "ANY", array, start)

    def equal_null(self) -> Expression:
        """``EQUAL_NULL(a, b)``, which is ``a <=> b``."""
        start = self.index
        self.advance()
        self.open()
        self.enter(start)
        first = self.index
        found = self.expression(cursor.ADD)
        kind, height, values = self.type, self.height, 1
        if self.kind == ",":
            self.advance()
            found, values = self.compared(found, kind, height, "<=>", first), 2
        if values == 1 or self.kind == ",":
            raise self.mistake(start, "EQUAL_NULL takes 2 values", "write EQUAL_NULL(a, b)")
        self.nesting -= 1
        self.close(start + 1)
        return found

    def element_at(self) -> Expression:
        """``ELEMENT_AT(data.items, 1)``, which is ``data.items[0]``."""
        start = self.index
        found = self.call_of(FUNCTIONS["ELEMENT_AT"], start)
        assert isinstance(found, Call)
        named, place = found.operands
        is_bare = self.kinds[self.index - 3] == "," and isinstance(place, Literal)
        if is_bare and isinstance(named, Attribute | Element) and len(named.path) < MAX_STEPS:
            assert isinstance(place, Literal)
            step = place.value
            if isinstance(step, str):
                self.height = 1
                return _with_step(named, step)
            if type(step) is int and 0 < step <= MAX_INDEX + 1:
                self.height = 1
                return _with_step(named, step - 1)
        return found


def _with_step(named: Attribute | Element, step: str | int) -> Attribute | Element:
    if isinstance(named, Attribute):
        return Attribute((*named.path, step))
    return Element(named.variable, (*named.path, step))


_DAY_S = INTERVAL_UNITS["DAY"]

_FORMS: dict[str, Callable[[Forms], Expression]] = {
    "ARRAY_CONTAINS": Forms.array_contains,
    "CASE": Forms.case,
    "CAST": Forms.cast,
    "DATE": Forms.date,
    "DATEADD": Forms.date_add,
    "DATE_ADD": Forms.date_add,
    "DATE_SUB": Forms.date_add,
    "TO_DATE": Forms.date,
    "ELEMENT_AT": Forms.element_at,
    "EQUAL_NULL": Forms.equal_null,
    "TRY_CAST": Forms.cast,
    "TRY_ELEMENT_AT": Forms.element_at,
}
