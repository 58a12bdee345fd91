"""The thread that grows and shrinks a service, without Spark: what it writes down and what it is asked."""

from __future__ import annotations

import errno
from heapq import heappush
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from fieldfare.elasticity.bounds import HostSchedule
from fieldfare.elasticity.manager import KeepConfiguration
from fieldfare.elasticity.messages import MigrationRequest, Pulse, SliceMove
from fieldfare.runtimes.spark.elastic import record as records
from fieldfare.runtimes.spark.elastic.control import ElasticControl, ElasticSettings
from fieldfare.runtimes.spark.elastic.record import ElasticRecord, take_wish, wish
from fieldfare.storage.folder import DataFolder


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    folder = DataFolder(tmp_path / "data")
    folder.make()
    return folder


def begun(folder: DataFolder) -> ElasticControl:
    """One that has kept its first configuration, of three slices on two hosts."""
    session = MagicMock()
    session.sparkContext.master = "spark://127.0.0.1:7077"
    control = ElasticControl(session, folder, ElasticSettings(HostSchedule.parsed("2..4")), 3)
    control._carry_out("manager", control._manager.start(0.0))
    settle(control)
    return control


def settle(control: ElasticControl) -> None:
    """Hand in what waits."""
    while not control._inbox.empty():
        control._hand_in(*control._inbox.get())


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(records, "write_file", refuse)


def test_what_a_full_disk_does_not_take_was_not_decided(folder: DataFolder, monkeypatch) -> None:
    """It was shown as done, and would have been written down as such later."""
    control = begun(folder)
    kept = control._record.configuration
    assert kept is not None and ElasticRecord.read(folder.elastic).configuration == kept
    with monkeypatch.context() as full:
        fill_disk(full)
        with pytest.raises(OSError, match="No space"):
            control._asked_for(MigrationRequest((SliceMove("M:1", "host2"),), 0, (), "by hand"))
        with pytest.raises(OSError, match="No space"):
            control._do(KeepConfiguration(kept.changed(moves=(SliceMove("M:1", "host2"),))))
    assert (control._record.decisions, control._record.configuration) == ([], kept)
    assert control._inbox.empty()
    control._asked_for(MigrationRequest((SliceMove("M:2", "host1"),), 0, (), "again"))
    assert [each.reason for each in ElasticRecord.read(folder.elastic).decisions] == ["again"]


def test_a_record_that_no_manager_kept_is_begun_anew(folder: DataFolder, caplog) -> None:
    """Hosts that are gone: slices were placed there for ever, and nothing more was decided."""
    control = begun(folder)
    text = folder.elastic.read_text()
    folder.elastic.write_text(text.replace('"hosts":["host1","host2"]', '"hosts":["host7"]'))
    control = begun(folder)
    assert "hosts and slices are placed anew" in caplog.text
    kept = ElasticRecord.read(folder.elastic).configuration
    assert kept == control._manager.configuration
    assert kept.hosts == ("host1", "host2")


def test_a_machine_that_fails_at_its_pulse_has_another(folder: DataFolder, monkeypatch) -> None:
    control = begun(folder)
    control._timers.clear()
    with monkeypatch.context() as broken:
        broken.setattr(control._hosts, "_beat", lambda now: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            control._hand_in("hosts", Pulse())
    assert [(name, message) for _, _, name, message in control._timers] == [("hosts", Pulse())]
    control._hand_in("hosts", Pulse())
    assert len(control._timers) == 2


def test_a_wish_waits_for_what_is_on_its_way_to_the_manager(folder: DataFolder) -> None:
    """The manager takes one request at a time: this one was noted as done, and was not."""
    control = begun(folder)
    wish(folder, SliceMove("M:1", "host2"))
    control._inbox.put(("hosts", Pulse()))
    control._asked_for(MigrationRequest((SliceMove("M:2", "host1"),), 0, (), "local: too much"))
    control._step()
    assert [each.reason for each in control._record.decisions] == ["local: too much"]
    assert take_wish(folder) == SliceMove("M:1", "host2")


def test_a_wish_is_taken_though_the_machines_have_a_pulse_each_second(folder: DataFolder) -> None:
    """It was looked for in the moment of the pulses only, and with each of them something is on its way."""
    control = begun(folder)
    wish(folder, SliceMove("M:1", "host2"))
    control._said_s = float("-inf")
    for name in control._machines:
        heappush(control._timers, (0.0, next(control._ticks), name, Pulse()))
    control._step()
    assert [each.reason for each in control._record.decisions] == ["by hand"]
