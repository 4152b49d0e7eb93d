"""Pictures as Graphviz text, one digraph for each."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rlxpy.tools.draw.boxes import Box
from rlxpy.tools.draw.folding import Path
from rlxpy.tools.draw.picture import Picture

COLOURS = {"leaf": "#e8e8e8", "fused": "#f6c9a8", "product": "#a9c7f0", "elementwise": "#bfe3bf", "movement": "#f2e3a0", "composite": "#d4c4ef",
           "other": "#b5e2e0", "result": "#ffffff", "fold": "#f4f4f4"}


def dot(picture: Picture, title: str = "") -> str:
    """Boxes by their kind's colour, blocks as clusters."""
    lines = [f"digraph {_quoted(title or picture.name)} {{", '  node [shape=box, style="rounded,filled", fontname="monospace", fontsize=10]',
             "  edge [color=gray50, arrowsize=0.6]", f"  label={_quoted(title or picture.name)}"]
    inside: dict[Path, list[int]] = defaultdict(list)
    for k, path in enumerate(picture.frames):
        for depth in range(1, len(path) + 1):
            inside[path[:depth]]
        inside[path].append(k)
    lines += _cluster(picture, (), inside, "  ")
    lines += [f"  n{a} -> n{b}" for a, b in picture.edges]
    return "\n".join([*lines, "}"])


def _cluster(picture: Picture, path: Path, inside: dict[Path, list[int]], indent: str) -> Iterator[str]:
    for k in inside.get(path, ()):
        yield f"{indent}n{k} [{_look(picture.boxes[k])}]"
    for number, inner in enumerate(p for p in inside if len(p) == len(path) + 1 and p[:-1] == path):
        name = _quoted(f"cluster {'/'.join(inner)} {number}")
        yield f'{indent}subgraph {name} {{ label={_quoted(inner[-1])}; style="rounded,dashed"'
        yield from _cluster(picture, inner, inside, indent + "  ")
        yield f"{indent}}}"


def _look(box: Box) -> str:
    label = "\n".join((box.title, *box.lines, *box.operands))
    tip = "\n".join(f"{k}: {v}" for k, v in box.facts)
    return f"label={_quoted(label)}, tooltip={_quoted(tip)}, fillcolor={_quoted(COLOURS[box.kind])}" + (", penwidth=2" if box.fresh else "")


def _quoted(text: str) -> str:
    """Graphviz reads backslashes in labels as escapes, and a line break as it stands."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
