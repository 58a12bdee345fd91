"""The connections of tasks that follow the log: they end together, and strangers can do nothing."""

from __future__ import annotations

import errno
import queue
import socket
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from fieldfare.runtimes.spark import follower_hub
from fieldfare.runtimes.spark.follower_hub import FollowerHub, link_to

DEADLINE_S = 90.0
LOOPBACK = "127.0.0.1"

Wanted = queue.Queue[int]


@pytest.fixture
def wanted() -> Wanted:
    return queue.Queue()


@pytest.fixture
def hub(wanted: Wanted) -> Iterator[FollowerHub]:
    hub = FollowerHub(LOOPBACK, LOOPBACK, 0, wanted.put)
    yield hub
    hub.close()


def wait_for(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def known(hub: FollowerHub) -> int:
    """The number of tasks that have named the token."""
    with hub._lock:
        return sum(each.is_known for each in hub._connections.values())


def test_all_tasks_end_when_one_is_behind_and_later_ones_go_on(hub: FollowerHub) -> None:
    early = hub.address
    links = [link_to(early) for _ in range(3)]
    wait_for(lambda: known(hub) == 3)
    assert all(each.goes_on() for each in links)
    links[1].say_behind()
    for each in links:
        wait_for(lambda each=each: not each.goes_on())
    late = link_to(early)  # of a job that was started before
    wait_for(lambda: not late.goes_on())
    later = link_to(hub.address)
    wait_for(lambda: known(hub) == 1)
    assert later.goes_on()
    for each in (*links, late, later):
        each.close()
    wait_for(lambda: known(hub) == 0)


def test_copies_of_a_task_end_with_it(hub: FollowerHub) -> None:
    """Spark would kill their processes, after two seconds."""
    first, copy, other = (link_to(hub.address, lane) for lane in ("4.0", "4.0", "4.1"))
    wait_for(lambda: known(hub) == 3)
    first.say_over()
    wait_for(lambda: not copy.goes_on())
    assert other.goes_on()


def test_a_copy_goes_on_when_the_first_task_is_killed(hub: FollowerHub) -> None:
    first, copy = (link_to(hub.address, "4.0") for _ in range(2))
    wait_for(lambda: known(hub) == 2)
    first.close()
    wait_for(lambda: known(hub) == 1)
    assert copy.goes_on()


def test_the_index_is_asked_for(hub: FollowerHub, wanted: Wanted) -> None:
    link = link_to(hub.address)
    for stamp in (7, 1 << 60):
        link.want_index(stamp)
        assert wanted.get(timeout=DEADLINE_S) == stamp


def test_a_task_ends_when_its_driver_does(hub: FollowerHub) -> None:
    link = link_to(hub.address)
    wait_for(lambda: known(hub) == 1)
    hub.close()
    wait_for(lambda: not link.goes_on())
    link.say_behind()
    link.want_index(1)
    late = link_to(hub.address)
    assert not late.is_open
    late.say_behind()
    assert late.goes_on(), "it does what it was told before"
    hub.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_a_driver_has_any_address(wanted: Wanted, host: str) -> None:
    try:
        hub = FollowerHub(host, host, 0, wanted.put)
    except OSError:
        pytest.skip(f"{host} is no address of this machine")
    link = link_to(hub.address)
    wait_for(lambda: known(hub) == 1)
    assert link.is_open
    hub.close()


@pytest.mark.parametrize(
    "said", [b"behind\n", b"0" * 32 + b"\nbehind\n", b"x" * 1_000, b"\n", b"\xff\n", b"want 3\n"]
)
def test_a_stranger_ends_no_task_and_wants_no_index(hub: FollowerHub, wanted: Wanted, said: bytes) -> None:
    link = link_to(hub.address)
    wait_for(lambda: known(hub) == 1)
    with socket.create_connection((LOOPBACK, hub.address.port), DEADLINE_S) as stranger:
        stranger.settimeout(DEADLINE_S)
        stranger.sendall(said)
        try:
            assert stranger.recv(10) == b""
        except ConnectionResetError:
            """It was closed before all of it was read."""
    assert known(hub) == 1
    assert link.goes_on()
    assert wanted.empty()


def test_what_a_task_says_that_is_not_understood_is_passed_over(hub: FollowerHub, wanted: Wanted) -> None:
    link = link_to(hub.address)
    for line in ("want x", "want ", "", "more", "want 9"):
        link.say(line)
    assert wanted.get(timeout=DEADLINE_S) == 9
    assert link.goes_on()


def test_silent_strangers_are_dropped(hub: FollowerHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold open files of the driver."""
    monkeypatch.setattr(follower_hub, "STRANGERS_MAX", 5)
    link = link_to(hub.address)
    wait_for(lambda: known(hub) == 1)
    strangers = [socket.create_connection((LOOPBACK, hub.address.port), DEADLINE_S) for _ in range(20)]
    for each in strangers[:15]:
        each.settimeout(DEADLINE_S)
        assert each.recv(1) == b""
    assert link.goes_on()
    monkeypatch.setattr(follower_hub, "CONNECT_S", 0.0)
    with socket.create_connection((LOOPBACK, hub.address.port), DEADLINE_S):
        for each in strangers[15:]:
            each.settimeout(DEADLINE_S)
            assert each.recv(1) == b""
    assert link.goes_on()
    for each in strangers:
        each.close()


def test_a_hub_without_file_descriptors_looks_only_now_and_then(
    hub: FollowerHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection goes on waiting, so that the next look finds it at once."""
    real, looks_s = socket.socket.accept, list[float]()

    def accept(listener: socket.socket) -> tuple[socket.socket, object]:
        looks_s.append(time.monotonic())
        if len(looks_s) <= 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(listener)

    monkeypatch.setattr(socket.socket, "accept", accept)
    link = link_to(hub.address)
    wait_for(lambda: known(hub) == 1)
    assert len(looks_s) == 4
    assert all(after - before >= follower_hub.ACCEPT_PAUSE_S for before, after in pairwise(looks_s))
    link.close()


def test_a_task_reports_its_load_and_impossible_figures_are_passed_over() -> None:
    """A load that is not a number stopped all decisions for half a minute; a huge one added hosts."""
    took: queue.Queue[tuple[float, float]] = queue.Queue()
    hub = FollowerHub(LOOPBACK, LOOPBACK, 0, lambda _: None, lambda *given: took.put(given))
    link = link_to(hub.address)
    for figures in ("much 1", "nan 1", "1 nan", "inf 1", "1 inf", "-3 1", "0.5 -1", "0.5 0", "0.5", ""):
        link.say(f"took {figures}")
    link.say_took(0.25, 1.5)
    link.say_took(1e9, 1.5)
    assert [took.get(timeout=DEADLINE_S) for _ in range(2)] == [(0.25, 1.5), (1.5, 1.5)]
    assert link.goes_on()
    link.close()
    hub.close()
