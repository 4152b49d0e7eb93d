"""A picture as SVG, coloured by the style sheet of the page around it."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from rlxpy.tools.draw.boxes import Box
from rlxpy.tools.draw.layered import Frame, Hop, Item, Layout, layout
from rlxpy.tools.draw.picture import Picture

# a monospaced letter is 0.6 of its font size wide; sizes as in templates/draw/page.html.j2
TITLE_PX, LINE_PX, LETTER = 12.0, 10.5, 0.602
ROW, PAD_X, PAD_Y = 14.5, 10.0, 7.0
MAX_LETTERS = 44


def svg(picture: Picture) -> str:
    """`data-k` of a box is its number in the picture, `data-s` of a line the number of the box it comes from, `data-t` where it ends."""
    texts = [_texts(b) for b in picture.boxes]
    items = [Item(_width(t), 2 * PAD_Y + ROW * len(t), path, b.floats) for t, path, b in zip(texts, picture.frames, picture.boxes, strict=True)]
    placed = layout(items, picture.edges)
    return "\n".join(_parts(picture, placed, items, texts))


def _parts(picture: Picture, placed: Layout, items: Sequence[Item], texts: Sequence[list[str]]) -> Iterator[str]:
    w, h = placed.width, placed.height
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w:.0f} {h:.0f}" width="{w:.0f}" height="{h:.0f}">'
    yield from map(_frame, placed.frames)
    yield from map(_line, placed.hops)
    for k, (box, item, text, place) in enumerate(zip(picture.boxes, items, texts, placed.places, strict=True)):
        yield _box(k, box, item, text, *place)
    yield "</svg>"


def _texts(box: Box) -> list[str]:
    return [_short(t) for t in (box.title, *box.lines, *box.operands)]


def _short(text: str) -> str:
    return text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS - 1]}…"


def _width(texts: Sequence[str]) -> float:
    return 2 * PAD_X + LETTER * max(TITLE_PX * len(texts[0]), *(LINE_PX * len(t) for t in texts))


def _box(k: int, box: Box, item: Item, texts: Sequence[str], x: float, y: float) -> str:
    classes = f"box {box.kind}{' fresh' if box.fresh else ''}"
    rows = []
    for i, text in enumerate(texts):
        role = "title" if i == 0 else "line" if i <= len(box.lines) else "operand"
        rows.append(f'<text class="{role}" x="{PAD_X:.0f}" y="{PAD_Y + ROW * (i + 1) - 4:.1f}">{escape(text)}</text>')
    radius = 15 if box.kind in ("leaf", "result") else 6
    return (f'<g class="{classes}" data-k="{k}" tabindex="0" transform="translate({x:.1f} {y:.1f})">'
            f'<rect width="{item.width:.1f}" height="{item.height:.1f}" rx="{radius}"/>{"".join(rows)}</g>')


def _frame(f: Frame) -> str:
    return (f'<g class="frame"><rect x="{f.x:.1f}" y="{f.y:.1f}" width="{f.width:.1f}" height="{f.height:.1f}" rx="10"/>'
            f'<text x="{f.x + 10:.1f}" y="{f.y + 15:.1f}">{escape(f.path[-1])}</text></g>')


def _line(h: Hop) -> str:
    (x, y), (to_x, to_y), (upper, lower) = h.start, h.end, h.bend
    middle = (upper + lower) / 2
    bend = f"V{upper:.1f}C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {lower:.1f}" if abs(x - to_x) > 0.5 else ""
    end = f' data-t="{h.target}" marker-end="url(#tip)"' if h.target >= 0 else ""
    return f'<path class="wire" data-s="{h.source}"{end} d="M{x:.1f} {y:.1f}{bend}V{to_y:.1f}"/>'
