"""The grammar of docs/filter-grammar.md as railroad diagrams in docs/images/filter-grammar.svg.

After a change of the grammar: ``PYTHONPATH=src python -m tests.filters.railroad``; review the image.
Every piece is drawn with its entry at ``x, y`` and its exit at ``x + width, y``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from .grammar import PAGE, Grammar, Node, read_grammar

PICTURE = PAGE.parent / "images" / "filter-grammar.svg"

BOX, TURN, GAP, CHARACTER = 22, 8, 12, 7.3
"""Height of a box, radius of a bend, space between two pieces, width of a character."""

_STYLE = """
path { fill: none; stroke: #57606a; stroke-width: 1.5 }
rect { stroke: #57606a; stroke-width: 1.5; fill: #fff }
rect.text { fill: #ddf4ff }
text { font: 12px ui-monospace, Menlo, Consolas, monospace; text-anchor: middle; fill: #1f2328 }
text.rule { font-weight: bold; text-anchor: start }
"""


@dataclass(frozen=True)
class Piece:
    """A drawing: its width, its extent above and below its line, and its SVG at a position."""

    width: float
    above: float
    below: float
    draw: Callable[[float, float], str]


def _path(x: float, y: float, steps: str) -> str:
    return f'<path d="M{x:g} {y:g}{steps}"/>\n'


def _box(text: str, *, is_rule: bool) -> Piece:
    width = round(len(text) * CHARACTER) + 18
    kind, corner = ("", 0) if is_rule else (' class="text"', BOX / 2)

    def draw(x: float, y: float) -> str:
        box = f'<rect{kind} x="{x:g}" y="{y - BOX / 2:g}" width="{width}" height="{BOX}" rx="{corner:g}"/>\n'
        return box + f'<text x="{x + width / 2:g}" y="{y + 4:g}">{escape(text)}</text>\n'

    return Piece(width, BOX / 2, BOX / 2, draw)


def _row(pieces: list[Piece]) -> Piece:
    def draw(x: float, y: float) -> str:
        drawn = ""
        for place, piece in enumerate(pieces):
            if place:
                drawn += _path(x, y, f"h{GAP}")
                x += GAP
            drawn += piece.draw(x, y)
            x += piece.width
        return drawn

    width = sum(piece.width for piece in pieces) + GAP * (len(pieces) - 1)
    return Piece(width, max(piece.above for piece in pieces), max(piece.below for piece in pieces), draw)


def _choice(pieces: list[Piece]) -> Piece:
    """Draw alternatives: the first on the line, the others below it."""
    inner = max(piece.width for piece in pieces)
    drops = [0.0]
    for before, piece in pairwise(pieces):
        drops.append(drops[-1] + max(before.below + GAP + piece.above, 2 * TURN))

    def draw(x: float, y: float) -> str:
        drawn = ""
        for piece, drop in zip(pieces, drops, strict=True):
            left, down = x + 2 * TURN, drop - 2 * TURN
            rest = inner - piece.width
            if drop:
                drawn += _path(x, y, f"q{TURN} 0 {TURN} {TURN}v{down:g}q0 {TURN} {TURN} {TURN}")
                bend = f"h{rest:g}q{TURN} 0 {TURN} {-TURN}v{-down:g}q0 {-TURN} {TURN} {-TURN}"
            else:
                drawn += _path(x, y, f"h{2 * TURN}")
                bend = f"h{rest + 2 * TURN:g}"
            drawn += piece.draw(left, y + drop) + _path(left + piece.width, y + drop, bend)
        return drawn

    return Piece(inner + 4 * TURN, pieces[0].above, drops[-1] + pieces[-1].below, draw)


def _maybe(piece: Piece) -> Piece:
    """Draw an optional piece: a bypass above it."""
    rise = max(piece.above + GAP / 2, 2 * TURN)

    def draw(x: float, y: float) -> str:
        up, width = rise - 2 * TURN, piece.width
        drawn = _path(x, y, f"h{2 * TURN}") + piece.draw(x + 2 * TURN, y)
        drawn += _path(x + 2 * TURN + width, y, f"h{2 * TURN}")
        way = f"q{TURN} 0 {TURN} {-TURN}v{-up:g}q0 {-TURN} {TURN} {-TURN}h{width:g}"
        return drawn + _path(x, y, f"{way}q{TURN} 0 {TURN} {TURN}v{up:g}q0 {TURN} {TURN} {TURN}")

    return Piece(piece.width + 4 * TURN, rise, piece.below, draw)


def _loop(piece: Piece, between: Piece | None) -> Piece:
    """Draw a repetition: a way back below the piece, with an optional separator on it."""
    way = between or Piece(0, 0, 0, lambda _x, _y: "")
    inner = max(piece.width, way.width)
    drop = max(piece.below + GAP / 2 + way.above, 2 * TURN)

    def draw(x: float, y: float) -> str:
        down, left = drop - 2 * TURN, x + 2 * TURN
        first, second = (inner - piece.width) / 2, (inner - way.width) / 2
        drawn = _path(x, y, f"h{2 * TURN + first:g}") + piece.draw(left + first, y)
        drawn += _path(left + first + piece.width, y, f"h{first + 2 * TURN:g}")
        bend = f"q{TURN} 0 {TURN} {TURN}v{down:g}q0 {TURN} {-TURN} {TURN}h{-second:g}"
        drawn += _path(left + inner, y, bend) + way.draw(left + second, y + drop)
        bend = f"q{-TURN} 0 {-TURN} {TURN}v{down:g}q0 {TURN} {TURN} {TURN}h{second:g}"
        return drawn + _path(left, y, bend)

    return Piece(inner + 4 * TURN, piece.above, drop + way.below, draw)


def piece_of(node: Node) -> Piece:
    """Return the drawing of a part of the grammar."""
    if node.kind in ("text", "rule"):
        return _box(node.text, is_rule=node.kind == "rule")
    if node.kind == "any":
        return _choice([piece_of(part) for part in node.parts])
    if node.kind == "maybe":
        return _maybe(piece_of(node.parts[0]))
    if node.kind == "many":
        return _maybe(_loop(piece_of(node.parts[0]), None))
    pieces: list[Piece] = []
    for before, part in pairwise((None, *node.parts)):
        assert part is not None
        repeated = part.parts[0] if part.kind == "many" else part
        if part.kind == "many" and repeated.kind == "all" and repeated.parts[-1] == before:
            pieces[-1] = _loop(pieces[-1], _row([piece_of(each) for each in repeated.parts[:-1]]))
        else:
            pieces.append(piece_of(part))
    return _row(pieces)


def picture_of(grammar: Grammar) -> str:
    """Return all rules, one below the other, as SVG."""
    drawn, y, width = "", 10.0, 0.0
    for name, node in grammar.rules.items():
        piece = piece_of(node)
        drawn += f'<text class="rule" x="10" y="{y + 12:g}">{name}</text>\n'
        line = y + 24 + piece.above
        drawn += _path(10, line - 6, "v12") + _path(10, line, f"h{GAP}") + piece.draw(10 + GAP, line)
        end = 10 + GAP + piece.width
        drawn += _path(end, line, f"h{GAP}") + _path(end + GAP, line - 6, "v12")
        width = max(width, end + GAP + 10)
        y = line + piece.below + 24
    size = f'width="{width:g}" height="{y:g}" viewBox="0 0 {width:g} {y:g}"'
    title = "<title>The grammar of the sql filter dialect</title>"
    sheet = '<path d="M0 0H100000V100000H0z" style="fill: #fff; stroke: none"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{title}\n<style>{_STYLE}</style>\n{sheet}\n'
    return f"{head}{drawn}</svg>\n"


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture_of(read_grammar(PAGE.read_text())))
