"""The indexer keeps encrypted and plain spaces in one manifest: a filter's dialect decides its library."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from encrypted_support import encrypt_filter, event
from test_indexer import Files

from fieldfare.client.encryption import SpaceKey
from fieldfare.filters import compile_filter
from fieldfare.filters.encrypted import compile_encrypted
from fieldfare.matching.part import Part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END, Change
from fieldfare.pipeline.access_point import RECORDS
from fieldfare.pipeline.indexer import Indexer, Step
from fieldfare.pipeline.match_batch import match_batch
from fieldfare.pipeline.placing import SlicesBuilder

FILTERS = (
    "data.x > 3",
    "data.x BETWEEN 2 AND 5",
    "data.word = 'a'",
    "data.x < 4 AND data.word <> 'b'",
    "TRUE",
)
SPACES = ("plain", "secret")


class Spaces:
    """Equal subscriptions in a plain space and in an encrypted one."""

    def __init__(self, random: Random) -> None:
        self.key = SpaceKey.generate({"data.x": (0, 9, 1)}, ["data.word"])
        self.random = random
        self.revision = 0
        self.changes: list[Change] = []
        self.current: dict[str, dict[int, tuple[int, str, str]]] = {space: {} for space in SPACES}

    def change(self) -> None:
        number = self.random.randrange(6)
        text = self.random.choice(FILTERS) if self.random.random() < 0.75 else None
        for space in SPACES:
            self.revision += 1
            if text is None:
                self.current[space].pop(number, None)
                self.changes.append(Change(self.revision, space, number, None))
                continue
            sent = encrypt_filter(self.key, text) if space == "secret" else text
            self.current[space][number] = (self.revision, sent, text)
            dialect = "aspe" if space == "secret" else "sql"
            self.changes.append(Change(self.revision, space, number, sent, dialect))

    def snapshots(self) -> dict[str, list[Part]]:
        found = {}
        for space, current in self.current.items():
            builder = SlicesBuilder()
            builder.add(
                IndexEntry(
                    *(revision, number, revision, OPEN_END),
                    *((compile_encrypted(sent).compiled, sent, "aspe") if space == "secret"
                      else (compile_filter(sent).compiled, sent, "sql")),
                )
                for number, (revision, sent, _) in current.items()
            )  # fmt: skip
            found[space] = builder.finish()
        return found

    def check(self, files: Files, step: Step) -> None:
        data = [
            {"x": self.random.randrange(10), "word": self.random.choice("abc")},
            {"x": None},
            {"word": "a"},
        ]
        lines = [json.dumps(event(**each)).encode() for each in data]
        payloads = {"plain": lines, "secret": self.key.seal_lines(lines)}
        columns: list[Any] = [[0, 1], [self.revision] * 2, list(SPACES), pa.array([3, 3], pa.int32())]
        joined = [b"\n".join(payloads[space]) + b"\n" for space in SPACES]
        batch = pa.record_batch([*columns, pa.array(joined, pa.large_binary())], schema=RECORDS)
        found = match_batch(batch, files.indexes(step)).lists()
        current = sorted((n, compile_filter(text)) for n, (_, _, text) in self.current["plain"].items())
        expected = [[n for n, each in current if each.matches(event(**one))] for one in data]
        assert found == expected * 2


@pytest.mark.parametrize("seed", range(6))
def test_manifests_with_plain_and_encrypted_spaces_survive_snapshots_and_restarts(seed: int) -> None:
    """A snapshot of a space without subscriptions has no library yet; the first later subscription decides
    it."""
    random = Random(seed)
    spaces, files, indexer = Spaces(random), Files(), Indexer()
    for turn in range(6):
        for _ in range(random.randrange(4)):
            spaces.change()
        new = [change for change in spaces.changes if change.revision > indexer.revision]
        step = indexer.apply(new, spaces.revision)
        files.write(step)
        spaces.check(files, step)
        if turn % 2 == 0:
            step = indexer.rebase(spaces.snapshots(), spaces.revision)
            files.write(step)
            spaces.check(files, step)
            parts = {
                space: [files.files[part.snapshot.file] if part.snapshot else None for part in found.slices]
                for space, found in step.manifest.spaces.items()
            }
            indexer = Indexer(step.manifest, parts)  # type: ignore[arg-type]
            for space, found in step.manifest.spaces.items():
                is_secret = space == "secret" and spaces.current[space]
                assert found.slices[0].library == ("aspe" if is_secret else "plain")
