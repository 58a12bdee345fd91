"""The text that a reader sees is plain technical English: phrases that are not stay out.

    python tests/test_words.py src/fieldfare/filters docs/filter-tools.md

prints each place of such a phrase in the named files and folders.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_VERBS = (
    "is|are|was|has|have|had|waits?|wants?|does|gets|asks?|reads?|writes?|knows?|sends?|takes?|may|can|uses?"
)
PHRASES = {
    "a noun in place of a clause (the reader, the waiter, the owner)": rf"\bwho(ever)? ({_VERBS})\b",
    "a sentence that begins with a relative clause": (
        r"(?:^|[.:;!?]\s+|\"\"\")(?:Who|Whoever|Whose|What|Of what|That which)\b(?![^.]*\?)"
    ),
    "say the number's name": (
        r"\b(so (many|long|much|few|often)|as (many|much|long|far|often) as (may|can))\b"
    ),
    "again": r"\banew\b",
    "no subscriber, no reader": r"\b(nobody|somebody|whoever)\b",
    "resume": r"\b(gone|goes|go|going|went) on with\b",
    "a docstring is read alone": r"\"\"\"The same\b",
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts that a reader sees, with their first lines: of a module its comments and strings."""
    content = path.read_text()
    if path.suffix != ".py":
        yield 1, content
        return
    comment: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type == tokenize.COMMENT:
            if comment and token.start[0] != last + 1:
                yield first, " ".join(comment)
                comment = []
            first, last = (token.start[0] if not comment else first), token.start[0]
            comment.append(token.string.removeprefix("#").strip())
        elif token.type == tokenize.STRING and " " in token.string:
            yield token.start[0], token.string
    if comment:
        yield first, " ".join(comment)


def phrases_in(path: Path) -> Iterator[str]:
    """Each place of a phrase that is not plain, with what to do."""
    for line, text in texts(path):
        plain = re.sub(r"`[^`]*`", "`code`", text)
        for advice, phrase in PHRASES.items():
            for found in re.finditer(phrase, plain, re.IGNORECASE if phrase.startswith(r"\b") else 0):
                at = line + plain.count("\n", 0, found.start())
                yield f"{path.relative_to(ROOT)}:{at} {found.group().strip()!r}: {advice}"


def files_of(places: list[str]) -> Iterator[Path]:
    """The modules and pages in the named files and folders."""
    for place in places:
        path = ROOT / place
        if path.is_file():
            yield path
        else:
            yield from (each for each in sorted(path.rglob("*")) if each.suffix in {".py", ".md"})


def test_text_is_plain_english() -> None:
    places = ["src/fieldfare", "docs", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
    found = [each for path in files_of(places) for each in phrases_in(path)]
    assert not found, "\n".join(found)


def test_each_phrase_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(
        '"""The same, anew."""\n# Who waits has his turn: so many\n# of them, nobody gone on with.\n'
    )
    found = [each.partition(" ")[2] for each in phrases_in(path)]
    assert {each.rpartition(": ")[2] for each in found} == {each.rpartition(": ")[2] for each in PHRASES}
    path.write_text('"""Return the waiters, in order."""\nsql = "SELECT who FROM t"\n')
    assert list(phrases_in(path)) == []


if __name__ == "__main__":
    for place in files_of([str(Path(each).resolve().relative_to(ROOT)) for each in sys.argv[1:]]):
        for each in phrases_in(place):
            print(each)
