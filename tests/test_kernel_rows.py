"""What a kernel row brings: parameters, hooks, weights laid out anew, chains that it replaces; and what neither a row nor a library may be."""
from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from kernel_rows import DEVICES, exp, filled, graph_of, lib, row

from rlxpy import Builder, CompileOptions, DType, Graph, Op, compile
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.errors import AbiMismatch, RegistryError, RlxError, SchemaConflict
from rlxpy.extend.kernels import Constraint, KernelLibrary, KernelRow, LayoutAnswer, Tunable, WeightLayout, points
from rlxpy.extend.libraries import kernel_registry, register_kernel_library, registered_libraries
from rlxpy.extend.schema import OpSchema, Param
from rlxpy.ir.dtypes import Array


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with kernel_registry():
        yield


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
