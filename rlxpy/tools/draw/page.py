"""One HTML file with a drawing for every pass: no network, no framework, light and dark."""
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlxpy.backends.templates import folder
from rlxpy.extend.backend import BackendSpec
from rlxpy.ir.graph import Graph
from rlxpy.tools.draw.boxes import LEGEND, Box
from rlxpy.tools.draw.picture import MAX_BOXES, picture, pictures, unframed
from rlxpy.tools.draw.svg import svg
from rlxpy.tools.trace import Stage

if TYPE_CHECKING:
    from jinja2 import Environment


def page(stages: Sequence[Stage], spec: BackendSpec, title: str = "", max_boxes: int = MAX_BOXES) -> str:
    """Drawings of `stages` with what is known about every box.  A stage that changed nothing shows the one before it."""
    drawn = pictures(stages, spec, max_boxes)
    bodies = list(dict.fromkeys(b.body for p in drawn.values() for b in p.boxes if b.body is not None))
    number = {body: k for k, body in enumerate(bodies)}
    tabs = [_tab(s, sum(at <= k for at in drawn) - 1) for k, s in enumerate(stages)]
    data = {"tabs": tabs, "drawings": [{"boxes": [_about(b, number) for b in p.boxes], "folded": p.folded} for p in drawn.values()]}
    return environment().get_template("draw/page.html.j2").render(
        title=title or stages[0].graph.name, device=spec.device.name, tabs=tabs, drawings=[svg(p) for p in drawn.values()],
        chains=[svg(unframed(picture(body, spec, max_boxes=max_boxes))) for body in bodies], legend=LEGEND, data=_for_script(data))


def environment() -> Environment:
    """Of pages: everything is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(loader=FileSystemLoader(folder()), undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)


def _tab(stage: Stage, drawing: int) -> dict[str, Any]:
    missed = [str(n) for n in stage.notes if n.kind == "near miss"]
    done = [f"{n.kind} {n.label}" for n in stage.notes if n.kind != "near miss"]
    return {"name": stage.name, "count": len(stage.graph), "changed": stage.changed, "drawing": drawing, "ms": round(stage.seconds * 1e3, 1),
            "missed": _counted(missed), "done": _counted(done)}


def _about(box: Box, number: dict[Graph, int]) -> dict[str, Any]:
    chain = None if box.body is None else number[box.body]
    return {"title": box.title, "kind": LEGEND[box.kind], "facts": box.facts, "chain": chain, "fresh": box.fresh}


def _counted(texts: Sequence[str]) -> list[str]:
    """Each once, in the order met, with how often."""
    return [text if n == 1 else f"{text}  × {n}" for text, n in Counter(texts).items()]


def _for_script(data: Any) -> str:
    """JSON that no text in it can end: inside <script>, "</" and "<!--" mean something to the browser."""
    return json.dumps(data).replace("<", "\\u003c")
