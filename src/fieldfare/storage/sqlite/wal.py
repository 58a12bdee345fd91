"""Repair of the WAL that a killed process left: corrupt frames are repaired, and lost ones are noted.

SQLite reads a WAL up to the first frame whose checksum is wrong and silently drops everything after it,
including acknowledged transactions. A frame's checksum continues that of the frame before, as it is stored
there, so the frames after a corrupt one can still be checked. A single flipped bit is located from the
difference of the checksums and restored.

After a checkpoint SQLite overwrites the WAL from its beginning, with new salts. The frames behind the last
new one are obsolete: they have old salts, and checksums that continue each other.

    header: magic, version, page size, checkpoints, salts (2), checksum (2)     each 32 bits, big-endian
    frame:  page number, pages of the file after a commit or 0, salts (2), checksum (2), the page
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fieldfare.files import write_file
from fieldfare.storage.corruption import note_corruption

_HEADER_BYTES, _HEAD_BYTES = 32, 24
_MAGIC = 0x377F0682
"""Magic number of a WAL with checksums over little-endian words; one more means big-endian words."""
_CHUNK_FRAMES = 1_024

_Words = npt.NDArray[np.uint32]


class WalState(Enum):
    """The state of a WAL: nothing to do, damage that was repaired, or damage that is left in the pages."""

    RIGHT = "right"
    MENDED = "mended"
    DAMAGED = "damaged"


def wal_path(path: Path) -> Path:
    """Return the path of a database's WAL; where the database is a symbolic link, it is beside the target."""
    return Path(f"{real_path(path)}-wal")


def shm_path(path: Path) -> Path:
    """Return the path of the index of a database's WAL, which SQLite creates again from the WAL."""
    return Path(f"{real_path(path)}-shm")


def real_path(path: Path) -> Path:
    """Return the path of a file that a path names through symbolic links, even where these end nowhere."""
    return Path(os.path.realpath(path))


def holds_first_page(path: Path) -> bool:
    """Return whether the WAL of a database has a newer first page."""
    return next(first_page_headers(path, 0), None) is not None


def first_page_headers(path: Path, size_bytes: int) -> Iterator[bytes]:
    """Yield the first bytes of each first page in the WAL of a database, the oldest first."""
    try:
        wal = wal_path(path).read_bytes()
    except FileNotFoundError:
        return
    size, salts = _HEAD_BYTES + int.from_bytes(wal[8:12]), wal[16:24]
    for at in range(_HEADER_BYTES, len(wal) - size + 1, size):
        if wal[at : at + 4] == b"\0\0\0\1" and wal[at + 8 : at + 16] == salts:
            yield wal[at + _HEAD_BYTES : at + _HEAD_BYTES + size_bytes]


def mend_wal(path: Path) -> WalState:
    """Repair the WAL of a database that no process has open; write a note of what cannot be repaired."""
    try:
        wal = wal_path(path).read_bytes()
    except FileNotFoundError:
        return WalState.RIGHT
    if len(wal) <= _HEADER_BYTES + _HEAD_BYTES:
        return WalState.RIGHT
    header = _right_header(wal[:_HEADER_BYTES])
    if header is None:
        lost = "its WAL cannot be read from the beginning: the last changes before the service ended are lost"
        note_corruption(
            path,
            "wal",
            f"{lost}; repeat them: publish the last events, and create the last subscriptions, again",
        )
        return WalState.DAMAGED
    frames = _Frames(header, wal)
    frames.mend()
    if frames.lost:
        note_corruption(path, "wal", frames.lost)
    elif frames.is_changed or header != wal[:_HEADER_BYTES]:
        note_corruption(path, "wal", "a bit of its WAL had changed and was restored; nothing is lost")
    else:
        return WalState.RIGHT
    content = frames.content()
    write_file(wal_path(path), lambda file: file.write(content))
    with suppress(FileNotFoundError):
        shm_path(path).unlink()
    return WalState.DAMAGED if frames.lost else WalState.MENDED


def wrong_frame(path: Path) -> str | None:
    """Return what is wrong with the WAL of a database that no process has open; None if nothing is."""
    try:
        wal = wal_path(path).read_bytes()
    except FileNotFoundError:
        return None
    if len(wal) <= _HEADER_BYTES + _HEAD_BYTES:
        return None
    if not _is_right(wal[:_HEADER_BYTES]):
        return "its header has changed on the disk: SQLite would ignore all of it"
    frames = _Frames(wal[:_HEADER_BYTES], wal)
    frames.mend()
    if frames.lost or frames.is_changed:
        return frames.lost or "a bit has changed on the disk: SQLite would ignore the frames after it"
    return None


def _right_header(header: bytes) -> bytes | None:
    """Return a header with at most one flipped bit restored; None if more bits have changed."""
    if _is_right(header):
        return header
    for bit in range(8 * _HEADER_BYTES):
        tried = bytearray(header)
        tried[bit // 8] ^= 1 << bit % 8
        if _is_right(bytes(tried)):
            return bytes(tried)
    return None


def _is_right(header: bytes) -> bool:
    magic, _, page_size, *_ = np.frombuffer(header, ">u4").tolist()
    if magic & ~1 != _MAGIC or page_size & (page_size - 1) or not 512 <= page_size <= 65_536:
        return False
    factors, _ = _factors(6)
    found = np.frombuffer(header[:24], _order(magic)).astype(np.uint32) @ factors
    return bool((found == np.frombuffer(header[24:], ">u4")).all())


def _order(magic: int) -> str:
    return ">u4" if magic & 1 else "<u4"


def _factors(words: int) -> tuple[_Words, _Words]:
    """Return the factors of each word and the previous checksum in a checksum of `words` words (mod 2^32)."""
    factors = np.zeros((words, 2), np.uint32)
    step, power = np.array([[1, 1], [1, 2]], np.uint32), np.eye(2, dtype=np.uint32)
    for pair in range(words - 2, -1, -2):
        factors[pair], factors[pair + 1] = power[:, 0] + power[:, 1], power[:, 1]
        power = power @ step
    return factors, power


class _Frames:
    """The frames of a WAL whose header is valid."""

    def __init__(self, header: bytes, wal: bytes) -> None:
        self._header = header
        magic, _, page_size, _, *salts, first, second = np.frombuffer(header, ">u4").tolist()
        self._order = _order(magic)
        self._size = _HEAD_BYTES + page_size
        count = (len(wal) - _HEADER_BYTES) // self._size
        area = bytearray(wal[_HEADER_BYTES : _HEADER_BYTES + count * self._size])
        self._bytes = np.frombuffer(area, np.uint8).reshape(count, self._size)
        self._salts = np.array(salts, np.uint32)
        self._seed = np.array([first, second], np.uint32)
        self._factors, self._power = _factors(2 + page_size // 4)
        heads = self._bytes[:, :_HEAD_BYTES].copy().view(">u4").astype(np.uint32)
        self._pages, self._commits = heads[:, 0], heads[:, 1]
        self._has_salts = (heads[:, 2:4] == self._salts).all(axis=1)
        self._stored = heads[:, 4:6]
        self._sums = self._sums_of_all()
        self._one_of_several = set[int]()
        """Frames in which one bit has changed but the checksum does not determine which."""
        self.is_changed = False
        self.lost = ""

    def mend(self) -> None:
        """Restore flipped bits; if more has changed before a later commit, describe the loss in `lost`."""
        right = self._are_right()
        at = 0
        while at < len(right):
            is_anchored = at == 0 or right[at - 1] or self._has_salts[at - 1]
            if not right[at] and self._put_back(at, is_anchored):
                right[at] = True
                if at + 1 < len(right):
                    right[at + 1] = self._has_salts[at + 1] and self._is_right(at + 1)
            at += 1
        usable = right.copy()
        usable[list(self._one_of_several)] = True
        right_commits = np.flatnonzero(usable & (self._commits > 0))
        last = int(right_commits[-1]) if len(right_commits) else -1
        wrong = np.flatnonzero(~right[: last + 1])
        if not len(wrong):
            return
        first = int(wrong[0])
        behind = right_commits[right_commits > first]
        which = f"frame {first} of its WAL has changed on the disk"
        is_one_bit = self._one_of_several.issuperset(wrong.tolist())
        if (
            not is_one_bit
            and len(behind) < 2
            and int(wrong[-1]) > (right_commits[right_commits < first].max(initial=-1))
        ):
            # The last transaction may never have been complete, and then was not acknowledged.
            self.lost = (
                f"{which}, and the last transaction is dropped; nothing is lost if the machine lost power"
                " then, otherwise repeat your last changes"
            )
            self._bytes = self._bytes[:first]
            return
        # Keep the page, like one that is corrupt in the file itself: its rows have checksums.
        largest = int(self._commits[right if self._commits[right].any() else usable].max())
        dropped = np.zeros(len(right), bool)
        dropped[wrong] = ~self._has_salts[wrong] | (self._pages[wrong] - 1 >= largest)
        self.lost = f"{which}; the frames after it were kept, and other notes name the lost rows"
        self._bytes = self._bytes[: last + 1][~dropped[: last + 1]]
        self._sums = self._sums[: last + 1][~dropped[: last + 1]]
        self._sum_again()

    def content(self) -> bytes:
        return self._header + self._bytes.tobytes()

    def _sums_of_all(self) -> _Words:
        sums = np.empty((len(self._bytes), 2), np.uint32)
        for start in range(0, len(sums), _CHUNK_FRAMES):
            some = self._bytes[start : start + _CHUNK_FRAMES]
            sums[start : start + len(some)] = self._words(some) @ self._factors
        return sums

    def _words(self, frames: npt.NDArray[Any]) -> _Words:
        covered = np.concatenate((frames[:, :8], frames[:, _HEAD_BYTES:]), axis=1)
        words: _Words = covered.view(self._order).astype(np.uint32)
        return words

    def _before(self, at: int) -> _Words:
        before: _Words = self._stored[at - 1] if at else self._seed
        return before

    def _are_right(self) -> npt.NDArray[np.bool_]:
        before = np.concatenate((self._seed[None], self._stored[:-1]))
        expected = self._sums + before @ self._power.T
        right: npt.NDArray[np.bool_] = self._has_salts & (expected == self._stored).all(axis=1)
        return right

    def _expected(self, at: int) -> _Words:
        expected: _Words = self._sums[at] + self._power @ self._before(at)
        return expected

    def _is_right(self, at: int) -> bool:
        return bool((self._expected(at) == self._stored[at]).all())

    def _put_back(self, at: int, is_anchored: bool) -> bool:
        """Restore the salts or one flipped bit of a frame; return False if that does not repair it.

        A frame whose checksum continues that of an obsolete frame (`is_anchored` is False) is obsolete, too.
        """
        frame, expected = self._bytes[at], self._expected(at)
        if is_anchored and (expected == self._stored[at]).all():  # one of the salts
            frame[8:16] = self._salts.astype(">u4").view(np.uint8)
            self._has_salts[at] = self.is_changed = True
            return True
        if not self._has_salts[at]:
            return False
        # A flipped bit in a page may look like one in the checksum: as many words have even factors, the
        # highest bit of any word may. The next frame, which continues from the checksum, tells them apart.
        is_of_checksum = sum(int(each).bit_count() for each in expected ^ self._stored[at]) == 1
        is_of_checksum &= not self._is_continued(at, self._stored[at])
        places = self._places(at, self._stored[at] - expected)
        if is_of_checksum and (not places or self._is_continued(at, expected)):
            self._stored[at] = expected
            frame[16:24] = expected.astype(">u4").view(np.uint8)
            self.is_changed = True
            return True
        if len(places) == 1 and not is_of_checksum:
            self._flip(at, *places[0])
            return True
        if places:
            self._one_of_several.add(at)
        return False

    def _is_continued(self, at: int, checksum: _Words) -> bool:
        """Return whether the next frame continues from a checksum."""
        if at + 1 >= len(self._sums) or not self._has_salts[at + 1]:
            return False
        return bool((self._sums[at + 1] + self._power @ checksum == self._stored[at + 1]).all())

    def _places(self, at: int, missing: _Words) -> list[tuple[int, int]]:
        """Return the words and bits of a frame one of which, flipped, adds `missing` to its checksum."""
        words = self._words(self._bytes[at : at + 1])[0]
        return [
            (int(word), bit)
            for bit in range(32)
            for is_set, wanted in ((0, missing), (1, np.uint32(0) - missing))
            for word in np.flatnonzero((self._factors << np.uint32(bit) == wanted).all(axis=1))
            if words[word] >> bit & 1 == is_set
        ]

    def _flip(self, at: int, word: int, bit: int) -> None:
        place = 4 * word + (bit // 8 if self._order == "<u4" else 3 - bit // 8)
        frame = self._bytes[at]
        frame[place if place < 8 else place + _HEAD_BYTES - 8] ^= np.uint8(1 << bit % 8)
        self._sums[at] = self._words(frame[None])[0] @ self._factors
        self._pages[at], self._commits[at] = frame[:8].copy().view(">u4")
        self.is_changed = True

    def _sum_again(self) -> None:
        """Recompute the checksums of all frames, because kept frames now follow others."""
        before = self._seed
        for frame, of_frame in zip(self._bytes, self._sums, strict=True):
            before = of_frame + self._power @ before
            frame[16:24] = before.astype(">u4").view(np.uint8)
