"""Small files and headers that were edited or corrupted: invalid UTF-8 is treated like invalid JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldfare.pipeline.manifest import SpaceManifest
from fieldfare.runtimes.spark.distributed.loads import last_loads
from fieldfare.runtimes.spark.suspects_file import SuspectsFile
from fieldfare.storage.elastic import ElasticLoads, pending_move_request
from fieldfare.storage.errors import FormatError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.kafka.pieces import HEADER, header_of
from fieldfare.storage.kafka.record_header import RecordHeader

ODD = b'"f\xfcr"'
"""A text in Latin-1."""


class Foreign:
    """A message of a topic that another program wrote."""

    def headers(self) -> list[tuple[str, bytes]]:
        return [(HEADER, b'{"space": %b}' % ODD)]


def test_an_invalid_file_is_treated_as_missing(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.make()
    folder.suspects.write_bytes(b'{"trying": true, "suspects": [{"error": %b}]}' % ODD)
    folder.slices.write_bytes(b'{"spaces": {%b: {}}}' % ODD)
    folder.elastic_wishes.write_bytes(b'{"slice": %b, "hosts": [{"host": %b}]}' % (ODD, ODD))
    assert SuspectsFile(folder.suspects).load() == ((), False)
    found, nothing = (last_loads("a", SpaceManifest(), path) for path in (folder.slices, tmp_path / "none"))
    assert found == nothing
    assert pending_move_request(folder) is ElasticLoads.read(folder.elastic_wishes) is None
    assert header_of(Foreign(), RecordHeader) is None  # type: ignore[arg-type]


def test_a_directory_that_does_not_say_where_its_logs_are_is_refused(tmp_path: Path) -> None:
    DataFolder(tmp_path).addresses.write_bytes(b'{"log": %b}' % ODD)
    with pytest.raises(FormatError, match="cannot be used to find the logs"):
        DataFolder.at(tmp_path)
