"""Bells between processes: heard at once, by all listeners; and what happens where nothing is heard."""

from __future__ import annotations

import os
import pickle
import threading
import time
from pathlib import Path

import pytest

from fieldfare.storage import bell
from fieldfare.storage.bell import Bell

WAIT_S = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pytest.importorskip("inotify_simple")
    return tmp_path / "folder" / "a.bell"


def test_every_listener_hears_a_ring_of_another_process(path: Path) -> None:
    listeners = [Bell(path).listen() for _ in range(2)]
    assert all(each.hears for each in listeners)
    child = os.fork()
    if not child:
        Bell(path).ring()
        os._exit(0)
    os.waitpid(child, 0)
    for each in listeners:
        assert each.wait(WAIT_S)
        assert each.wait(0.0), "until it is cleared"
        each.clear()
        assert not each.wait(0.0)
        each.close()


def test_a_ring_wakes_who_waits_already(path: Path) -> None:
    listener = Bell(path).listen()
    threading.Timer(0.05, Bell(path).ring).start()
    assert listener.wait(WAIT_S)
    listener.close()


def test_a_listener_is_woken_by_its_own_process(path: Path) -> None:
    listener = Bell(path).listen()
    threading.Timer(0.05, listener.set).start()
    assert listener.wait(WAIT_S)
    listener.clear()
    for _ in range(100_000):  # more than a pipe holds
        listener.set()
    assert listener.wait(0.0)
    listener.close()


def test_where_nothing_is_heard_a_wait_ends_in_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell, "inotify_simple", None)
    listener = Bell(path).listen()
    assert not listener.hears
    Bell(path.with_name("b.bell")).ring()
    began_s = time.monotonic()
    assert not listener.wait(0.02)
    assert time.monotonic() - began_s >= 0.02
    listener.set()
    assert listener.wait(WAIT_S)
    listener.close()


def test_ringing_never_fails(tmp_path: Path) -> None:
    Bell(tmp_path / "not" / "there").ring()
    assert not (tmp_path / "not").exists()


def test_a_bell_can_be_pickled(path: Path) -> None:
    listener = Bell(path).listen()
    ringing = Bell(path)
    ringing.ring()
    listener.clear()
    pickle.loads(pickle.dumps(ringing)).ring()
    assert listener.wait(WAIT_S)
    listener.close()
