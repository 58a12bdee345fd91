"""After a flipped bit in a file the service starts: no wrong event, no endless wait, and lost data is named.

``python tests/gateway/maintenance/test_flipped_bytes.py FLIPS SEED`` runs many, and prints those that
break a promise.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from gateway_support import SUBSCRIPTIONS, Running, event, running, until_async
from replay_support import ReplayPipeline

from doses import drawn
from fieldfare.elasticity import Configuration
from fieldfare.elasticity.operators import Operators
from fieldfare.gateway.context import Gateway
from fieldfare.pipeline.indexer import Indexer
from fieldfare.pipeline.manifest import Manifest
from fieldfare.runtimes.indexer.index_writer import write_step
from fieldfare.storage import open_index_store
from fieldfare.storage.corruption import corruption_notices, note_paths, read_note
from fieldfare.storage.doctor import examine
from fieldfare.storage.elastic import ElasticRecord
from fieldfare.storage.errors import StorageError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.quarantine import UNKNOWN, Quarantine, QuarantinedRecord
from fieldfare.storage.sqlite.rebuild import mend_databases

FILTERS = {"low": "data.x < 20", "odd": "data.odd = TRUE", "some": "data.x IN (3, 14, 15, 35)"}
EVENTS = {
    str(x): {"x": x, "odd": x % 2 == 1, "text": f"{x} " * random.Random(x).randrange(200)} for x in range(40)
}
WANTED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "low": lambda data: bool(data["x"] < 20),
    "odd": lambda data: bool(data["odd"]),
    "some": lambda data: data["x"] in (3, 14, 15, 35),
    "past": lambda data: bool(data["odd"]),
}
DATABASES = ("log.db", "registry.db", "delayed.db")
FILES = (
    *(*DATABASES, "log.db", "registry.db", "matches/0000/*", "pasts/*/*/*", "index/files/*"),
    *("index/manifests/*", "quarantine/*", "elastic.json", "logs.json"),
)
WALS = tuple(f"{name}-wal" for name in DATABASES)
MATCHED = 30
"""Records that are matched before the service is stopped; the others are matched after the start."""
PAST = "past"
"""A subscription that begins at the log's start, and is created after the last event."""
SET_ASIDE = QuarantinedRecord(38, "default", 1, "the evaluator failed", 7)
SLICES = ElasticRecord(Configuration(Operators(0, {"M": 4}, 0), {}).begun(2))
INDEX_COPY = "file:///mnt/copy/of/the/index"


async def make(data: Path, killed: Path) -> None:
    """Write a data directory and stop cleanly; write also what a kill before the stop leaves."""
    async with running(data) as r:
        for id, text in FILTERS.items():
            await r.subscribe(id, text)
        for number, (id, fields) in enumerate(EVENTS.items()):
            await r.publish(event(id, fields))
            if number % 10 == 9 and number < MATCHED:
                r.pipeline.step()
        body = {"filter": FILTERS["odd"], "start": "earliest"}
        answer = await r.client.put(f"{SUBSCRIPTIONS}/{PAST}", json=body)
        assert answer.status_code == 201, answer.text
        ReplayPipeline(r.gateway).finish()
        r.pipeline.beat()
        write_index(r.gateway)
        folder = r.gateway.settings.folder
        Quarantine(folder.quarantine).add(SET_ASIDE)
        SLICES.write(folder.elastic)
        replace(folder, index_copy=INDEX_COPY).note()
        shutil.copytree(data, killed)


def write_index(gateway: Gateway) -> None:
    """Write the index of the subscriptions, as the indexer does."""
    indexer, store = Indexer(), open_index_store(gateway.settings.folder.index_url)
    revision = gateway.registry.revision()
    step = indexer.apply(gateway.registry.changes(0, revision), revision)
    write_step(store, step)


async def trouble(data: Path) -> str | None:
    """Start on a directory and read everything; return the guarantee that was violated, if any."""
    said: list[str] = []
    try:
        mend_databases(DataFolder(data).databases, said.append)
        wrong = wrong_side_file(data)
        if wrong is not None:
            return wrong
        async with running(data, stats_s=0.02, record_cache_bytes=1 << 20) as r:
            r.pipeline.step()
            ReplayPipeline(r.gateway).finish()
            r.pipeline.beat()
            given: dict[str, set[str]] = {id: set() for id in WANTED}
            for _ in range(2):  # Readers wait behind a broken block until it is set aside.
                for id, is_wanted in WANTED.items():
                    found, wrong = await read_all(r, id, is_wanted)
                    given[id] |= found
                    if wrong is not None:
                        return wrong
                await until_async(lambda: not r.gateway.maintenance.is_asked)
                await r.gateway.background.maintain()
                ReplayPipeline(r.gateway).finish()
            missing = {
                id: {each for each in EVENTS if is_wanted(EVENTS[each])} - given[id]
                for id, is_wanted in WANTED.items()
            }
            return not_named(data, missing, r.gateway.maintenance.notices)
    except StorageError as error:
        # One sentence that names the file and says what to do.
        named = any(name in str(error) for name in ("log.db", "registry.db", "delayed.db", "logs.json"))
        return (
            None if named and "estore the file from a backup" in str(error) else f"the start ended: {error!r}"
        )


def wrong_side_file(data: Path) -> str | None:
    """Return the small file that is read differently from what was written, or is empty without a note."""
    folder = DataFolder(data)
    found = Quarantine(folder.quarantine).get(0, SET_ASIDE.offset)
    if found != SET_ASIDE and not (found and found.error.startswith(UNKNOWN) and found.space == ""):
        return f"the quarantine gave {found}"
    if (slices := ElasticRecord.read_or_new(folder.elastic)) not in (SLICES, ElasticRecord()):
        return f"slices are at {slices}"
    if (copy := DataFolder.at(data).index_copy) != INDEX_COPY:
        return f"the index's copy is at {copy}"
    said = " ".join(corruption_notices(data))
    if (found != SET_ASIDE and "quarantine" not in said) or (slices != SLICES and "elastic" not in said):
        return f"no note names what is not read: {said}"
    return None


async def read_all(
    r: Running, id: str, is_wanted: Callable[[dict[str, Any]], bool]
) -> tuple[set[str], str | None]:
    """The events that a subscription gets until there are none, and what was wrong."""
    given: set[str] = set()
    while True:
        path = f"/v1/spaces/default/subscriptions/{id}"
        answer = await r.client.post(f"{path}/pull", json={"max": 100, "wait_s": 0.05})
        if answer.status_code == 404:
            return given, None  # A note has to say why.
        if answer.status_code != 200:
            return given, f"{id}: {answer.status_code} {answer.text}"
        messages = answer.json()["messages"]
        for message in messages:
            found = message["event"]
            if found.get("data") != EVENTS.get(found["id"]) or not is_wanted(found["data"]):
                return given, f"{id} was given {found}"
            given.add(found["id"])
        if not messages:
            return given, None
        positions = [message["position"] for message in messages]
        answer = await r.client.post(f"{path}/ack", json={"positions": positions})
        if answer.status_code != 200:
            return given, f"{id}: {answer.status_code} {answer.text}"


def excused(notice: str, id: str, number: int) -> set[str]:
    """Return the events that a subscription may miss because of one notice that names it."""
    if id == PAST and "some rows of" in notice and "pasts" in notice:
        return set(EVENTS)  # The structure of its table was damaged, and the row cannot be told.
    if not re.search(rf"subscription '{id}'|subscription number {number}\b", notice):
        return set()
    if re.search("nothing is lost|may be redelivered", notice):
        return set()
    if "matches no events" in notice:  # Earlier matches are in the match log.
        return {each for each in EVENTS if int(each) >= MATCHED}
    assert re.search("receives no (more )?events|is not matched", notice), (
        f"a note of an unknown kind: {notice}"
    )
    return set(EVENTS)


def not_named(data: Path, missing: dict[str, set[str]], notices: Sequence[str]) -> str | None:
    """Which missing events no note explains: by their record, their subscription, or the block of matches."""
    lost: set[str] = set()
    for path in note_paths(data):
        note = read_note(path)
        if note is not None and note.start is not None and note.end is not None:
            lost.update(map(str, range(note.start, note.end)))
    for start, end in re.findall(r"matches of records (\d+) to (\d+) are lost", " ".join(notices)):
        lost.update(map(str, range(int(start), int(end) + 1)))
    for number, (id, events) in enumerate(missing.items(), 1):
        silent = events - lost - set[str]().union(*(excused(notice, id, number) for notice in notices))
        if silent:
            return f"no note says why {id} did not get {sorted(silent)}; notices: {notices}"
    return None


def flip(data: Path, chance: random.Random, files: Sequence[str]) -> str:
    """Flip a bit of a byte that is in use, of one of the files."""
    name = chance.choice(files)
    path = chance.choice(sorted(data.glob(name)))
    content = bytearray(path.read_bytes())
    used = [at for at in range(0, len(content), 64) if any(content[at : at + 64])]
    at = chance.choice(used) + chance.randrange(64)
    at = min(at, len(content) - 1)
    content[at] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    return f"{path.relative_to(data)} byte {at}"


def tried(whole: Path, scratch: Path, seed: int, files: Sequence[str] = FILES) -> str | None:
    """Flip one bit; return what it broke."""
    data = scratch / f"data-{seed}"  # A process does not write the same note twice.
    shutil.copytree(whole, data)
    where = flip(data, random.Random(f"flip {seed}"), files)
    said = asyncio.run(asyncio.wait_for(trouble(data), 60))
    shutil.rmtree(data)
    return None if said is None else f"seed {seed}, {where}: {said}"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The directory of a service that was stopped, and of one that was killed."""
    path = tmp_path_factory.mktemp("both")
    asyncio.run(make(path / "whole", path / "killed"))
    return path / "whole", path / "killed"


@pytest.fixture(scope="module")
def whole(both: tuple[Path, Path]) -> Path:
    return both[0]


@pytest.mark.long
def test_a_flipped_bit_of_what_a_kill_left_gives_no_wrong_event_and_no_silence(
    both: tuple[Path, Path], tmp_path: Path
) -> None:
    files = (*FILES, *WALS)
    broken = [said for seed in range(drawn(20)) if (said := tried(both[1], tmp_path, seed, files))]
    assert not broken, "\n".join(broken)


@pytest.mark.long
def test_a_flipped_bit_of_a_manifest_is_reported_or_changes_nothing(whole: Path, tmp_path: Path) -> None:
    chance = random.Random(3)
    for seed in range(drawn(10)):
        data = shutil.copytree(whole, tmp_path / f"data-{seed}")
        where = flip(data, chance, ("index/manifests/*",))
        found = [each for each in examine(DataFolder(data), is_running=False) if "index" in str(each.file)]
        assert found or newest_of(data) == newest_of(whole), where


def newest_of(data: Path) -> Manifest | None:
    return open_index_store(DataFolder(data).index_url).newest()


@pytest.mark.long
def test_a_flipped_bit_gives_no_wrong_event_and_no_silence(whole: Path, tmp_path: Path) -> None:
    broken = [said for seed in range(drawn(60)) if (said := tried(whole, tmp_path, seed))]
    assert not broken, "\n".join(broken)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_no_flipped_bit_of_thousands_gives_a_wrong_event(whole: Path, tmp_path: Path) -> None:
    broken = [said for seed in range(1_000, 1_000 + drawn(3_000)) if (said := tried(whole, tmp_path, seed))]
    assert not broken, "\n".join(broken)


def test_a_directory_that_is_whole_gives_everything_and_names_nothing(
    both: tuple[Path, Path], tmp_path: Path
) -> None:
    for each in both:
        data = shutil.copytree(each, tmp_path / each.name)
        assert asyncio.run(trouble(data)) is None
        assert corruption_notices(data) == []


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(make(Path(folder) / "whole", Path(folder) / "killed"))
        first = int(sys.argv[2])
        for seed in range(first, first + int(sys.argv[1])):
            for name, files in (("whole", FILES), ("killed", (*FILES, *WALS))):
                if said := tried(Path(folder) / name, Path(folder) / f"of-{name}", seed, files):
                    print(name, said, flush=True)
