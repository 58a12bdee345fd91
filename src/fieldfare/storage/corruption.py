"""Corruption notes: what a disk has lost or changed, where, and what to do.

The process that finds damage writes a note: a small file in the folder ``corrupt`` beside the damaged file.
The gateway shows the notes as notices; an operator deletes the file of a note after reading it.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

import msgspec

from fieldfare.files import decode_file, write_file

FOLDER = "corrupt"
NOTES_MAX = 1_000
"""Maximum notes of one folder; further damage is only logged."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_NAME_MAX_CHARACTERS = 120

logger = logging.getLogger("fieldfare.storage")


class CorruptionNote(msgspec.Struct, frozen=True):
    """One piece of damage.

    Attributes
    ----------
    file : str
        The damaged file's name.
    what : str
        What is damaged, the consequence, and what to do, in sentences.
    start, end : int or None
        Range of offsets that contains all damaged records of the event log; None for other damage.
    """

    file: str
    what: str
    start: int | None = None
    end: int | None = None


def note_corruption(
    path: Path, name: str, what: str, records: tuple[int, int] | None = None
) -> CorruptionNote:
    """Write a note about damage to a file, once for each name.

    Parameters
    ----------
    path
        The damaged file.
    name
        Identifies the damage within the file.
    what
        See `CorruptionNote`.
    records
        The range of offsets of damaged records.
    """
    start, end = records or (None, None)
    note = CorruptionNote(path.name, what, start, end)
    target = _note_path(path, name)
    if target in _noted or read_note(target) is not None:
        return note
    is_new = target not in _unwritten
    if is_new:
        logger.error("%s: %s", path, what)
    try:
        if len(note_paths(path.parent)) < NOTES_MAX:
            write_file(target, lambda file: file.write(msgspec.json.encode(note) + b"\n"))
        _noted.add(target)
        _unwritten.discard(target)
    except OSError as error:
        _unwritten.add(target)
        if is_new:
            logger.error("%s could not be written: %s", target, error)
    return note


_noted: set[Path] = set()
"""Paths of the notes that this process has written or found."""
_unwritten: set[Path] = set()
"""Paths of notes that were logged but could not be written; retried when the damage is found again."""


def note_paths(data: Path) -> list[Path]:
    """Return the files of all notes of a data directory."""
    return sorted((data / FOLDER).glob("*.json"))


def read_note(path: Path) -> CorruptionNote | None:
    """Return the note in a file; None if the file is missing or unreadable."""
    return decode_file(path, CorruptionNote)


def corruption_notices(data: Path) -> list[str]:
    """Return one human-readable notice for each note of a data directory."""
    notices = []
    for path in note_paths(data):
        note = read_note(path)
        said = f"{note.file}: {note.what}" if note else "a corruption note cannot be read"
        notices.append(f"{said}; delete {path} to end this notice")
    return notices


def forget_records_before(data: Path, start: int) -> None:
    """Delete the notes about records that retention has removed."""
    for path in note_paths(data):
        note = read_note(path)
        if note is not None and note.end is not None and note.end <= start:
            path.unlink(missing_ok=True)
            _noted.discard(path)


def has_note(path: Path, name: str) -> bool:
    """Return whether a note about damage to a file exists under a name."""
    return _note_path(path, name).exists()


def forget_note(path: Path, name: str) -> None:
    """Delete the note about damage that was repaired."""
    target = _note_path(path, name)
    target.unlink(missing_ok=True)
    _noted.discard(target)


def _note_path(path: Path, name: str) -> Path:
    safe = _UNSAFE.sub("_", f"{path.name}-{name}")[:_NAME_MAX_CHARACTERS]
    return path.parent / FOLDER / f"{safe}.json"
