"""Times by columns: text to instants and intervals, and the parts of an instant."""

from __future__ import annotations

from fieldfare.matching.evaluation import time_kernels
from fieldfare.matching.evaluation.numbers import fresh, step_of
from fieldfare.matching.evaluation.operands import Compute, filled
from fieldfare.matching.evaluation.view import Values


def instants(size: int, given: Values) -> Values:
    """TIMESTAMP(text)."""
    return _read(size, given, True)


def since_midnight(size: int, given: Values) -> Values:
    """TIME(text)."""
    return _read(size, given, False)


def _read(size: int, given: Values, are_instants: bool) -> Values:
    out = fresh(size)
    time_kernels.read_times(given, are_instants, *out)
    return filled(*out, step=given.step)


def part(number: int) -> Compute:
    """Make a function for a part of an instant (a constant of ``time_kernels``), in the local time of an
    offset."""

    def compute(size: int, given: Values, offset: Values) -> Values:
        out = fresh(size)
        time_kernels.take_parts(number, given, offset, *out)
        return filled(*out, step=step_of(given, offset))

    return compute
