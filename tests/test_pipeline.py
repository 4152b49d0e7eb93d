"""The road as a whole: passes in order, a guilty one named, lines kept, and random graphs that mean the same at its end."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from random_graphs import MAKERS, assert_same, random_arrays, random_graph, random_sizes

from rlxpy import Builder, CompileOptions, DType, Graph, Op, RlxError, Value, compile
from rlxpy.backends.reference import Reference
from rlxpy.errors import InputError, VerifyError
from rlxpy.extend.passes import pass_registry, register_ir_pass
from rlxpy.fusion.canonicalise import Canonicalise
from rlxpy.fusion.pipeline import passes_named, run, standard
from rlxpy.fusion.rebuild import rebuild
from rlxpy.fusion.regions import Fuse
from rlxpy.fusion.rules import CANONICAL
from rlxpy.ir.attrs import Axis, Cast
from rlxpy.ir.graph import Ref
from rlxpy.ir.op import LEAVES
from rlxpy.ir.pattern import rules, var
from rlxpy.ir.types import TensorType

SPEC = Reference().spec


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with pass_registry():
        yield


# ---- random graphs from end to end ---------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(200))
def test_optimised_is_unoptimised(seed: int) -> None:
    """In debug mode, with state, at two sizes of every symbol, each twice in a row."""
    sample = random_graph(seed)
    g, rng = sample.graph, np.random.default_rng(seed)
    params = random_arrays(g.params, {}, rng)
    fast, plain = (compile(g, params, options=CompileOptions(optimise=o, debug=True)) for o in (True, False))
    for _ in range(2):
        sizes = random_sizes(g, rng)
        for turn in range(2):
            given = random_arrays(g.inputs, sizes, rng, special=turn == 1)
            for name, t, x, y in zip(g.output_names, g.output_types, fast.run(given, sizes=sizes), plain.run(given, sizes=sizes), strict=True):
                assert_same(x, y, t.dtype, f"{sample} {name} at {sizes}, turn {turn}", loose=name in sample.loose_outputs)


def test_random_graphs_cover_the_op_table() -> None:
    assert set(MAKERS) == set(Op) - LEAVES - {Op.FUSED, Op.CUSTOM}
    met = {n.op for seed in range(200) for n in random_graph(seed).graph}
    assert met >= set(Op) - {Op.FUSED, Op.CUSTOM}


# ---- order, notes, watching ----------------------------------------------------------------------------------------
def sample() -> Graph:
    b = Builder()
    x, w = b.input("x", (3, 4)), b.param("w", (4, 4))
    s = b.state("s", (3, 4))
    y = (x @ w + s).relu() * 1.0
    return b.finish(y, y.neg().neg().softmax(axis=-1), names=("y", "p"), updates=[(s, y)])


def test_every_pass_is_watched_timed_and_counted() -> None:
    seen: list[tuple[str, int]] = []
    g = sample()
    after, report = run(g, standard(SPEC), lambda name, graph: seen.append((name, len(graph))))
    assert seen[0] == ("input", len(g))
    assert seen[1:] == [(r.name, r.nodes_after) for r in report.runs]
    assert seen[-1][1] == len(after)
    assert [r.nodes_before for r in report.runs] == [n for _, n in seen[:-1]]
    assert all(r.seconds >= 0 for r in report.runs)
    names = [r.name for r in report.runs]
    assert names[0] == "canonicalise"
    assert names[-1] == "legalise"
    assert names.index("lower-extensions") < names.index("find-composites") < names.index("fuse")
    assert {n.pass_name for n in report.notes} <= set(names)


def test_an_idempotent_pass_does_not_run_again_on_its_own_result() -> None:
    tidy = Canonicalise()
    _, report = run(sample(), (tidy, tidy, Canonicalise()))
    assert len(report.runs) == 1
    x = var("x")
    other = Canonicalise(CANONICAL + rules((Op.RELU(x), lambda x: x.maximum(0.0))))
    after, report = run(sample(), (tidy, other))
    assert len(report.runs) == 2  # the same name, other rules
    assert Op.MAXIMUM in {n.op for n in after}


def test_unoptimised_runs_the_ops_as_they_were_written() -> None:
    g = sample()
    assert run(g, standard(SPEC, optimise=False))[0] == g


def test_passes_by_name() -> None:
    assert [p.name for p in passes_named(("fuse", "canonicalise"), SPEC)] == ["fuse", "canonicalise"]
    with pytest.raises(InputError, match=r"no pass 'fus'\n.*there are canonicalise.*\n.*near it: fuse"):
        passes_named(("fus",), SPEC)


# ---- guilty passes -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Do:
    """A pass made of a function."""

    what: Callable[[Graph], Any]
    name: str = "guilty"

    def __call__(self, graph: Graph) -> Graph:
        return self.what(graph)  # type: ignore[no-any-return]


def patched(**changes: Any) -> Callable[[Graph], Graph]:
    """The softmax changed without care; a function of its id gives the new value."""
    def change(g: Graph) -> Graph:
        return replace(g, nodes=tuple(replace(n, **{k: v(n.id) if callable(v) else v for k, v in changes.items()}) if n.op is Op.SOFTMAX else n for n in g))
    return change


def instead(make: Callable[[Builder, Value], Any]) -> Callable[[Graph], Graph]:
    """Something else in place of the softmax, made with care."""
    return lambda g: rebuild(g, lambda b, n, xs, new: make(b, xs[0]) if n.op is Op.SOFTMAX else None, "guilty")


def without_inputs(graph: Graph) -> Graph:
    return rebuild(graph, lambda b, n, xs, new: b.const(np.zeros((3, 4), np.float32)) if n.op is Op.INPUT else None, "guilty")


def dropped(graph: Graph) -> Graph:
    """Builder keeps inputs, so a pass must go behind its back to lose one."""
    clean = without_inputs(graph)
    kept = [n for n in clean if n.op is not Op.INPUT]
    new = {n.id: k for k, n in enumerate(kept)}
    nodes = tuple(replace(n, id=new[n.id], inputs=tuple(Ref(new[r.node], r.out) for r in n.inputs)) for n in kept)
    return replace(clean, nodes=nodes, outputs=tuple(Ref(new[r.node]) for r in clean.outputs), updates=tuple((Ref(new[s.node]), Ref(new[v.node])) for s, v in clean.updates))


F32 = DType.F32
GUILTY: dict[str, tuple[Callable[[Graph], Any], str]] = {
    "raises": (lambda g: dict[str, Graph]()["missing"], "pass 'guilty' failed\n.*KeyError: 'missing'"),
    "raises our error": (instead(lambda b, x: x @ x), "pass 'guilty' failed\n.*\n.*BuildError: matmul"),
    "gives nothing": (lambda g: None, "pass 'guilty' gave NoneType, not a Graph"),
    "gives text": (str, "gave str"),
    "adds a type": (patched(types=(TensorType((3, 4), F32), TensorType((), F32))), "broke the graph\n.*\n.*its row infers"),
    "breaks a shape": (patched(types=(TensorType((4, 3), F32),)), "broke the graph"),
    "reads ahead": (patched(inputs=lambda i: (Ref(i + 1),)), "is not defined before it"),
    "reads itself": (patched(inputs=lambda i: (Ref(i),)), "is not defined before it"),
    "reads what is not": (patched(inputs=(Ref(0, 3),)), "is not defined before it"),
    "forgets an operand": (patched(inputs=()), "takes 1 inputs, got 0"),
    "takes foreign parameters": (patched(attrs=Cast(F32)), "its parameters are Cast, softmax takes Axis"),
    "writes nonsense": (patched(attrs=Axis("x")), "broke the graph\n.*axis='x'"),  # type: ignore[arg-type]
    "numbers wrongly": (patched(id=77), "its id is 77"),
    "drops an input": (dropped, "changed the signature\n.*inputs 'x': f32\\[3,4\\] became none"),
    "changes an output's type": (instead(lambda b, x: x.cast(to="f64")), "changed the signature\n.*outputs .*f32.* became .*f64"),
    "renames an output": (lambda g: replace(g, output_names=("y", "q")), "changed the signature\n.*'p'.*became.*'q'"),
    "swaps the outputs": (lambda g: replace(g, outputs=g.outputs[::-1], output_names=g.output_names[::-1]), "changed the signature"),
    "drops an output": (lambda g: replace(g, outputs=g.outputs[:1], output_names=g.output_names[:1]), "changed the signature"),
    "names too few": (lambda g: replace(g, output_names=g.output_names[:1]), "2 outputs are named 'y'"),
    "has no such output": (lambda g: replace(g, outputs=(Ref(999), Ref(0))), "result %999 does not exist"),
    "forgets the state": (lambda g: replace(g, updates=()), "states 's': f32\\[3,4\\] became none"),
    "updates no state": (lambda g: replace(g, updates=((Ref(0), Ref(0)),)), "broke the graph\n.*update %0"),
    "updates twice": (lambda g: replace(g, updates=g.updates * 2), "broke the graph\n.*updated once"),
    "updates nothing that is": (lambda g: replace(g, updates=((Ref(500), Ref(0)),)), "result %500 does not exist"),
    "invents a weight": (instead(lambda b, x: b.param("new", x.shape)), "added params\n.*nobody has weights for new"),
}


@pytest.mark.parametrize("fault", GUILTY)
def test_the_guilty_pass_is_named(fault: str) -> None:
    what, words = GUILTY[fault]
    with pytest.raises(VerifyError, match=words) as e:
        run(sample(), (Canonicalise(), Do(lambda g: g, "innocent"), Do(what)))
    assert "'guilty'" in e.value.what
    assert "innocent" not in str(e.value)
    register_ir_pass(Do(what))
    with pytest.raises(VerifyError, match="'guilty'"):
        compile(sample(), {"w": np.ones((4, 4), np.float32)})


def test_a_constant_whose_type_is_not_its_own() -> None:
    b = Builder()
    g = b.finish(b.input("x", (3,)) + b.const(np.ones(3, np.float32)))
    with pytest.raises(VerifyError, match="it holds Constant"):
        run(g, (Do(lambda g: replace(g, nodes=(g[0], replace(g[1], types=(TensorType((1,), F32),)), *g.nodes[2:]))),))


def test_a_watcher_sees_the_passes_before_the_guilty_one() -> None:
    seen: list[str] = []
    with pytest.raises(VerifyError):
        run(sample(), (Canonicalise(), Do(lambda g: None), Fuse()), lambda name, graph: seen.append(name))
    assert seen == ["input", "canonicalise"]


# ---- provenance ----------------------------------------------------------------------------------------------------
def test_lines_and_passes_are_kept_through_every_pass() -> None:
    b, lines = Builder(), dict[str, int]()

    def line(name: str, v: Value) -> Value:
        lines[name] = sys._getframe(1).f_lineno
        return v

    x = line("x", b.input("x", (3, 8)))
    w = line("w", b.param("w", (8, 8)))
    h = line("matmul", x @ w)
    h = line("neutral", h * 1.0)
    h = line("bias", h + 0.5)
    h = line("tanh", h.tanh())
    with b.scope("norm"):
        d = line("centred", h - h.mean(axes=(-1,), keep=True))
        v = line("variance", (d * d).mean(axes=(-1,), keep=True))
        y = line("norm", d / (v + 1e-5).sqrt())
    z = line("softcap", b.const(2.0) * (y / 2.0).tanh())
    g = b.finish(z)
    assert {n.loc.line for n in g} == set(lines.values()) - {lines["w"], lines["x"]} | {n.loc.line for n in (*g.inputs, *g.params)}

    def check(name: str, graph: Graph) -> None:
        for n in graph:
            assert (n.loc.file, n.loc.line in lines.values()) == (__file__, True), (name, n)
            for _, body in n.attrs.graphs():
                assert all(m.op is Op.INPUT or m.loc.line in lines.values() for m in body), (name, n)

    after, report = run(g, standard(SPEC), check)
    found = {n.kind or n.op.text: n for n in after if n.inputs}
    assert {k: n.loc.line for k, n in found.items()} == {"matmul": lines["tanh"], "rows": lines["softcap"]}
    norm = next(n for _, body in found["rows"].attrs.graphs() for n in body if n.op is Op.LAYER_NORM)
    assert (norm.loc.line, norm.loc.scope) == (lines["norm"], "norm")
    assert "find-composites" in norm.made_by
    assert "fuse" in found["matmul"].made_by
    (body,) = (g for _, g in found["matmul"].attrs.graphs())
    assert [n.loc.line for n in body if n.inputs] == [lines["matmul"], lines["bias"], lines["tanh"]]
    assert all(str(n.where).startswith(__file__) for n in report.notes)


@pytest.mark.parametrize("seed", range(40))
def test_no_node_of_a_random_graph_loses_its_line(seed: int) -> None:
    def check(name: str, graph: Graph) -> None:
        for n in graph:
            assert n.loc.file.endswith("random_graphs.py"), (seed, name, n)
            assert len(set(n.made_by)) <= len(n.made_by)
    run(random_graph(seed).graph, standard(SPEC), check)


def test_an_error_in_a_run_names_the_line_and_the_passes_since() -> None:
    b = Builder()
    line = sys._getframe().f_lineno + 1
    y = b.input("x", (3,)).gather(b.input("i", (1,), "i64"), axis=0) * 1.0
    with pytest.raises(RlxError) as e:
        compile(b.finish(y.exp())).run(np.ones(3, np.float32), np.array([7]))
    assert f"{__file__}:{line}" in e.value.where
