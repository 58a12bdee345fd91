"""Random CESQL expressions, as the trees of ``naive`` and as texts, and events in which they have values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = ["type", "a", "b", "n1", "data"]
INTEGERS = [-2147483648, -2147483647, -5, -1, 0, 1, 2, 5, 7, 10, 65536, 2147483647]
STRINGS = [
    *(
        "",
        "a",
        "ab",
        "abc",
        "a%b",
        "a_b",
        "a\\b",
        "\\%",
        "it's",
        'say "a"',
        " a ",
        "\ta\x85",
        "é",
        "ß",
        "a\nb",
    ),
    *("5", "-1", "+7", "007", "0", "-0", "2147483648", "-2147483648", "1.5", "10000000000", "5 ", "٥"),
    *("true", "TRUE", "False", "Infinity", "-Infinity", "null"),
]
PATTERNS = [
    *("%", "", "a%", "%a", "%a%", "_", "a_b", "a\\_b", "a\\%b", "\\%", "\\\\%", "a\\b", "5%", "%5", "-%"),
    *("tr%", "%e", "1.5", "%.%", "__", "_%_", "a%b%b", "%a_%", "Inf%"),
]
ODD_NUMBERS = [
    1.5,
    -0.5,
    5.0,
    -0.0,
    1e10,
    1e22,
    5e-7,
    2**31,
    -(2**31) - 1,
    10**30,
    10**999,
    10**1000,
    -(10**1000),
]

VALUES = [*STRINGS, *INTEGERS, True, False, *ODD_NUMBERS, None, [], [1], {}]
"""Values that an attribute may have in JSON."""

UNWRITABLE = [float("inf"), float("-inf"), float("nan")]
"""Values that an attribute may have in a Python event, but not in JSON."""


def _events(values: list[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of events with most attributes."""
    simple = st.sampled_from(["a", "ab", "5", "true", 0, 1, 5, 7, -1, True, False, 1.5])
    value = st.one_of(simple, simple, st.sampled_from(values))
    missing = st.dictionaries(st.sampled_from(NAMES), st.just(None), max_size=2)
    return st.builds(
        lambda event, gone: {name: value for name, value in event.items() if name not in gone},
        st.fixed_dictionaries(dict.fromkeys(NAMES, value)),
        missing,
    )


json_events = _events(VALUES)
events = _events([*VALUES, *UNWRITABLE])

literals = st.one_of(
    st.sampled_from([("string", "a"), ("string", "5"), ("integer", 1), ("integer", 5), ("boolean", True)]),
    st.tuples(st.just("string"), st.sampled_from(STRINGS)),
    st.tuples(st.just("integer"), st.sampled_from(INTEGERS)),
    st.tuples(st.just("boolean"), st.booleans()),
)
attributes = st.tuples(
    st.just("attribute"), st.sampled_from(["type", "a", "a", "b", "b", "n1", "n1", "data"])
)
atoms = st.one_of(
    literals,
    attributes,
    attributes,
    st.tuples(st.just("exists"), st.sampled_from([*NAMES, "id"])),
)

OPERATORS = {
    **dict.fromkeys(("*", "/", "%"), 3),
    **dict.fromkeys(("+", "-"), 2),
    **dict.fromkeys(("=", "!=", "<>", "<", "<=", ">", ">="), 1),
    **dict.fromkeys(("AND", "OR", "XOR"), 0),
}
CALLS = {
    **dict.fromkeys(("LENGTH", "LOWER", "UPPER", "TRIM", "ABS", "INT", "BOOL", "STRING"), (1, 1)),
    "CONCAT": (0, 3),
    "CONCAT_WS": (0, 3),
    "LEFT": (2, 2),
    "RIGHT": (2, 2),
    "SUBSTRING": (2, 3),
}


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    operators, logic = st.sampled_from(sorted(OPERATORS)), st.sampled_from(["AND", "OR", "XOR"])
    equality = st.sampled_from(["=", "<>"])
    lists = st.lists(inner, min_size=1, max_size=3)
    calls = st.sampled_from(sorted(CALLS)).flatmap(
        lambda name: st.tuples(
            st.just("call"), st.just(name), st.lists(inner, min_size=CALLS[name][0], max_size=CALLS[name][1])
        )
    )
    return st.one_of(
        st.tuples(st.just("binary"), operators, inner, inner),
        st.tuples(st.just("binary"), logic, inner, inner),
        st.tuples(st.just("binary"), equality, attributes, literals),
        st.tuples(st.just("in"), attributes, st.lists(literals, min_size=1, max_size=3), st.booleans()),
        st.tuples(st.just("in"), inner, lists, st.booleans()),
        st.tuples(st.just("like"), attributes, st.sampled_from(PATTERNS), st.booleans()),
        st.tuples(st.just("like"), inner, st.sampled_from(PATTERNS), st.booleans()),
        st.tuples(st.sampled_from(["not", "minus"]), inner),
        calls,
    )


trees = st.recursive(atoms, _larger, max_leaves=8)

_small = st.tuples(st.just("integer"), st.integers(-9, 9) | st.sampled_from([-2147483648, 2147483647]))
sums = st.recursive(
    _small | st.just(("attribute", "n1")),
    lambda inner: st.one_of(
        st.tuples(st.just("binary"), st.sampled_from(["+", "-", "*", "/", "%", "<", "="]), inner, inner),
        st.tuples(st.just("minus"), inner),
    ),
    max_leaves=8,
)
"""Arithmetic, for printing with few parentheses."""

rows = st.recursive(
    st.tuples(st.just("boolean"), st.booleans())
    | st.tuples(st.just("attribute"), st.sampled_from(["a", "b"])),
    lambda inner: st.one_of(
        st.tuples(st.just("binary"), st.sampled_from(["AND", "OR", "XOR"]), inner, inner),
        st.tuples(st.just("not"), inner),
    ),
    max_leaves=12,
)
"""AND, OR and XOR, for printing with few parentheses."""

_UNARY, _TEST, _ATOM = 5, 4, 6


class Printer:
    """A printer of trees as texts, with the necessary parentheses and some superfluous ones.

    Parameters
    ----------
    choose
        Returns a random number below its argument, to vary the text.
    """

    def __init__(self, choose: Any) -> None:
        self.choose = choose

    def text(self, tree: Any, least: int = 0) -> str:
        written, level = self.written(tree)
        return written if level >= least and self.choose(8) else f"({written})"

    def written(self, tree: Any) -> tuple[str, int]:
        kind, *parts = tree
        if kind == "string":
            return self.string(parts[0]), _ATOM
        if kind == "integer":
            return ("+" if parts[0] >= 0 and self.choose(4) == 0 else "") + str(parts[0]), _ATOM
        if kind in ("boolean", "attribute"):
            return self.cased(str(parts[0])), _ATOM
        if kind == "exists":
            return f"{self.cased('exists')} {self.cased(parts[0])}", _ATOM
        if kind in ("not", "minus"):
            return f"{self.cased('not') if kind == 'not' else '-'} {self.text(parts[0], _UNARY)}", _UNARY
        if kind == "binary":
            operator, x, y = parts
            level = OPERATORS[operator]
            return f"{self.text(x, level)} {self.cased(operator)} {self.text(y, level + 1)}", level
        if kind == "call":
            return f"{self.cased(parts[0])}{self.list(parts[1])}", _ATOM
        negated = self.cased("not ") if parts[2] else ""
        right = self.string(parts[1]) if kind == "like" else self.list(parts[1])
        return f"{self.text(parts[0], _TEST)} {negated}{self.cased(kind)} {right}", _TEST

    def list(self, trees: Any) -> str:
        return "(" + ", ".join(map(self.text, trees)) + ")"

    def string(self, value: str) -> str:
        """Return a string with either quote. A text that ends in a backslash has no literal."""
        quote = "'\""[self.choose(2)]
        return quote + value.replace(quote, "\\" + quote) + quote

    def cased(self, word: str) -> str:
        return [word.lower(), word.upper(), word.title()][self.choose(3)]


@st.composite
def filters(draw: Any, trees: st.SearchStrategy[Any] = trees) -> tuple[Any, str]:
    """Draw a tree and its text."""
    tree = draw(trees)
    return tree, Printer(lambda below: draw(st.integers(0, below - 1))).text(tree)
