"""Barazzutti et al. 2014 (E-StreamHub), section III: the three operators."""

from __future__ import annotations

from fieldfare.elasticity.operators import Operators
from fieldfare_lab.elasticity.operators import (
    AccessPoint,
    ExitPoint,
    Matching,
    MatchList,
    Notification,
    Publication,
    Registration,
    operator_of,
)

OPERATORS = Operators(2, {"plain": 3, "aspe": 2}, 2)


class Equal:
    """A library of filters that are equal to the event or not."""

    def __init__(self) -> None:
        self.stored: dict[int, object] = {}

    def store(self, number: int, filter_: object) -> None:
        self.stored[number] = filter_

    def matching(self, event: object) -> tuple[int, ...]:
        return tuple(number for number, stored in self.stored.items() if stored == event)


def test_a_subscription_goes_to_one_slice_by_its_number_modulo() -> None:
    access = AccessPoint(OPERATORS)
    targets = [access.process(Registration(number, "plain", "x"))[0][0] for number in range(7)]
    assert targets == [f"plain:{number % 3 + 1}" for number in range(7)]


def test_a_publication_goes_to_all_slices_of_its_scheme_and_to_no_other() -> None:
    """There may be several matching operators, one for each filtering scheme."""
    targets = [target for target, _ in AccessPoint(OPERATORS).process(Publication(5, "aspe", "x"))]
    assert targets == ["aspe:1", "aspe:2"]


def test_access_points_have_no_state() -> None:
    access = AccessPoint(OPERATORS)
    access.process(Registration(1, "plain", "x"))
    assert access.state() is None


def test_each_slice_has_a_library_of_its_own_and_sees_only_its_own_state() -> None:
    one, two = (Matching(f"plain:{i}", OPERATORS, Equal) for i in (1, 2))
    one.process(Registration(3, "plain", "x"))
    (found,) = one.process(Publication(8, "plain", "x"))
    assert found == ("EP:1", MatchList(8, "plain", "plain:1", (3,)))
    (found,) = two.process(Publication(8, "plain", "x"))
    assert found == ("EP:1", MatchList(8, "plain", "plain:2", ()))


def test_all_lists_of_a_publication_reach_the_same_exit_point() -> None:
    targets = {
        Matching(f"plain:{i}", OPERATORS, Equal).process(Publication(9, "plain", "x"))[0][0]
        for i in (1, 2, 3)
    }
    assert targets == {"EP:2"}


def test_an_exit_point_waits_for_all_matchers_and_then_notifies() -> None:
    """How many it waits for is in the static configuration (section IV.B)."""
    exit_point = ExitPoint(OPERATORS)
    assert exit_point.process(MatchList(9, "plain", "plain:3", (7,))) == []
    assert exit_point.process(MatchList(9, "plain", "plain:1", (2,))) == []
    assert exit_point.process(MatchList(4, "aspe", "aspe:1", ())) == []
    done = exit_point.process(MatchList(9, "plain", "plain:2", (5,)))
    assert done == [("sink", Notification(9, (2, 5, 7)))]
    assert list(exit_point.state()) == [4]  # it is transient and small: what is under way (section IV.A)


def test_a_slices_state_is_all_that_another_needs() -> None:
    """Static partitioning of the state: moved, it is the same slice (section IV)."""
    one = operator_of("plain:1", OPERATORS, lambda scheme: Equal())
    one.process(Registration(3, "plain", "x"))
    two = operator_of("plain:1", OPERATORS, lambda scheme: Equal())
    two.restore(one.state())
    publication = Publication(8, "plain", "x")
    assert two.process(publication) == one.process(publication)
    assert two.state() == one.state()
