"""What a filter costs whoever matches with it, as one number: what quotas count.

It is 1 for each predicate that the index holds of it, with one more for every two further values of a list. A
filter that the index cannot decide is evaluated for its candidates: that is 1 more for each of its parts, 16
times as many for what stands inside of ``ANY`` or ``ALL``; and 16 times as many again where every event is a
candidate.
"""

from __future__ import annotations

from fieldfare.filters.expression import Expression, Quantified, parts_of
from fieldfare.filters.normal_form import NormalForm

LOOP, EVERY_EVENT = 16, 16


def cost_of(expression: Expression, form: NormalForm) -> int:
    """The cost of a filter from what it says, and what the index holds of it; at least 1."""
    cost = 0
    for conjunction in form.conjunctions:
        cost += len(conjunction.needles)
        for _, values in conjunction.constraints:
            cost += 1 + max(0, len(values.numbers.cuts) + len(values.strings.cuts) - 2) // 4
    if not all(conjunction.exact for conjunction in form.conjunctions):
        narrows = all(each.constraints or each.needles or each.exact for each in form.conjunctions)
        cost += _parts(expression) * (1 if narrows else EVERY_EVENT)
    return max(1, cost)


def _parts(expression: Expression) -> int:
    found, waiting = 0, [(expression, 1)]
    while waiting:
        part, weight = waiting.pop()
        found += weight
        inside = weight * LOOP if isinstance(part, Quantified) else weight
        waiting += [(each, inside) for each in parts_of(part)]
    return found
