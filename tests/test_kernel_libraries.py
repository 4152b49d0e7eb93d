"""Which row of which kernel library serves a node: the hierarchy, what one row may ask, bands, refusals with their reasons."""
from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_rows import DEVICES, exp, filled, graph_of, lib, matmul, row
from samples import VECTORS
from typer.testing import CliRunner

from rlxpy import Builder, CompileOptions, DType, Graph, Op, Session, compile, settings, show, sym
from rlxpy.backends.cpu.backend import Cpu
from rlxpy.backends.reference import Reference
from rlxpy.cli import why
from rlxpy.cli.app import app
from rlxpy.compiler.session import served
from rlxpy.errors import AmbiguousRank, InputError, LegaliseError, RegistryError
from rlxpy.extend.backend import BackendSpec, Device
from rlxpy.extend.bands import narrowed
from rlxpy.extend.kernels import Choice, Constraint, KernelLibrary, KernelRow, KernelSearchPath, LayoutAnswer, Refusal, WeightLayout
from rlxpy.extend.libraries import kernel_registry, registered_libraries, unregister_kernel_library
from rlxpy.fusion.pipeline import run, standard
from rlxpy.ir.dtypes import Array
from rlxpy.tools.check import check_op

assert why, "its command is registered"


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with kernel_registry():
        yield


# ---- who is asked, and in which order ------------------------------------------------------------------------------
@pytest.mark.parametrize("device", DEVICES)
def test_a_library_of_a_guest_comes_before_the_bundled_ones_and_is_not_fused_away(device: str) -> None:
    lib("mine", row(7))
    f = compile(graph_of(lambda x: ((x + 1.0) * 2.0).exp() * 3.0 + x, (2, 3)), device=device)
    assert {s.node.label: s.choice.name for s in f.plan.steps}["exp"] == "mine/fills7"
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for _ in range(2):
        np.testing.assert_array_equal(f(x), 21 + x)
    assert [h.label for h in f.fusion.hits] == ["elementwise", "elementwise"], "its neighbours fuse without it"


@pytest.mark.parametrize("device", DEVICES)
def test_the_hierarchy_is_absolute_and_priority_acts_inside_one_library(device: str) -> None:
    first = lib("first", row(1, priority=-5), row(2, Constraint("x.dtype", "EQ", "f32"), args=("x",), priority=-4))
    second = lib("second", row(3, priority=99))
    for names, want in (((), 2), (("second", "first"), 3), (("first", "second"), 2), (("second",), 3)):
        f = compile(exp(2), device=device, options=CompileOptions(kernels=(*names, "builtin") if names else ()))
        np.testing.assert_array_equal(f(np.zeros(2, np.float32)), [want, want])
    only = compile(exp(2), device=device, options=CompileOptions(kernels=("builtin",)))
    np.testing.assert_array_equal(only(np.zeros(2, np.float32)), [1, 1])
    assert (first, second) == registered_libraries()


def test_the_reference_comes_last_wherever_it_is_registered() -> None:
    reference = KernelLibrary("slow", (row(1),), reference=True)
    path = KernelSearchPath((reference, KernelLibrary("fast", (row(2),))))
    assert [k.name for k in path.prefer(()).libraries] == ["fast", "slow"]
    assert [k.name for k in path.prefer(("slow",)).libraries] == ["slow"]


def test_the_bundled_reference_serves_a_compiled_device_only_when_it_is_asked_to() -> None:
    assert {s.choice.tier for s in compile(exp(2), device="cpu").plan.steps} == {"kernel"}
    asked = compile(exp(2), device="cpu", options=CompileOptions(kernels=("reference",)))
    assert [(s.choice.name, s.choice.tier) for s in asked.plan.steps] == [("reference/exp", "host")]
    np.testing.assert_array_equal(asked(np.zeros(2, np.float32)), [1, 1])


def test_a_name_that_is_no_library_is_an_error_that_lists_them() -> None:
    lib("mine", row(1))
    with pytest.raises(InputError, match=r"(?s)no kernel library 'mind'.*there are mine, reference, builtin.*near it: mine"):
        compile(exp(2), device="reference", options=CompileOptions(kernels=("mind",)))


def test_scopes_nest_end_and_stay_in_their_thread() -> None:
    lib("outer", row(1))
    with kernel_registry():
        lib("inner", row(2))
        assert [k.name for k in registered_libraries()] == ["inner", "outer"]
        elsewhere: list[int] = []
        thread = threading.Thread(target=lambda: elsewhere.append(len(registered_libraries())))
        thread.start()
        thread.join()
        assert elsewhere == [0]
    assert [k.name for k in registered_libraries()] == ["outer"]
    unregister_kernel_library("outer")
    with pytest.raises(RegistryError, match=r"no kernel library 'outer' is registered"):
        unregister_kernel_library("outer")


def test_a_session_notices_what_was_registered_since() -> None:
    session, graph, x = Session("reference"), exp(2), np.zeros(2, np.float32)
    got = [float(session.compile(graph)(x)[0])]
    lib("mine", row(5))
    got.append(float(session.compile(graph)(x)[0]))
    unregister_kernel_library("mine")
    lib("mine", row(6))
    got.append(float(session.compile(graph)(x)[0]))
    assert got == [1, 5, 6]


# ---- every refusal has its reason ----------------------------------------------------------------------------------
def packed() -> Graph:
    b = Builder()
    return b.finish(b.input("x", (2, 64)).qmatmul(b.param("w", (8, 68), DType.U8), encoding="q8_0", shape=(8, 64)))


S = sym("S", 1, 512)
REFUSALS: tuple[tuple[Graph, Constraint, str], ...] = (
    (matmul(), Constraint("K", "EQ", 128), "K EQ 128: K = 4160"),
    (matmul(), Constraint("K", "LE", 4096), "K LE 4096: K = 4160"),
    (matmul(), Constraint("M", "GE", 16), "M GE 16: M = 4"),
    (matmul(), Constraint("K", "DIV", 128), "K DIV 128: K = 4160"),
    (matmul(), Constraint("N", "IN", (16, 32)), "N IN (16, 32): N = 8"),
    (matmul(), Constraint("out.shape[-2]", "REACHES", 5), "out.shape[-2] REACHES 5: out.shape[-2] = 4"),
    (matmul(m=S), Constraint("M", "DIV", 2), "M DIV 2: M = S"),
    (matmul(), Constraint("device.features", "HAS", "amx"), "device.features HAS amx: device.features = ('sse2',)"),
    (matmul(), Constraint("device.wave", "EQ", 64), "device.wave EQ 64: device.wave = 32"),
    (matmul(), Constraint("device.lds", "GE", 65536), "device.lds GE 65536: device.lds is unknown"),
    (matmul(dtype=DType.F16), Constraint("x.dtype", "EQ", "f32"), "x.dtype EQ f32: x.dtype = f16"),
    (matmul(dtype=DType.F64), Constraint("in1.dtype", "IN", ("f32", "bf16")), "in1.dtype IN ('f32', 'bf16'): in1.dtype = f64"),
    (packed(), Constraint("attrs.encoding", "IN", ("q4_0",)), "attrs.encoding IN ('q4_0',): attrs.encoding = q8_0"),
    (graph_of(lambda x: x.softmax(axis=0), (3, 4)), Constraint("attrs.axis", "EQ", -1), "attrs.axis EQ -1: attrs.axis = 0"),
    (graph_of(lambda x: x.softmax(axis=0), (3, 4)), Constraint("N", "DIV", 2), "N DIV 2: N = 3"),
    (exp(3), Constraint("in0.rank", "EQ", 2), "in0.rank EQ 2: in0.rank = 1"),
    (exp(3), Constraint("in0.shape[1]", "EQ", 2), "in0.shape[1] EQ 2: in0.shape[1] is unknown"),
)
FACTS = {"wave": 32, "features": ("sse2",)}


@pytest.mark.parametrize(("graph", "constraint", "reason"), REFUSALS, ids=[r for _, _, r in REFUSALS])
def test_a_constraint_refuses_with_what_it_wants_and_what_it_got(graph: Graph, constraint: Constraint, reason: str) -> None:
    node = graph[graph.outputs[0]]
    path = KernelSearchPath((KernelLibrary("mine", (KernelRow("r", node.op, filled(1), constraints=(constraint,)),)),))
    assert path.resolve(graph, node, FACTS) == Refusal((f"mine/r refuses: {reason}",))


def weighted(answer: LayoutAnswer) -> KernelRow:
    return KernelRow("r", Op.MATMUL, filled(1), weights=(WeightLayout("w", lambda a: a, lambda a: a, lambda t: answer),))


@pytest.mark.parametrize(("what", "path", "device", "reason"), [
    ("domain", KernelSearchPath((KernelLibrary("l", (KernelRow("r", Op.MATMUL, "", domain="rocm"),)),), ("cpu", "host")), {}, "domain: its launch is for rocm, served are cpu, host"),
    ("machine", KernelSearchPath((KernelLibrary("l", (KernelRow("r", Op.MATMUL, ""),), needs=(Constraint("device.arch", "IN", ("gfx1201", "gfx942")),)),)), {"arch": "gfx90a"},
     "device.arch IN ('gfx1201', 'gfx942'): device.arch = gfx90a"),
    ("layout", KernelSearchPath((KernelLibrary("l", (weighted(LayoutAnswer.WRONG_SHAPE),)),)), {}, "layout of w: WRONG_SHAPE, f32[4160,8] is not a shape it can lay out"),
    ("encoding", KernelSearchPath((KernelLibrary("l", (weighted(LayoutAnswer.WRONG_ENCODING),)),)), {}, "layout of w: WRONG_ENCODING, f32[4160,8] is not an encoding it knows"),
    ("computed", KernelSearchPath((KernelLibrary("l", (weighted(LayoutAnswer.OK),)),)), {}, "layout of w: it is made by input, only a param is laid out at load"),
])
def test_everything_else_that_refuses_says_why_too(what: str, path: KernelSearchPath, device: dict[str, Any], reason: str) -> None:
    graph = matmul()
    assert path.resolve(graph, graph[graph.outputs[0]], device) == Refusal((f"l/r refuses: {reason}",))


def test_the_first_constraint_that_refuses_is_the_reason_and_the_winner_knows_who_lost() -> None:
    dtype, depth = Constraint("x.dtype", "EQ", "f32"), Constraint("K", "DIV", 128)
    rows = (KernelRow("fast", Op.MATMUL, filled(1), constraints=(dtype, depth), priority=1), KernelRow("any", Op.MATMUL, filled(2)))
    graph = matmul()
    choice = KernelSearchPath((KernelLibrary("mine", rows),)).resolve(graph, graph[graph.outputs[0]], {})
    assert isinstance(choice, Choice)
    assert (choice.name, choice.lost) == ("mine/any", (("mine/fast", "K DIV 128: K = 4160"),))


# ---- bands ---------------------------------------------------------------------------------------------------------
T, B = sym("T", 1, 40), sym("B", 4, 64, 4)
BANDED: tuple[tuple[str, tuple[KernelRow, ...], Graph], ...] = tuple((name, tuple(row(k + 2, *cs, op=Op.MATMUL) for k, cs in enumerate(rows)), graph) for name, rows, graph in (
    ("one edge", ((Constraint("M", "LE", 8),), ()), matmul(T, 6, 4)),
    ("three parts", ((Constraint("M", "EQ", 1),), (Constraint("M", "GE", 16),), ()), matmul(T, 6, 4)),
    ("a hole that the bundled rows fill", ((Constraint("M", "LE", 3),), (Constraint("M", "GE", 30),)), matmul(T, 6, 4)),
    ("of an expression", ((Constraint("M", "LE", 21), Constraint("M", "GE", 9)), ()), matmul(T * 2 + 1, 6, 4)),
    ("of a quotient", ((Constraint("M", "EQ", 3),), (Constraint("M", "LE", 6),)), matmul(T // 4 + 1, 6, 4)),
    ("in steps", ((Constraint("M", "LE", 10),), (Constraint("M", "GE", 50),)), matmul(B, 6, 4)),
    ("of two symbols", ((Constraint("M", "LE", 8), Constraint("N", "GE", 20)), (Constraint("N", "LE", 4),)), matmul(T, 6, B)),
    ("both edges outside", ((Constraint("M", "LE", 400),), (Constraint("M", "GE", 100),)), matmul(T, 6, 4)),
    ("what DIV says is true of every size or of none", ((Constraint("M", "DIV", 4), Constraint("M", "LE", 20)),), matmul(B, 6, 4)),
))


def sizes_of(graph: Graph) -> Iterator[dict[str, int]]:
    """Every one."""
    ranges = [range(s.lo, s.hi + 1, s.step) for s in graph.symbols.values()]
    yield from (dict(zip(graph.symbols, sizes, strict=True)) for sizes in product(*ranges))


@pytest.mark.parametrize(("name", "rows", "graph"), BANDED, ids=[b[0] for b in BANDED])
def test_a_band_has_the_row_that_each_of_its_sizes_alone_would_get(name: str, rows: tuple[KernelRow, ...], graph: Graph) -> None:
    lib("mine", *rows)
    spec = served(Reference().spec, CompileOptions())
    node = graph[graph.outputs[0]]
    choice = spec.verdict(graph, node)
    assert isinstance(choice, Choice)
    for sizes in sizes_of(graph):
        alone = spec.resolve(*narrowed(graph, node, sizes))
        assert isinstance(alone, Choice)
        assert choice.at(sizes).name == alone.name, sizes


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_takes_the_row_of_its_band(device: str) -> None:
    lib("mine", row(5, Constraint("M", "LE", 8), op=Op.MATMUL), row(6, Constraint("M", "GE", 17), Constraint("M", "LE", 20), op=Op.MATMUL))
    with settings.override(isa=VECTORS):  # matrix units would have a band of their own
        f = compile(graph_of(lambda x, w: (x @ w).relu(), (T, 6), (6, 4)), device=device, wait=True)
    (step,) = [s for s in f.plan.steps if s.node.op is Op.MATMUL]
    assert [when for when, _ in step.choice.bands] == [(("T", 1, 8),), (("T", 17, 20),)]
    rng = np.random.default_rng(0)
    for t in (1, 40, 8, 9, 16, 17, 20, 21, 8):
        x, w = rng.normal(size=(t, 6)).astype(np.float32), rng.normal(size=(6, 4)).astype(np.float32)
        want = np.full((t, 4), 5 if t <= 8 else 6, np.float32) if t <= 8 or 17 <= t <= 20 else np.maximum(x @ w, 0)
        np.testing.assert_allclose(f(x, w), want, rtol=1e-5, atol=1e-6)


def test_compiled_rows_of_several_bands_run_in_one_program() -> None:
    """The bundled emitter under two names: which of them ran, the profile tells."""
    (bundled,) = (r for r in Cpu().spec.kernels.libraries[0].rows if r.name == "matmul")
    rows = [KernelRow(n, Op.MATMUL, bundled.launch, constraints=c, domain="cpu", scratch_nbytes=bundled.scratch_nbytes)
            for n, c in (("small", (Constraint("M", "LE", 8),)), ("large", ()))]
    lib("mine", *rows)
    f = compile(matmul(T, 6, 4), device="cpu")
    rng = np.random.default_rng(0)
    for t, name in ((1, "mine/small"), (40, "mine/large"), (8, "mine/small"), (9, "mine/large")):
        x, w = rng.normal(size=(t, 6)).astype(np.float32), rng.normal(size=(6, 4)).astype(np.float32)
        np.testing.assert_allclose(f(x, w), x @ w, rtol=1e-5, atol=1e-6)
        assert {s.step.choice.name for s in f.profile(x, w)} == {name}


def test_sizes_that_nobody_serves_are_told_with_their_band() -> None:
    path = KernelSearchPath((KernelLibrary("only", (row(1, Constraint("M", "LE", 8), op=Op.MATMUL),)),))
    graph = matmul(T, 6, 4)
    spec = BackendSpec(Reference().spec.device, path, bands=True)
    assert spec.verdict(graph, graph[graph.outputs[0]]) == Refusal(("T in 9..40: only/fills1 refuses: M LE 8: M = T",))


# ---- rows for one geometry alone -----------------------------------------------------------------------------------
EXACT = tuple(Constraint(k, "EQ", v) for k, v in (("M", 4), ("K", 6), ("N", 8)))
F32, PLAIN = Constraint("x.dtype", "EQ", "f32"), Constraint("x.rank", "EQ", 2)


def test_two_rows_for_exactly_one_call_are_an_error_that_names_both() -> None:
    lib("mine", row(1, *EXACT, F32, op=Op.MATMUL, name="a"), row(2, *EXACT, PLAIN, op=Op.MATMUL, name="b"))
    with pytest.raises(AmbiguousRank, match=r"mine/a and mine/b both are for exactly this matmul : f32\[4,8\]\n  at: .*py:\d+") as caught:
        compile(matmul(4, 6, 8), device="reference")
    assert caught.value.why == "mine/a asks for x.dtype EQ f32; mine/b asks for x.rank EQ 2, and both have priority 0"
    compile(matmul(4, 6, 9), device="reference")  # a call that neither is for


@pytest.mark.parametrize(("first", "second", "want"), [
    (row(1, *EXACT, F32, op=Op.MATMUL), row(2, *EXACT, PLAIN, op=Op.MATMUL, priority=1), 2),   # one has priority
    (row(1, *EXACT, F32, op=Op.MATMUL), row(2, *EXACT, op=Op.MATMUL), 1),                        # one asks for more
    (row(1, *EXACT[:2], F32, op=Op.MATMUL), row(2, *EXACT[:2], PLAIN, op=Op.MATMUL), 1),         # neither is for one geometry
    (row(1, *EXACT, F32, op=Op.MATMUL), row(2, *EXACT, Constraint("x.dtype", "EQ", "f64"), op=Op.MATMUL), 1),  # one refuses
])
def test_other_ties_are_decided_as_ever(first: KernelRow, second: KernelRow, want: int) -> None:
    lib("mine", first, second)
    assert compile(matmul(4, 6, 8), device="reference").plan.steps[0].choice.name == f"mine/fills{want}"


def test_a_row_that_refuses_everyday_calls_is_checked_on_those_it_is_made_for() -> None:
    def sums(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
        outs[0][...] = np.exp(ins[0])

    deep = Constraint("x.shape[-1]", "DIV", 128)
    for shapes, result in (((), "not run"), ((((3, 128),), ((0, 256),)), "ok"), ((((3, 64),),), "not run")):
        with kernel_registry():
            lib("mine", KernelRow("deep", Op.EXP, sums, args=("x",), constraints=(deep,), opd_shapes=shapes))
            (found,) = [c for c in check_op("exp", devices=("reference",)).checks if c.law == "kernel mine/deep"]
        assert found.result == result, found
        assert bool(shapes) or "x.shape[-1] DIV 128" in found.skipped
    with kernel_registry():
        lib("mine", KernelRow("deep", Op.EXP, filled(1), args=("x",), constraints=(deep,), opd_shapes=(((3, 128),),)))
        assert "kernel mine/deep" in {c.law for c in check_op("exp", devices=("reference",)).of("FAILED")}


# ---- asking why ----------------------------------------------------------------------------------------------------
def test_the_report_has_every_row_of_an_op_with_the_reason_it_lost() -> None:
    lib("mine", row(5, Constraint("M", "LE", 8), op=Op.MATMUL, name="small", describe=lambda g, n: f"for {g.type(n.inputs[0])}"), row(6, Constraint("x.dtype", "EQ", "f16"), op=Op.MATMUL, name="half"))
    f = compile(matmul(T, 6, 4), device="reference")
    (node,) = f.selection().nodes
    small, large = node.decisions
    assert (small.when, small.winner, small.does) == ((("T", 1, 8),), "mine/small", "for f32[T,6]")
    assert small.lost == (("mine/half", "x.dtype EQ f16: x.dtype = f32"), ("reference/matmul", "mine/small comes first"))
    assert (large.when, large.winner) == ((("T", 9, 40),), "reference/matmul")
    assert large.lost == (("mine/small", "M LE 8: M = T"), ("mine/half", "x.dtype EQ f16: x.dtype = f32"))
    assert "T in 9..40: reference/matmul [kernel]" in f.explain()
    assert "not mine/half: x.dtype EQ f16: x.dtype = f32" in f.explain()
    assert f.selection().of("matmul").nodes == f.selection().of(f"%{node.node}").nodes == (node,)
    assert f.selection().of("exp").nodes == ()


def test_rows_that_one_thing_stands_against_share_a_line() -> None:
    half, small = Constraint("x.dtype", "EQ", "f16"), Constraint("M", "LE", 1)
    lib("mine", *(row(k, c, op=Op.MATMUL, name=name, priority=k) for k, (name, c) in enumerate({"a": half, "b": small, "c": half}.items())))
    (node,) = compile(matmul(3, 6, 4), device="reference").selection().nodes
    assert node.lines == ["  reference/matmul [kernel], [.., m, k] @ [.., k, n], leading axes broadcast", "    not mine/c, mine/a: x.dtype EQ f16: x.dtype = f32", "    not mine/b: M LE 1: M = 3"]


def test_equal_decisions_are_told_once() -> None:
    f = compile(graph_of(lambda x: x.softmax(axis=0).softmax(axis=0).softmax(axis=0), (3, 4)), device="reference")
    assert str(f.selection()).count("reference/softmax") == 1
    assert "and 2 more like it" in str(f.selection())


def test_rlx_why_prints_and_picks(tmp_path: Path) -> None:
    file = tmp_path / "g.rlx"
    file.write_text(show(matmul()))
    lib("mine", row(5, Constraint("K", "DIV", 128), op=Op.MATMUL, name="deep"))
    done = CliRunner().invoke(app, ["why", str(file), "--device", "reference"])
    assert done.exit_code == 0, done.output
    assert "    not mine/deep: K DIV 128: K = 4160" in done.stdout
    picked = json.loads(CliRunner().invoke(app, ["why", str(file), "--device", "reference", "--node", "matmul", "--kernels", "builtin", "--json"]).stdout)
    assert [d["winner"] for n in picked["nodes"] for d in n["decisions"]] == ["reference/matmul"]
    file.write_text(show(graph_of(lambda x, w: (x @ w).relu(), (4, 8), (8, 8))))
    fused = json.loads(CliRunner().invoke(app, ["why", str(file), "--device", "cpu", "--node", "matmul", "--json"]).stdout)
    assert [n["op"] for n in fused["nodes"]] == ["fused matmul"]
    missing = CliRunner().invoke(app, ["why", str(file), "--device", "reference", "--node", "exp"])
    assert missing.exit_code == 1
    assert "no node 'exp' is launched" in missing.output


def test_all_that_is_missing_is_told_at_once_before_anything_is_compiled() -> None:
    only = (row(1, Constraint("x.dtype", "EQ", "f16"), op=Op.MATMUL, name="half"), *(KernelRow(op.text, op, "") for op in (Op.NEG,)))
    spec = BackendSpec(Device("toy"), KernelSearchPath((KernelLibrary("toy", only),)))
    with pytest.raises(LegaliseError) as e:
        run(graph_of(lambda x, w: (x @ w).sort()[0].neg(), (2, 3), (3, 4)), standard(spec))
    assert "toy cannot run 2 nodes" in str(e.value)
    assert "toy/half refuses: x.dtype EQ f16: x.dtype = f32" in str(e.value)
    assert "no kernel row serves sort" in str(e.value)
