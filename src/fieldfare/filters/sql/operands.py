"""The operands of a filter: literals, attributes, elements, functions, arithmetic."""

from __future__ import annotations

from decimal import Decimal

from fieldfare.filters.expression import (
    Arithmetic,
    Attribute,
    Call,
    Element,
    Exists,
    Expression,
    Literal,
    Negate,
)
from fieldfare.filters.functions import FUNCTIONS, Function, Parameter, Type
from fieldfare.filters.functions.table import MAX_OPERANDS
from fieldfare.filters.sql import cursor, mistakes
from fieldfare.filters.sql.cursor import COMPUTED_SIZE, TokenCursor
from fieldfare.filters.sql.literals import INTERVAL_UNITS, interval, number
from fieldfare.filters.sql.mistakes import shortened, shown
from fieldfare.filters.sql.paths import read_from_end, read_path, unquoted
from fieldfare.filters.sql.types import SHOWN, arithmetic_type, as_timestamp, literal_type

ALIASES = {
    "ARRAY_SIZE": "CARDINALITY",
    "CEILING": "CEIL",
    "CHARACTER_LENGTH": "LENGTH",
    "CHAR_LENGTH": "LENGTH",
    "DATE_DIFF": "DATEDIFF",
    "DOUBLE": "NUMBER",
    "ENDSWITH": "ENDS_WITH",
    "FLOAT": "NUMBER",
    "IFNULL": "COALESCE",
    "LCASE": "LOWER",
    "LEN": "LENGTH",
    "NVL": "COALESCE",
    "SIZE": "CARDINALITY",
    "STARTSWITH": "STARTS_WITH",
    "SUBSTR": "SUBSTRING",
    "TO_DATE": "DATE",
    "TO_TIMESTAMP": "TIMESTAMP",
    "TRY_ELEMENT_AT": "ELEMENT_AT",
    "UCASE": "UPPER",
}
"""Other names that SQL has for a function."""

_SEPARATORS = {"POSITION": ("IN",), "SUBSTRING": ("FROM", "FOR")}
"""Words that may stand in the place of the first comma, the second and so on."""

_AFTER_A_NAME = frozenset(
    "= <> <=> < <= > >= + - * / % || , ) IS IN LIKE ILIKE BETWEEN NOT AND OR end".split()  # noqa: SIM905
)
_AFTER_SELECT = frozenset("path quoted number string * (".split())  # noqa: SIM905
_CONSTANTS = {"TRUE": Literal(True), "FALSE": Literal(False), "NULL": Literal(None)}
_TYPED_LITERALS = ("TIMESTAMP", "DATE", "TIME", "INTERVAL")
AFTER_A_WORD = frozenset(("string", "number", "path", "quoted", "EXISTS", "TRUE", "FALSE", "NULL"))
"""What cannot follow a name, so that the word before it is none."""
CASE_WORDS = frozenset(("WHEN", "THEN", "ELSE", "END"))


class Operands(TokenCursor):
    """Reads what conditions are made of."""

    names: dict[str, Attribute]
    """Attributes that were read before, outside of quantifiers."""

    def operand(self) -> Expression:
        """A literal, an attribute, a function, a parenthesis, or minus one of these."""
        kind, index = self.kind, self.index
        self.height = 1
        if kind == "path":
            self.type = Type.ANY
            following = self.kinds[index + 1]
            if self.open_cases and self.word() in CASE_WORDS:
                raise mistakes.word_of_case(self.token())
            if following in _AFTER_A_NAME and not self.variables:
                found = self.names.get(self.texts[index])
                if found is not None:
                    self.index = index + 1
                    self.kind = following
                    return found
            elif following == "(":
                return self.call()
            elif following in AFTER_A_WORD and (found_form := self.word_form(following)) is not None:
                return found_form
            return self.named()
        if kind == "number":
            self.type = Type.NUMBER
            self.advance()
            return Literal(number(self.tokens, index))
        if kind == "string":
            self.type = Type.STRING
            self.advance()
            return Literal(unquoted(self.texts[index]))
        if kind == "(":
            return self.parenthesis()
        if kind == "quoted":
            return self.named()
        return self.rarer_operand(kind)

    def word_form(self, following: str) -> Expression | None:
        """``CASE WHEN``, ``DATE '2026-01-31'``: a word before what cannot follow a name; None for others."""
        word = self.word()
        if word in _TYPED_LITERALS and (
            following == "string" or (following == "number" and word == "INTERVAL")
        ):
            return self.typed_literal()
        return self.form(word) if word == "CASE" else None

    def rarer_operand(self, kind: str) -> Expression:
        if kind in _CONSTANTS:
            literal = _CONSTANTS[kind]
            self.type = literal_type(literal.value)
            self.advance()
            return literal
        if kind in ("-", "+"):
            return self.sign()
        if kind == "EXISTS":
            return self.exists()
        if kind == "UNKNOWN":
            raise self.mistake(self.index, "UNKNOWN stands only after IS", "write NULL for no value")
        raise mistakes.missing_operand(self.tokens, self.index, inside=self.open_parentheses > 0)

    def parenthesis(self) -> Expression:
        opening = self.index
        self.open()
        self.enter(opening)
        self.refuse_subquery()
        inner = self.disjunction()
        self.nesting -= 1
        self.close(opening)
        return inner

    def refuse_subquery(self) -> None:
        """Refuse a SELECT after a parenthesis; the name of an attribute has an operator after it."""
        if self.kind == "path" and self.word() == "SELECT" and self.kinds[self.index + 1] in _AFTER_SELECT:
            raise self.mistake(self.index, "there are no subqueries", mistakes.NO_SUBQUERY)

    def sign(self) -> Expression:
        sign = self.index
        minus = self.kind == "-"
        self.advance()
        if self.kind == "number":
            value = number(self.tokens, self.index)
            self.advance()
            self.type = Type.NUMBER
            return Literal(_negative(value) if minus else value)
        self.enter(sign)
        start = self.index
        operand = self.expression(cursor.NEGATE)
        self.nesting -= 1
        if self.type is Type.ANY:
            self.type = Type.NUMBER
        elif self.type not in (Type.NUMBER, Type.INTERVAL):
            raise self.not_numbers(start)
        if not minus:
            raise self.mistake(sign, "unexpected '+'", "a + before a name is not needed")
        self.count(COMPUTED_SIZE, sign)
        self.grow(self.height, sign)
        return Negate(operand)

    def name(self) -> Attribute | Element:
        """An attribute, or the element of a quantifier around here."""
        first = self.index
        path, self.index = read_path(self.tokens, first)
        self.kind = self.kinds[self.index]
        self.type = Type.ANY
        if path[0] in self.variables:
            return Element(str(path[0]), path[1:])
        attribute = Attribute(path)
        if self.index == first + 1 and self.kinds[first] == "path":
            name = self.texts[first]
            if not self.variables:
                self.names[name] = attribute
            hint = mistakes.MISTAKEN_NAMES.get(name.lower())
            if hint is not None:
                message = f"{shortened(name)} is the name of an attribute here, and no constant"
                self.warn(first, message, f'{hint} (or write ("{name}") if you mean the attribute)')
        return attribute

    def named(self) -> Expression:
        """An attribute or a part of an element, or what is counted from the end of one."""
        start = self.index
        found: Expression = self.name()
        while self.kind == "[":  # a name ends only before an element that is counted from the end
            place, steps, self.index = read_from_end(self.tokens, self.index)
            self.kind = self.kinds[self.index]
            for key in (place, *(step + 1 if isinstance(step, int) else step for step in steps)):
                self.count(COMPUTED_SIZE + 2, start)
                self.grow(self.height, start)
                found = Call("ELEMENT_AT", (found, Literal(key)))
        return found

    def exists(self) -> Expression:
        self.advance()
        opening = self.index
        with_parentheses = self.kind == "("
        if with_parentheses:
            self.open()
            self.refuse_subquery()
        operand = self.name()
        if with_parentheses:
            if self.kind not in (")", "end"):
                message = f"EXISTS takes the name of an attribute, found {shown(self.token())} after it"
                hint = mistakes.EACH if self.kind == "," else "write IS NOT NULL to test a value"
                raise self.mistake(self.index, message, hint)
            self.close(opening)
        self.type = Type.BOOLEAN
        return Exists(operand)

    def typed_literal(self) -> Expression:
        """``TIMESTAMP '2026-01-31T12:00:00Z'``, ``INTERVAL '5' MINUTE``."""
        word, text = self.word(), self.index + 1
        value = unquoted(self.texts[text]) if self.kinds[text] == "string" else self.texts[text]
        self.advance()
        self.advance()
        self.count(COMPUTED_SIZE, text)
        if word == "INTERVAL":
            unit = self.word() if self.kind == "path" and self.word() in INTERVAL_UNITS else ""
            if unit:
                self.advance()
            self.type = Type.INTERVAL
            self.height = 2
            return Call("INTERVAL", (Literal(interval(value, unit, self.tokens, text, self.index)),))
        if word == "DATE":
            value, word = f"{value}T00:00:00Z", "TIMESTAMP"
            if FUNCTIONS[word].parameters[0].check(value):  # type: ignore[misc]
                hint = "write one as DATE '2026-01-31'; it means the midnight in UTC"
                raise self.mistake(text, "this is no date", hint)
        function = FUNCTIONS[word]
        operand = Literal(value)
        self.type = Type.STRING
        self.check_operand(function, function.parameters[0], operand, text)
        self.type = function.result
        self.height = 2
        return Call(word, (operand,))

    def call(self) -> Expression:
        """``LOWER(type)``: operands as many and of such types as the function wants."""
        start = self.index
        name = self.word()
        form = self.form(name)
        if form is not None:
            return form
        function = FUNCTIONS.get(ALIASES.get(name, name))
        if function is None:
            raise mistakes.unknown_function(self.token())
        return self.call_of(function, start)

    def call_of(self, function: Function, start: int) -> Expression:
        self.count(COMPUTED_SIZE, start)
        words = _SEPARATORS.get(function.name, ())
        self.advance()
        self.open()
        self.enter(start)
        operands: list[Expression] = []
        types: list[Type] = []
        height = 0
        while self.kind != ")":
            first = self.index
            operand = self.expression(cursor.ADD)
            height = max(height, self.height)
            if len(operands) < function.most_operands:
                operand = self.check_operand(function, function.parameter(len(operands)), operand, first)
            types.append(self.type)
            operands.append(operand)
            if self.kind != "," and self.word() not in words[len(operands) - 1 : len(operands)]:
                break
            self.advance()
            if self.kind == ")":
                raise mistakes.missing_operand(self.tokens, self.index, inside=True)
        self.nesting -= 1
        if self.kind not in (")", "end"):
            hint = f"write {function.signature}"
            raise self.mistake(self.index, f"expected , or ), found {shown(self.token())}", hint)
        self.close(start + 1)
        return self.checked_call(function, operands, types, start, height)

    def checked_call(
        self, function: Function, operands: list[Expression], types: list[Type], start: int, height: int
    ) -> Expression:
        least, most = function.least_operands, function.most_operands
        if not least <= len(operands) <= most:
            count = (
                str(most)
                if least == most
                else f"{least} or {most}"
                if most == least + 1
                else f"{least} to {most}"
            )
            message = (
                f"{function.name} takes {count} value{'' if count == '1' else 's'}, found {len(operands)}"
            )
            hint = mistakes.ARITIES.get(function.name, f"write {function.signature}")
            raise self.mistake(start, message, hint)
        problem = function.check(tuple(operands)) if function.check else ""
        if problem:
            raise self.mistake_over(start, self.index, problem, f"write {function.signature}")
        self.type = function.result
        if function.result is Type.ANY:
            operands, self.type = self.one_type(function, operands, types, start)
        self.grow(height + (self.height > height), start)
        return Call(function.name, tuple(operands))

    def check_operand(
        self, function: Function, parameter: Parameter, operand: Expression, start: int
    ) -> Expression:
        """An operand as the function takes it; or a mistake if it never can."""
        wanted, found = parameter.type, self.type
        if parameter.literal and not isinstance(operand, Literal):
            message = f"the {parameter.name} of {function.name} is a literal, not computed"
            raise self.mistake_over(start, self.index, message)
        if wanted is Type.ANY:
            if parameter.no_time and found in (Type.TIMESTAMP, Type.INTERVAL):
                message = f"{function.name} takes no {found.value}"
                raise self.mistake_over(start, self.index, message, mistakes.NO_TIME[found])
            return operand
        if wanted is Type.TIMESTAMP and found is Type.ANY:
            self.height += 1
            return as_timestamp(operand)
        if found is not Type.ANY and found is not wanted:
            hint = mistakes.conversion_hint(wanted, operand)
            message = f"{function.name} needs {SHOWN[wanted]}, this is {SHOWN[found]}"
            raise self.mistake_over(start, self.index, message, hint)
        if parameter.check and isinstance(operand, Literal) and operand.value is not None:
            message, _, hint = parameter.check(operand.value).partition("; ")
            if message:
                raise self.mistake_over(start, self.index, message, hint)
        return operand

    def one_type(
        self, function: Function, operands: list[Expression], types: list[Type], start: int
    ) -> tuple[list[Expression], Type]:
        """For a function that gives back an operand: these as one type, if there is a time among them."""
        known = set(types) - {Type.ANY}
        if not known & {Type.TIMESTAMP, Type.INTERVAL}:
            return operands, known.pop() if len(known) == 1 and Type.ANY not in types else Type.ANY
        if len(known) > 1:
            kinds = " and ".join(sorted(SHOWN[kind] for kind in known))
            raise self.mistake_over(
                start, self.index, f"the values of {function.name} are of one type, not {kinds}"
            )
        (only,) = known
        if only is Type.TIMESTAMP:
            operands = [
                as_timestamp(e) if found is Type.ANY else e for e, found in zip(operands, types, strict=True)
            ]
        return operands, only

    def arithmetic(self, left: Expression, start: int, level: int) -> Expression:
        operator, place = self.kind, self.index
        if operator == "||":
            return self.concatenation(left, start)
        height, left_type = self.height, self.type
        if left_type in (Type.STRING, Type.BOOLEAN):
            raise self.not_numbers(start)
        self.advance()
        right_start = self.index
        right = self.expression(level + 1)
        if self.type in (Type.STRING, Type.BOOLEAN):
            raise self.not_numbers(right_start)
        found = arithmetic_type(left_type, operator, self.type)
        if found is None:
            message = f"there is no result of {left_type.value} {operator} {self.type.value}"
            raise self.mistake_over(start, self.index, message, mistakes.time_hint(left_type, self.type))
        if found[0] is Type.TIMESTAMP and left_type is Type.ANY:
            left = as_timestamp(left)
            height += 1
        if found[1] is Type.TIMESTAMP and self.type is Type.ANY:
            right = as_timestamp(right)
            self.height += 1
        self.type = found[2]
        self.count(COMPUTED_SIZE, place)
        self.grow(max(height, self.height), start)
        return Arithmetic(operator, left, right)

    def concatenation(self, left: Expression, start: int) -> Expression:
        """``a || b || c``: one CONCAT."""
        operands, height = [left], self.height
        first = start
        while True:
            if self.type not in (Type.STRING, Type.ANY):
                message = f"|| joins strings, this is {SHOWN[self.type]}"
                raise self.mistake_over(first, self.index, message, "write OR to join conditions")
            if self.kind != "||":
                break
            self.advance()
            first = self.index
            operands.append(self.expression(cursor.MULTIPLY))
            height = max(height, self.height)
        if len(operands) > MAX_OPERANDS:
            raise self.mistake(start, f"at most {MAX_OPERANDS} strings can be joined")
        self.type = Type.STRING
        self.count(COMPUTED_SIZE, start)
        self.grow(height, start)
        return Call("CONCAT", tuple(operands))

    def not_numbers(self, start: int) -> Exception:
        hint = mistakes.joining_hint(self.type)
        return self.mistake_over(
            start, self.index, f"arithmetic needs numbers, this is {SHOWN[self.type]}", hint
        )


def _negative(value: int | Decimal) -> int | Decimal:
    return value.copy_negate() if isinstance(value, Decimal) else -value
