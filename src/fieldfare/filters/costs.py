"""The cost of matching a filter, as one number that quotas count.

* Each predicate in the index costs 1, plus 1 for every two further values of a list.
* A filter that the index cannot decide is evaluated for its candidates. Each of its parts costs 1 more, a
  part inside ``ANY`` or ``ALL`` 16 times as much. If every event is a candidate, all parts cost 16 times as
  much.
* The cost is at most ``COST_MAX``: nested quantifiers multiply.
"""

from __future__ import annotations

from fieldfare.filters.expression import Expression, Quantified, parts_of
from fieldfare.filters.normal_form import NormalForm
from fieldfare.model import COST_MAX

LOOP, EVERY_EVENT = 16, 16


def cost_of(expression: Expression, form: NormalForm) -> int:
    """Return the cost of a filter, computed from its expression and its normal form: 1 to ``COST_MAX``."""
    cost = 0
    for conjunction in form.conjunctions:
        cost += len(conjunction.needles)
        for _, values in conjunction.constraints:
            cost += 1 + max(0, len(values.numbers.cuts) + len(values.strings.cuts) - 2) // 4
    if not all(conjunction.exact for conjunction in form.conjunctions):
        narrows = all(each.constraints or each.needles or each.exact for each in form.conjunctions)
        cost += _parts(expression) * (1 if narrows else EVERY_EVENT)
    return min(max(1, cost), COST_MAX)


def _parts(expression: Expression) -> int:
    found, waiting = 0, [(expression, 1)]
    while waiting:
        part, weight = waiting.pop()
        found += weight
        inside = min(weight * LOOP, COST_MAX) if isinstance(part, Quantified) else weight
        waiting += [(each, inside) for each in parts_of(part)]
    return found
