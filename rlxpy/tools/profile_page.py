"""A profile as one HTML page: bars for the kernels, a line of time for every thread; no network, light and dark."""
from __future__ import annotations

from typing import Any

from rlxpy.tools.draw.page import environment
from rlxpy.tools.profile import Profile

COLOURS = 10  # of the page's palette; kernels beyond share the last
SHORTEST_SHARE = 1e-4  # of the whole time: what is thinner than a line is not drawn


def page(p: Profile, title: str) -> str:
    groups = p.grouped("function")
    colour = {name: min(k, COLOURS - 1) for k, (name, *_) in enumerate(groups)}
    total = p.launched_seconds or 1.0
    bars = [{"name": name, "calls": calls, "ms": s * 1e3, "share": s / total, "colour": colour[name], "gflops": flops / s / 1e9 if s else 0.0,
             "gbytes": nbytes / s / 1e9 if s else 0.0, "limit": p.roofline.seconds(flops, nbytes) / s if p.roofline and s else None}
            for name, calls, s, flops, nbytes in groups]
    return environment().get_template("draw/profile.html.j2").render(title=title, p=p, bars=bars, threads=_threads(p, colour), blocks=_blocks(p))


def _threads(p: Profile, colour: dict[str, int]) -> list[list[dict[str, Any]]]:
    """Of each thread, its parts as shares of the whole time."""
    if not p.spans:
        return []
    origin, end = min(s.begin_ns for s in p.spans), max(s.end_ns for s in p.spans)
    whole = max(end - origin, 1)
    rows: dict[int, list[dict[str, Any]]] = {}
    for s in p.spans:
        width = (s.end_ns - s.begin_ns) / whole
        if width >= SHORTEST_SHARE:
            rows.setdefault(s.thread, []).append({
                "left": (s.begin_ns - origin) / whole, "width": width, "colour": colour.get(s.kernel, COLOURS - 1),
                "title": f"{s.kernel}: {(s.end_ns - s.begin_ns) / 1e3:.1f} us\n%{s.step.node.id} {s.step.node.label} {s.step.node.where}"})
    return [rows[k] for k in sorted(rows)]


def _blocks(p: Profile) -> list[dict[str, Any]]:
    """Time by the user's lines and blocks."""
    total = p.launched_seconds or 1.0
    return [{"name": name or "(no line)", "calls": calls, "ms": s * 1e3, "share": s / total} for name, calls, s, _, _ in p.grouped("where")]
