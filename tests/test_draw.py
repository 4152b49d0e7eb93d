"""Drawings: no box on another, no line through a box, frames that never wait in a circle, pages that a browser can trust."""
from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import networkx as nx
import numpy as np
import pytest

import rlxpy
from rlxpy import Graph, Op
from rlxpy.compiler.devices import choose
from rlxpy.fusion.pipeline import standard
from rlxpy.tools.draw.dot import dot
from rlxpy.tools.draw.folding import convex, scope_path
from rlxpy.tools.draw.layered import Hop, Item, Layout, layout
from rlxpy.tools.draw.page import page
from rlxpy.tools.draw.picture import Picture, picture, pictures
from rlxpy.tools.trace import trace

SPEC = choose("reference").backend.spec
SEEDS = range(12)


def drawn(graph: Graph, max_boxes: int = 150) -> Picture:
    return picture(graph, SPEC, max_boxes=max_boxes)


# ---- layout
def random_items(seed: int) -> tuple[list[Item], list[tuple[int, int]]]:
    """Items in nested frames, cut so that frames do not wait in a circle: each frame is a stretch of the order."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 60))
    outer = np.cumsum(rng.random(count) < 0.15)
    inner = np.cumsum(rng.random(count) < 0.3)
    frames = [(f"a{outer[i]}", f"b{inner[i]}")[:seed % 3] for i in range(count)]
    items = [Item(float(rng.integers(20, 200)), float(rng.integers(10, 60)), frames[i], bool(rng.random() < 0.3)) for i in range(count)]
    edges = [(int(a), i) for i in range(1, count) for a in rng.integers(max(0, i - 20), i, rng.integers(0, 4))]
    return items, edges


def overlaps(a: tuple[float, float, float, float], b: tuple[float, float, float, float], slack: float = 0.01) -> bool:
    return a[0] < b[0] + b[2] - slack and b[0] < a[0] + a[2] - slack and a[1] < b[1] + b[3] - slack and b[1] < a[1] + a[3] - slack


def box(made: Layout, items: list[Item], i: int) -> tuple[float, float, float, float]:
    return (*made.places[i], items[i].width, items[i].height)


def points(hop: Hop) -> Iterator[tuple[float, float]]:
    """The line as the browser draws it: down, a cubic curve with upright ends, down."""
    (x0, y0), (x1, y1), (upper, lower) = hop.start, hop.end, hop.bend
    for t in np.linspace(0, 1, 8):
        yield x0, y0 + t * (upper - y0)
        yield x1, lower + t * (y1 - lower)
    for t in np.linspace(0, 1, 16):
        weights = np.array([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3])
        yield float(weights @ [x0, x0, x1, x1]), float(weights @ [upper, (upper + lower) / 2, (upper + lower) / 2, lower])


@pytest.mark.parametrize("seed", SEEDS)
def test_boxes_do_not_overlap_and_lie_in_their_frames_alone(seed: int) -> None:
    items, edges = random_items(seed)
    made = layout(items, edges)
    boxes = [box(made, items, i) for i in range(len(items))]
    for i, a in enumerate(boxes):
        assert 0 <= a[0] <= made.width - a[2]
        assert 0 <= a[1] <= made.height - a[3]
        assert not any(overlaps(a, b) for b in boxes[:i])
        for f in made.frames:
            inside = items[i].frame[:len(f.path)] == f.path
            assert overlaps(a, f[1:]) == inside
            if inside:
                assert f.x < a[0]
                assert f.y < a[1]
                assert a[0] + a[2] < f.x + f.width
                assert a[1] + a[3] < f.y + f.height
    for f in made.frames:
        for g in made.frames:
            nested = f.path[:len(g.path)] == g.path or g.path[:len(f.path)] == f.path
            assert nested or not overlaps(f[1:], g[1:])


@pytest.mark.parametrize("seed", SEEDS)
def test_every_edge_is_a_line_from_its_source_down_to_its_target(seed: int) -> None:
    items, edges = random_items(seed)
    made = layout(items, edges)
    reached: set[tuple[int, int]] = set()
    for source in {h.source for h in made.hops}:
        hops = [h for h in made.hops if h.source == source]
        x, y, w, height = box(made, items, source)
        front = [h for h in hops if abs(h.start[0] - (x + w / 2)) < 0.01 and abs(h.start[1] - (y + height)) < 0.01]
        seen: list[Hop] = []
        while front:
            at = front.pop()
            seen.append(at)
            assert at.start[1] <= at.bend[0] <= at.bend[1] <= at.end[1]
            front += [h for h in hops if h not in seen and np.allclose(h.start, at.end, atol=0.01)]
            if at.target >= 0:
                tx, ty, tw, _ = box(made, items, at.target)
                assert tx <= at.end[0] <= tx + tw
                assert at.end[1] == pytest.approx(ty)
                reached.add((source, at.target))
        assert len(seen) == len(hops), "a piece hangs in the air"
    assert reached == set(edges)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_line_runs_through_a_box(seed: int) -> None:
    items, edges = random_items(seed)
    made = layout(items, edges)
    boxes = [box(made, items, i) for i in range(len(items))]
    for hop in made.hops:
        for x, y in points(hop):
            assert not any(b[0] + 0.1 < x < b[0] + b[2] - 0.1 and b[1] + 0.1 < y < b[1] + b[3] - 0.1 for b in boxes)


def test_layout_is_the_same_every_time_and_takes_nothing() -> None:
    items, edges = random_items(3)
    assert layout(items, edges) == layout(items, edges)
    assert layout([], []).places == ()


# ---- folding
@pytest.mark.parametrize("seed", SEEDS)
def test_pieces_of_groups_never_wait_in_a_circle(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 40
    sources = {i: {int(a) for a in rng.integers(0, i, rng.integers(0, 3))} if i else set() for i in range(count)}
    group = {i: f"g{rng.integers(0, 5)}" for i in range(count) if rng.random() < 0.8}
    piece = convex(range(count), lambda i: sources[i], group)
    quotient = nx.DiGraph((piece[a], piece[b]) for b, near in sources.items() for a in near if piece[a] != piece[b])
    assert nx.is_directed_acyclic_graph(quotient)
    assert list(piece) == list(range(count))
    assert all(name == group.get(i, i) for i, (name, _) in piece.items())
    assert convex(range(count), lambda i: sources[i], group, most=2) == {}


def test_a_group_that_can_be_one_piece_is_one() -> None:
    chain = convex(range(6), lambda i: [i - 1] if i else [], {1: "a", 2: "a", 3: "b", 4: "b"})
    assert len(set(chain.values())) == 4


def test_a_number_belongs_to_the_word_before_it() -> None:
    assert scope_path("layers.3.self_attn") == ("layers.3", "self_attn")
    assert scope_path("a.b2.3.4.c") == ("a", "b2.3.4", "c")
    assert scope_path("") == ()


def layered_model(sizes: list[int]) -> Graph:
    """Blocks layers.0, layers.1, .. of so many nodes each."""
    b = rlxpy.Builder("model")
    x = b.input("x", (4,))
    for i, size in enumerate(sizes):
        with b.scope(f"layers.{i}"):
            x = x * b.param(f"w{i}", (4,))
            for _ in range(size):
                x = x.tanh().exp()
    return b.finish(x)


def test_equal_blocks_are_drawn_once_and_the_drawing_says_so() -> None:
    p = drawn(layered_model([3, 3, 3, 3, 5, 3]), max_boxes=30)
    assert p.folded == ("layers.1 .. layers.3 (3 blocks, 21 nodes): the same as layers.0", "layers.5 (1 block, 7 nodes): the same as layers.0")
    assert [b.title for b in p.boxes if b.kind == "fold"] == ["layers.1 .. layers.3", "layers.5"]
    assert {f for f in p.frames if f} == {("layers.0",), ("layers.4",)}


def test_nothing_is_folded_that_fits() -> None:
    p = drawn(layered_model([3, 3, 3]), max_boxes=30)
    assert p.folded == ()
    assert len(p.boxes) == 1 + 3 * 7 + 1


def test_blocks_that_differ_become_one_box_each_before_anything_else_does() -> None:
    p = drawn(layered_model([1, 2, 3, 4, 5, 6, 7, 8]), max_boxes=12)
    assert [b.title for b in p.boxes][1:9] == [f"layers.{i}" for i in range(8)]
    assert p.folded[7] == "layers.7: 17 nodes in one box"


@pytest.mark.parametrize("blocks", [False, True])
def test_a_graph_of_any_size_keeps_to_the_limit(blocks: bool) -> None:
    b = rlxpy.Builder("large")
    x = y = b.input("x", (4,))
    for i in range(4000):
        with b.scope(("a", "b")[i % 2] if blocks else "all"):
            x, y = (y + x).tanh(), x
    p = drawn(b.finish(x, y), max_boxes=20)
    assert len(p.boxes) <= 22
    assert p.folded
    assert layout([Item(10, 10, f) for f in p.frames], p.edges).places


# ---- pictures
def small(name: str = "x") -> Graph:
    b = rlxpy.Builder("small")
    s = rlxpy.sym("S", 1, 8)
    x, kept = b.input(name, (s, 4)), b.state("sum", (4,))
    with b.scope("mlp"):
        h = (x @ b.param("block.mlp.w", (4, 4)) + b.param("bias", (4,))).gelu()
    y = h.sum(axes=(0,)) + kept
    b.update(kept, y)
    return b.finish(h, y, names=["h", "<y>"])


def test_a_picture_shows_every_node_once_and_weights_where_they_are_read() -> None:
    g = small()
    p = drawn(g)
    titles = [b.title for b in p.boxes]
    assert sorted(titles) == sorted(["x", "sum", "matmul", "add", "gelu", "sum", "add", "h", "<y>", "sum"])
    matmul = p.boxes[titles.index("matmul")]
    assert matmul.kind == "product"
    assert matmul.operands == ("mlp.w f32[4,4]",)
    assert matmul.scope == ("mlp",)
    facts = dict(matmul.facts)
    assert facts["type"] == "f32[S,4]"
    assert facts["bytes"] == "at most 192 read, 128 written"
    assert facts["kernel"] == "reference/matmul, kernel"
    assert facts["line"].startswith(f"{__file__}:")
    order = {k: k for k in range(len(p.boxes))}
    assert all(order[a] < order[b] for a, b in p.edges)


def test_boxes_made_by_a_pass_are_marked_and_fused_ones_carry_their_chain() -> None:
    stages = trace(small(), standard(SPEC))
    last = {stages[k].name: p for k, p in pictures(stages, SPEC).items()}
    assert not any(b.fresh for b in last["input"].boxes)
    fresh = [b for b in last["fuse"].boxes if b.fresh]
    assert [(b.title, b.kind) for b in fresh] == [("fused matmul", "fused"), ("fused reduce", "fused")]
    assert fresh[0].lines[0] == "matmul > add > gelu"
    assert fresh[0].body is not None
    assert Op.GELU in {n.op for n in fresh[0].body}


def test_near_misses_are_listed() -> None:
    b = rlxpy.Builder("miss")
    x = b.input("x", (2, 3, 4))
    d = (x * x).mean(axes=(-1,), keep=True) + 1e-5
    y = x * d.rsqrt() * b.param("scale", (3, 4))
    stages = trace(b.finish(y), standard(SPEC))
    missed = [m for t in read(page(stages, SPEC))[1]["tabs"] for m in t["missed"]]
    assert [m.partition(":")[0] for m in missed] == ["near miss rms_norm"]
    assert f"({__file__}:" in missed[0]


# ---- Graphviz text
TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|->|[\w.]+|[{}\[\]=;,])')


def tokens(text: str) -> list[str]:
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        m = TOKEN.match(text, at)
        assert m, f"no Graphviz token: {text[at:at + 40]!r}"
        found.append(m[1])
        at = m.end()
    return found


@pytest.mark.parametrize("name", ["x", 'a"b\\n', "\\", "<b>&amp;", "new\nline", "}"])
def test_dot_is_one_digraph_whatever_names_are(name: str) -> None:
    found = tokens(dot(drawn(small(name))))
    assert found[:1] == ["digraph"]
    depth = 0
    for k, t in enumerate(found):
        depth += (t == "{") - (t == "}")
        assert depth > 0 or k < 3 or k == len(found) - 1
    assert depth == 0
    defined = {found[k] for k in range(len(found) - 1) if found[k + 1] == "[" and re.fullmatch(r"n\d+", found[k])}
    arrows = [(found[k - 1], found[k + 1]) for k, t in enumerate(found) if t == "->"]
    assert len(arrows) == len(drawn(small()).edges)
    assert {end for pair in arrows for end in pair} <= defined
    assert len(defined) == len(drawn(small()).boxes)


def test_dot_draws_blocks_as_clusters() -> None:
    assert re.search(r'subgraph "cluster [^"]*" \{ label="layers.0"', dot(drawn(layered_model([1, 1]))))


# ---- the page
class Reader(HTMLParser):
    """Elements with attributes, and the text of each script."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data


def read(text: str) -> tuple[Reader, Any]:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader, json.loads(reader.scripts[0])


def test_the_page_has_a_tab_for_every_pass_and_facts_for_every_box() -> None:
    stages = trace(small(), standard(SPEC))
    reader, data = read(page(stages, SPEC, "title"))
    assert [t["name"] for t in data["tabs"]] == [s.name for s in stages]
    assert [t["count"] for t in data["tabs"]] == [len(s.graph) for s in stages]
    assert [a["data-tab"] for tag, a in reader.elements if a.get("role") == "tab"] == [str(k) for k in range(len(stages))]
    drawings = [a for tag, a in reader.elements if tag == "section"]
    assert len(drawings) == len(data["drawings"]) == sum(s.changed for s in stages)
    shown = [a for tag, a in reader.elements if tag == "g" and "box" in str(a.get("class"))]
    chains = sum(tag == "template" for tag, _ in reader.elements)
    assert chains >= 1
    assert len(shown) > sum(len(d["boxes"]) for d in data["drawings"])  # and those of the chains
    fused = [b for d in data["drawings"] for b in d["boxes"] if b["chain"] is not None]
    assert {b["chain"] for b in fused} == set(range(chains))


def test_the_page_needs_no_network() -> None:
    text = page(trace(small(), standard(SPEC)), SPEC)
    reader, _ = read(text)
    for tag, attrs in reader.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not {"src", "href", "srcset", "action"} & attrs.keys(), (tag, attrs)
    assert "default-src 'none'" in text
    assert set(re.findall(r"url\(([^)]*)\)", text)) == {"#tip"}
    assert set(re.findall(r"https?://[\w./]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address


@pytest.mark.parametrize("name", ["</script><script>alert(1)</script>", "<!--", "\" onload=\"alert(1)", "&lt;", "{{ 7 * 7 }}", "{% raw %}"])
def test_names_from_files_stay_text(name: str) -> None:
    plain, strange = (read(page(trace(small(n), standard(SPEC)), SPEC, n)) for n in ("x", name))
    assert [tag for tag, _ in strange[0].elements] == [tag for tag, _ in plain[0].elements]
    assert [sorted(a) for _, a in strange[0].elements] == [sorted(a) for _, a in plain[0].elements]
    assert name in {b["title"] for b in strange[1]["drawings"][0]["boxes"]}
