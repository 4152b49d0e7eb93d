"""Kernel libraries of others: the hierarchy, what one row may ask, bands, refusals with their reasons, and what a library may not be."""
from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import VECTORS
from typer.testing import CliRunner

from rlxpy import Builder, CompileOptions, DType, Graph, Op, Session, compile, settings, show, sym
from rlxpy.backends.cpu.backend import Cpu
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.backends.reference import Reference
from rlxpy.cli import why
from rlxpy.cli.app import app
from rlxpy.compiler.session import served
from rlxpy.errors import AbiMismatch, AmbiguousRank, InputError, LegaliseError, RegistryError, RlxError, SchemaConflict
from rlxpy.extend.backend import BackendSpec, Device
from rlxpy.extend.bands import narrowed
from rlxpy.extend.kernels import (
    Choice,
    Constraint,
    KernelLibrary,
    KernelRow,
    KernelSearchPath,
    LayoutAnswer,
    Refusal,
    Tunable,
    WeightLayout,
    points,
)
from rlxpy.extend.libraries import kernel_registry, register_kernel_library, registered_libraries, unregister_kernel_library
from rlxpy.extend.schema import OpSchema, Param
from rlxpy.fusion.pipeline import run, standard
from rlxpy.ir.dims import Dim
from rlxpy.ir.dtypes import Array
from rlxpy.tools.check import check_op

DEVICES = ["reference", "cpu"]
assert why, "its command is registered"


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with kernel_registry():
        yield


def filled(value: float) -> Callable[[Sequence[Array], Sequence[Array], Mapping[str, Any]], None]:
    """A kernel that is wrong in a way of its own, so that results tell which one ran."""
    def launch(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
        outs[0][...] = value
    return launch


def lib(name: str, *rows: KernelRow, **more: Any) -> KernelLibrary:
    return register_kernel_library(KernelLibrary(name, rows, **more))


def row(value: float, *constraints: Constraint, op: Op = Op.EXP, name: str = "", **more: Any) -> KernelRow:
    return KernelRow(name or f"fills{value:g}", op, filled(value), constraints=constraints, **more)


def graph_of(f: Callable[..., Any], *shapes: tuple[Dim, ...], dtype: Any = DType.F32) -> Graph:
    b = Builder()
    return b.finish(f(*(b.input(f"x{i}", s, dtype) for i, s in enumerate(shapes))))


def exp(*shape: Dim, dtype: Any = DType.F32) -> Graph:
    return graph_of(lambda x: x.exp(), shape, dtype=dtype)


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
def matmul(m: Dim = 4, k: Dim = 4160, n: Dim = 8, dtype: Any = DType.F32) -> Graph:
    return graph_of(lambda x, w: x @ w, (m, k), (k, n), dtype=dtype)


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


# ---- parameters ----------------------------------------------------------------------------------------------------
def test_derived_parameters_and_tunables_reach_the_kernel() -> None:
    seen: list[dict[str, Any]] = []

    def launch(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
        seen.append(dict(attrs))
        np.exp(ins[0], out=outs[0])
    lib("mine", KernelRow("r", Op.EXP, launch, constraints=(Constraint("N", "LE", 9), Constraint("block", "EQ", 64)), tunables=(Tunable("unroll", (1, 2, 4), 2),)),
        ops=(OpSchema(Op.EXP, ("x",), (Param("N", "x.shape[-1]"), Param("block"))),))
    f = compile(exp(3), device="cpu")
    assert f.plan.steps[0].choice.name == "mine/r"
    f(np.zeros(3, np.float32))
    assert seen == [{"block": 64, "unroll": 2}]


def test_the_first_schema_of_an_op_stands_and_a_different_one_names_both_sides() -> None:
    schema = OpSchema(Op.EXP, ("x",), (Param("N", "x.shape[-1]"),))
    lib("first", row(1), ops=(schema,))
    lib("same", row(2), ops=(OpSchema(Op.EXP, ("x",), (Param("N", "x.shape[-1]"),), doc="other words"),))
    with pytest.raises(SchemaConflict, match=r"two schemas of exp: of 'first' and of 'other'\n.*params N = x.shape\[-1\] and N = x.shape\[0\]"):
        lib("other", row(3), ops=(OpSchema(Op.EXP, ("x",), (Param("N", "x.shape[0]"),)),))
    with pytest.raises(SchemaConflict, match=r"of 'rlxpy' and of 'mine'\n.*operands x, w and a, b"):
        lib("mine", row(3), ops=(OpSchema(Op.MATMUL, ("a", "b"), (Param("K", "a.shape[-1]"),)),))
    assert [k.name for k in registered_libraries()] == ["first", "same"], "nothing is left of those refused"


def test_points_of_tunables_begin_with_the_default_and_are_those_that_can_be_launched() -> None:
    r = row(1, tunables=(Tunable("a", (1, 2), 2), Tunable("b", (1, 3), 1)), tune_valid=lambda p: p["a"] * p["b"] != 3)
    assert list(points(r)) == [{"a": 2, "b": 1}, {"a": 1, "b": 1}, {"a": 2, "b": 3}]


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


# ---- what a library may not be -------------------------------------------------------------------------------------
WRONG: tuple[tuple[Callable[[], Any], type[Exception], str], ...] = (
    (lambda: Constraint("K", "MOD", 4), RegistryError, "no test 'MOD'\n.*EQ, IN"),
    (lambda: Constraint("x.dtype", "IN", "f32"), RegistryError, "compares with a collection, not str"),
    (lambda: Constraint("K", "DIV", 0), RegistryError, "a whole number above 0"),
    (lambda: Constraint("K", "LE", "8"), RegistryError, "a whole number, not str"),
    (lambda: KernelLibrary("l", (row(1), row(2))), RegistryError, "rows 'fills1' and 'fills2' cannot be told apart"),
    (lambda: KernelLibrary("l", (row(1, tunables=(Tunable("a", (1, 2), 3),)),)), RegistryError, "tunable a cannot be 3\n.*1, 2"),
    (lambda: KernelLibrary("l", (row(1, tunables=tuple(Tunable(n, tuple(range(9)), 0) for n in "abcd")),)), RegistryError, "6561 points to tune"),
    (lambda: KernelLibrary("l", (row(1, tunables=(Tunable("a", (1, 2), 1),), tune_valid=lambda p: p["a"] > 1),)), RegistryError, r"tune_valid\({'a': 1}\) is False"),
    (lambda: KernelLibrary("l", (row(1, Constraint("attrs.axs", "EQ", 0), op=Op.SOFTMAX),)), RegistryError, "asks for 'attrs.axs'\n.*softmax has axis"),
    (lambda: KernelLibrary("l", (row(1, Constraint("y.dtype", "EQ", "f32"), op=Op.MATMUL),)), RegistryError, "asks for 'y.dtype'\n.*operands are w, x"),
    (lambda: KernelLibrary("l", (row(1, Constraint("Q", "EQ", 1), op=Op.MATMUL),)), RegistryError, "asks for 'Q'\n.*K, M, N"),
    (lambda: KernelLibrary("l", (row(1, op=Op.MATMUL, weights=(WeightLayout("q", abs, abs),)),)), RegistryError, "lays out 'q'"),
    (lambda: KernelLibrary("l", (row(1, domain="cpu", init=lambda g, n: None),)), RegistryError, "init and fini are for the host domain"),
    (lambda: KernelLibrary("l", (row(1, replaces=lambda x: x.exp()),)), RegistryError, "replaces a chain but serves exp"),
    (lambda: lib("l", row(1), abi=9), AbiMismatch, "written for version 9 of KernelRow\n.*version 1"),
    (lambda: lib("builtin", row(1)), RegistryError, "the name 'builtin' of a kernel library is taken"),
    (lambda: (lib("l", row(1)), lib("l", row(1))), RegistryError, "the name 'l' of a kernel library is taken"),
    (lambda: register_kernel_library("l"), RegistryError, "str is not a KernelLibrary"),  # type: ignore[arg-type]
    (lambda: (lib("cpu", row(1)), compile(exp(2), device="cpu")), RegistryError, "(?s)'cpu' has the name of one of cpu's own.*cpu, reference"),
)


@pytest.mark.parametrize(("make", "error", "words"), WRONG, ids=[w[2][:40] for w in WRONG])
def test_what_cannot_be_a_library_is_told_when_it_is_made(make: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


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


# ---- hooks ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", DEVICES)
def test_init_is_called_for_each_executable_and_fini_when_it_is_gone(device: str) -> None:
    told: list[str] = []

    def init(graph: Graph, node: Any) -> list[int]:
        told.append(f"init {graph.type(node.inputs[0])}")
        return []

    def launch(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
        attrs["state"].append(1)
        outs[0][...] = len(attrs["state"])
    lib("mine", KernelRow("counts", Op.EXP, launch, init=init, fini=lambda state: told.append(f"fini after {len(state)}")))
    f = compile(exp(2), device=device)
    x = np.zeros(2, np.float32)
    assert [float(f(x)[0]) for _ in range(3)] == [1, 2, 3]
    assert set(told) <= {"init f32[2]", "fini after 0"}, "the tier before compiled code has a state of its own"
    del f
    gc.collect()
    assert told.count("fini after 3") == 1
    assert told.count("init f32[2]") == sum(t.startswith("fini") for t in told)


def reversed_rows(a: Array) -> Array:
    return a[::-1]


def upside_down(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    """A product with weights whose rows lie in the other order."""
    np.matmul(ins[0], ins[1][::-1], out=outs[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hoisted", [False, True])
def test_a_weight_is_laid_out_at_load_and_again_when_it_is_set(device: str, hoisted: bool) -> None:
    lib("mine", KernelRow("r", Op.MATMUL, upside_down, weights=(WeightLayout("w", reversed_rows, reversed_rows),)))
    rng = np.random.default_rng(0)
    x, first, second = (rng.normal(size=s).astype(np.float32) for s in ((2, 5), (5, 3), (5, 3)))
    b = Builder()
    w = b.param("w", (5, 3))
    f = compile(b.finish(b.input("x", (2, 5)) @ (w * 2.0 if hoisted else w)), {"w": first}, device=device)
    assert [n.name for n in f.plan.graph.params] == ["hoisted.0@mine/r" if hoisted else "w@mine/r"]
    for now in (first, second, first):
        f.set_param("w", now)
        np.testing.assert_allclose(f(x), x @ (now * 2 if hoisted else now), rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("param_first", [True, False])
def test_a_row_that_lays_out_weights_takes_no_computed_operand_of_the_same_type(device: str, param_first: bool) -> None:
    """What was said of one product is not said of another, whose right side is no weight."""
    lib("mine", KernelRow("r", Op.MATMUL, upside_down, weights=(WeightLayout("w", reversed_rows, reversed_rows),)))
    x, y, w = np.random.default_rng(0).normal(size=(3, 5, 5)).astype(np.float32)
    b = Builder()
    left, right, weight = b.input("x", (5, 5)), b.input("y", (5, 5)), b.param("w", (5, 5))
    rights = (weight, right) if param_first else (right, weight)
    f = compile(b.finish(*(left @ r for r in rights)), {"w": w}, device=device)
    for got, r in zip(f(x, y), rights, strict=True):
        np.testing.assert_allclose(got, x @ (w if r is weight else y), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("relayout", "unrelayout", "words"), [
    (reversed_rows, lambda a: a, "unrelayout does not undo relayout of 'w'"),
    (lambda a: a * 2, lambda a: a / 3, "unrelayout does not undo"),
    (lambda a: a[:2], reversed_rows, r"relayout of 'w' gives float32\[2, 3\]\n.*the weight is float32\[5, 3\]"),
    (lambda a: a.astype(np.float64), reversed_rows, r"relayout of 'w' gives float64"),
])
def test_a_layout_that_is_no_bijection_is_refused_at_load(relayout: Any, unrelayout: Any, words: str) -> None:
    lib("mine", KernelRow("r", Op.MATMUL, upside_down, weights=(WeightLayout("w", relayout, unrelayout),)))
    b = Builder()
    graph = b.finish(b.input("x", (2, 5)) @ b.param("w", (5, 3)))
    with pytest.raises(RegistryError, match=f"(?s)row mine/r: {words}"):
        compile(graph, {"w": np.arange(1, 16, dtype=np.float32).reshape(5, 3)}, device="reference")


@pytest.mark.parametrize("answer", [LayoutAnswer.AS_STORED, LayoutAnswer.ANY])
def test_a_weight_that_is_read_as_stored_keeps_its_bytes(answer: LayoutAnswer) -> None:
    lib("mine", KernelRow("r", Op.MATMUL, lambda ins, outs, attrs: np.matmul(ins[0], ins[1], out=outs[0]), weights=(WeightLayout("w", abs, abs, lambda t: answer),)))
    w = -np.ones((5, 3), np.float32)
    b = Builder()
    f = compile(b.finish(b.input("x", (2, 5)) @ b.param("w", (5, 3))), {"w": w}, device="cpu")
    assert [n.name for n in f.plan.graph.params] == ["w"]
    assert f.plan.steps[0].choice.name == "mine/r"
    np.testing.assert_array_equal(f(np.ones((2, 5), np.float32)), np.full((2, 3), -5))


# ---- chains that a row replaces ------------------------------------------------------------------------------------
def gate(x: Any, g: Any) -> Any:
    return (g * 2.0).relu() * x


def gated(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    np.multiply(np.maximum(ins[1] * np.float32(2), 0), ins[0], out=outs[0])


GATE = KernelRow("gate", Op.FUSED, gated, kind="acme.gate", replaces=gate, constraints=(Constraint("in0.dtype", "EQ", "f32"),))


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_takes_the_place_of_exactly_its_chain(device: str) -> None:
    lib("mine", GATE)
    f = compile(graph_of(lambda x, g: gate(x + 1.0, g).exp(), (2, 3), (2, 3)), device=device, options=CompileOptions(debug=True))
    assert "mine/gate" in [s.choice.name for s in f.plan.steps]
    x, g = np.random.default_rng(0).normal(size=(2, 2, 3)).astype(np.float32)
    for _ in range(2):
        np.testing.assert_allclose(f(x, g), np.exp(np.maximum(g * 2, 0) * (x + 1)), rtol=1e-5)


@pytest.mark.parametrize(("f", "dtype", "reason"), [
    (lambda x, g: gate(x, g), DType.F64, "in0.dtype EQ f32: in0.dtype = f64"),
    (lambda x, g: gate(x, g) + (g * 2.0).relu(), DType.F32, "others read %4 relu"),
])
def test_where_it_cannot_it_says_why_and_the_plain_ops_stay(f: Any, dtype: Any, reason: str) -> None:
    lib("mine", GATE)
    c = compile(graph_of(f, (2, 3), (2, 3), dtype=dtype), device="reference")
    assert "mine/gate" not in [s.choice.name for s in c.plan.steps]
    assert any(reason in n.text for n in c.fusion.near_misses), c.fusion


def test_another_constant_is_another_chain() -> None:
    lib("mine", GATE)
    c = compile(graph_of(lambda x, g: (g * 3.0).relu() * x, (2, 3), (2, 3)), device="reference")
    assert "mine/gate" not in [s.choice.name for s in c.plan.steps]


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_that_is_merely_close_is_caught_in_debug_mode(device: str) -> None:
    def close(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
        gated(ins, outs, attrs)
        outs[0].reshape(-1)[-1:] = np.nextafter(outs[0].reshape(-1)[-1:], np.float32(9))
    lib("mine", KernelRow("gate", Op.FUSED, close, kind="acme.gate", replaces=gate))
    f = compile(graph_of(gate, (2, 3), (2, 3)), device=device, options=CompileOptions(debug=True))
    with pytest.raises(RlxError, match=r"(?s)mine/gate is not the chain that it replaces.*1 of 6 elements of output 0 differ; at 5"):
        f(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))


# ---- what is wrong whatever it is asked ----------------------------------------------------------------------------
LIKE_NONE = {
    "an op as text": ({"op": "exp"}, "its op is 'exp'"), "no function": ({"launch": 3}, "its launch is 3"),
    "no name": ({"name": ""}, "its name is ''"), "a constraint as text": ({"constraints": ("x EQ 3",)}, "its constraints"), "a priority as text": ({"priority": "high"}, "its priority"),
    "a call that is a shape": ({"opd_shapes": ((3, 128),)}, "its opd_shapes"),
    "one constraint": ({"constraints": Constraint("out.dtype", "EQ", "f32")}, "its constraints"), "args as text": ({"args": "xy"}, "its args"),
    "a hook as a number": ({"scratch_nbytes": 64}, "its scratch_nbytes"),
    "a point that cannot be judged": ({"tune_valid": lambda point: 1 // 0}, "its tune_valid failed"),
}


@pytest.mark.parametrize(("fields", "words"), LIKE_NONE.values(), ids=LIKE_NONE)
def test_a_row_that_is_like_none_is_refused_when_its_library_is_made(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RegistryError, match=words):
        KernelLibrary("mine", (KernelRow(**{"name": "e", "op": Op.EXP, "launch": filled(1), **fields}),))


@pytest.mark.parametrize(("fields", "words"), [
    ({"rows": [KernelRow("e", Op.EXP, filled(1))]}, "its rows"), ({"rows": KernelRow("e", Op.EXP, filled(1))}, "its rows"), ({"rows": "abc"}, "its rows"), ({"name": ""}, "its name"),
    ({"name": "a,b"}, "divide lists"), ({"name": "a/b"}, "divide lists"), ({"needs": (Constraint("x.dtype", "EQ", "f32"),)}, "needs 'x.dtype'"), ({"needs": ("gfx942",)}, "its needs")])
def test_a_library_that_is_like_none_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RegistryError, match=words):
        KernelLibrary(**{"name": "mine", "rows": (), **fields})


FAULTY: dict[str, list[tuple[dict[str, Any], str]]] = {  # a row's hook, where it is met, and what is said
    "scratch_nbytes": [({"scratch_nbytes": lambda g, n: 1 // 0}, "its scratch_nbytes failed[^$]*ZeroDivisionError"), ({"scratch_nbytes": lambda g, n: -1}, "its scratch_nbytes is -1"),
                       ({"scratch_nbytes": lambda g, n: 2.5}, "its scratch_nbytes is 2.5")],
    "init": [({"init": lambda g, n: 1 // 0}, "its init failed[^$]*ZeroDivisionError")],
    "describe": [({"describe": lambda g, n: 1 // 0}, "its describe failed")],
    "layout": [({"op": Op.MATMUL, "weights": (WeightLayout("in1", lambda w: w, lambda w: w, lambda t: 1 // 0),)}, "its layout failed"),  # type: ignore[arg-type, return-value]
               ({"op": Op.MATMUL, "weights": (WeightLayout("in1", lambda w: w, lambda w: w, lambda t: "OK"),)}, "its layout of in1 is 'OK'")],  # type: ignore[arg-type, return-value]
    "relayout": [({"op": Op.MATMUL, "weights": (WeightLayout("in1", lambda w: w[99], lambda w: w),)}, "its relayout failed[^$]*IndexError"),
                 ({"op": Op.MATMUL, "weights": (WeightLayout("in1", lambda w: w, lambda w: w[99]),)}, "its unrelayout failed[^$]*IndexError")],
    "launch": [({"launch": "void f() {}"}, "its launch is 'void f"), ({"launch": lambda ins, outs, attrs: np.exp(ins[0])}, "it returns ndarray, where its results go into `outs`"),
               ({"launch": lambda ins, outs, attrs: 1 // 0}, "ZeroDivisionError")],
    "emitter": [({"launch": lambda ins, outs, attrs: None, "domain": "cpu"}, "its emitter failed[^$]*TypeError")],
}


@pytest.mark.parametrize(("fields", "words"), [case for some in FAULTY.values() for case in some], ids=[f"{hook} {k}" for hook, some in FAULTY.items() for k in range(len(some))])
def test_a_hook_that_fails_is_named_with_its_row(fields: dict[str, Any], words: str) -> None:
    if fields.get("domain") == "cpu" and isinstance(why := find_compiler(), str):
        pytest.skip(f"no generated code, because {why}")
    lib("mine", KernelRow(**{"name": "faulty", "op": Op.EXP, "launch": lambda ins, outs, attrs: None, **fields}))
    b = Builder("g")
    y = b.input("x", (2, 3)).exp() if fields.get("op") is not Op.MATMUL else b.input("x", (2, 3)) @ b.param("w", (3, 4))

    def used() -> None:
        f = compile(b.finish(y), {"w": np.ones((3, 4), np.float32)}, device=fields.get("domain", "reference"), wait=True)
        f.explain()
        f(np.ones((2, 3), np.float32))

    with pytest.raises(RlxError, match=words):
        used()


def test_an_output_that_was_filled_may_be_returned() -> None:
    lib("mine", KernelRow("e", Op.EXP, lambda ins, outs, attrs: np.exp(ins[0], out=outs[0])))
    b = Builder("g")
    np.testing.assert_array_equal(compile(b.finish(b.input("x", (2,)).exp()))(np.zeros(2, np.float32)), 1)
