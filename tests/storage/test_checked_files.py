"""Small files with a checksum: a flipped bit is restored, other changes are detected, older files are
read."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fieldfare.elasticity import Configuration
from fieldfare.elasticity.operators import Operators
from fieldfare.storage.checked_files import ChangedFileError, read_checked, write_checked
from fieldfare.storage.corruption import corruption_notices
from fieldfare.storage.elastic import ElasticRecord
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.quarantine import UNKNOWN, Quarantine, QuarantinedRecord


class Small(msgspec.Struct, omit_defaults=True):
    text: str = ""
    number: int = 0


@pytest.mark.parametrize("record", [Small(), Small('a "checksum": 5,', 7), Small(',"checksum":1}\n', -1)])
def test_any_flipped_bit_of_a_file_is_put_back(tmp_path: Path, record: Small) -> None:
    path = tmp_path / "x.json"
    write_checked(path, record)
    whole = path.read_bytes()
    assert read_checked(path, Small) == record and msgspec.json.decode(whole, type=Small) == record
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            assert read_checked(path, Small) == record, bit
        except msgspec.DecodeError:  # the name of the checksum itself has changed to one that JSON forbids
            assert b'"checksum":' not in changed
    assert len(corruption_notices(tmp_path)) == 1


def test_a_file_with_more_changes_is_found_and_one_of_an_older_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_checked(path, Small("abc", 1))
    path.write_bytes(path.read_bytes().replace(b"abc", b"xyz"))
    with pytest.raises(ChangedFileError):
        read_checked(path, Small)
    path.write_bytes(b'{"text":"of a checksum","number":5}\n')
    assert read_checked(path, Small) == Small("of a checksum", 5)


@pytest.mark.parametrize(("old", "new"), [(b"birds", b"fishs"), (b'"offset":7', b'"offset":9')])
def test_a_record_set_aside_whose_file_has_changed_is_shown_to_no_other_space(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    """With one changed letter it belonged to another space, whose manager could see it and publish it
    again."""
    quarantine = Quarantine(tmp_path / "quarantine")
    quarantine.add(QuarantinedRecord(7, "birds", 2, "odd", 5))
    [path] = quarantine.folder.glob("*.json")
    path.write_bytes(path.read_bytes().replace(old, new))
    found = quarantine.get(0, 7)
    assert found is not None and found.space == "" and found.error.startswith(UNKNOWN)
    [notice] = corruption_notices(tmp_path)
    assert path.name in notice and "publish the record again" in notice
    quarantine.remove(0, 7)
    assert corruption_notices(tmp_path) == []


def test_an_older_file_of_a_record_set_aside_that_names_another_one_is_not_believed(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path / "quarantine")
    quarantine.folder.mkdir()
    (quarantine.folder / "0000000000000007.json").write_bytes(
        msgspec.json.encode(QuarantinedRecord(8, "a", 1, "", 1))
    )
    found = quarantine.get(0, 7)
    assert found is not None and found.error.startswith(UNKNOWN)


def test_a_changed_record_of_slices_is_set_aside_and_reported(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    record = ElasticRecord(Configuration(Operators(0, {"M": 20}, 0), {}).begun(2))
    record.write(folder.elastic)
    assert ElasticRecord.read_or_new(folder.elastic) == record
    folder.elastic.write_bytes(folder.elastic.read_bytes().replace(b"host2", b"host1"))
    assert ElasticRecord.read_or_new(folder.elastic) == ElasticRecord()
    assert not folder.elastic.exists() and (tmp_path / "elastic.json.damaged-1").exists()
    [notice] = corruption_notices(tmp_path)
    assert "elastic.json.damaged-1" in notice
    record.write(folder.elastic)
    assert ElasticRecord.read_or_new(folder.elastic) == record


def test_a_flipped_bit_of_the_logs_addresses_names_no_other_log(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path, "kafka://one/events", "kafka://one/events.matches", "ab" * 16)
    folder.note()
    whole = folder.addresses.read_bytes()
    folder.addresses.write_bytes(whole.replace(b"one/events.m", b"one/evgnts.m"))
    assert DataFolder.at(tmp_path) == folder
    assert folder.addresses.read_bytes() == whole
    [notice] = corruption_notices(tmp_path)
    assert "logs.json" in notice and "nothing is lost" in notice
