"""Canonical form: every rule has its pair of graphs and holds bit for bit, folding is what the run would have done, twice is once."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from random_graphs import assert_same, random_arrays, random_graph, random_sizes

from rlxpy import Builder, CompileOptions, DType, Graph, Op, RlxError, compile, parse, show, sym
from rlxpy.errors import BuildError, IndexOutOfRange
from rlxpy.fusion.canonicalise import Canonicalise
from rlxpy.fusion.pipeline import run
from rlxpy.fusion.rules import CANONICAL
from rlxpy.ir.dims import Dim
from rlxpy.ir.dtypes import Array
from rlxpy.ir.pattern import RuleSet, rules, var
from rlxpy.ir.refs import evaluate
from rlxpy.ir.verify import verify

Types = Sequence[tuple[str, tuple[Dim, ...]]]  # dtype and shape of each input
FLOATS = ("f32", "f64", "f16", "bf16", "f8e4m3fn")
SIGNED = ("i32", "i8", "i64")
UNSIGNED = ("u8", "u32")
INTS = (*SIGNED, *UNSIGNED)


def built(f: Callable[..., Any], types: Types) -> Graph:
    b = Builder()
    made = f(*(b.input(f"x{i}", shape, d) for i, (d, shape) in enumerate(types)))
    return b.finish(*(made if isinstance(made, tuple) else (made,)))


def canonical(g: Graph) -> Graph:
    return verify(Canonicalise()(g))


def special(shape: Sequence[int], d: DType, turn: int) -> Array:
    """NaN, infinities, both zeros, the ends of the range; `turn` shifts them, so that two inputs meet in every pairing."""
    if d is DType.BOOL:
        values: list[Any] = [True, False]
    elif d.is_integer:
        values = [*d.range, 0, 1, 2, *((-1,) if d.range[0] else ())]
    else:
        values = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.5, 1e-45, 3e38, 448.0]
    with np.errstate(all="ignore"):
        return np.resize(np.roll(np.asarray(values), turn).astype(d.numpy), shape)


def assert_equal_bits(a: Graph, b: Graph, sizes: dict[str, int] | None = None) -> None:
    """Over special values, NaN being one value."""
    for turn in range(10):
        got, want = (evaluate(g := graph.bind(sizes or {}), {n.id: special([int(d) for d in n.type.shape], n.type.dtype, turn * i) for i, n in enumerate(g.inputs)})
                     for graph in (b, a))
        for x, y, t in zip(got, want, a.output_types, strict=True):
            assert_same(x, y, t.dtype, show(a), loose=False)


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with np.errstate(all="ignore"):
        yield


# ---- the rules, each as a pair -------------------------------------------------------------------------------------
V, M = (6,), (2, 3)
ROW, WIDE = (3,), (4, 2, 3)
PAIRS: dict[str, tuple[Sequence[str], Sequence[tuple[Dim, ...]], Callable[..., Any], Callable[..., Any]]] = {
    "x + -0.0": (FLOATS, [V], lambda x: x + -0.0, lambda x: x),
    "-0.0 + x": (FLOATS, [V], lambda x: -0.0 + x, lambda x: x),
    "x - 0.0": (FLOATS, [V], lambda x: x - 0.0, lambda x: x),
    "x - 0": (INTS, [V], lambda x: x - 0, lambda x: x),
    "x * 1.0": (FLOATS, [V], lambda x: x * 1.0, lambda x: x),
    "1 * x": (INTS, [V], lambda x: 1 * x, lambda x: x),
    "x * ones": (FLOATS, [M], lambda x: x * x.builder.const(np.ones((1, 3)).astype(x.dtype.numpy)), lambda x: x),
    "x / 1.0": (FLOATS, [V], lambda x: x / 1.0, lambda x: x),
    "1.0 / x": (FLOATS, [V], lambda x: 1.0 / x, lambda x: x.recip()),
    "x + 0": (INTS, [V], lambda x: x + 0, lambda x: x),
    "x * 0": (INTS, [V], lambda x: x * 0, lambda x: x.builder.const(np.zeros(V, x.dtype.numpy))),
    "x - x": (INTS, [V], lambda x: x - x, lambda x: x.builder.const(np.zeros(V, x.dtype.numpy))),
    "x // 1": (INTS, [V], lambda x: x // 1, lambda x: x),
    "neg neg": ((*FLOATS, *INTS, "c64"), [V], lambda x: x.neg().neg(), lambda x: x),
    "abs abs": ((*FLOATS, *INTS), [V], lambda x: x.abs().abs(), lambda x: x.abs()),
    "abs neg": ((*FLOATS, *SIGNED), [V], lambda x: (-x).abs(), lambda x: x.abs()),
    "relu relu": ((*FLOATS, *INTS), [V], lambda x: x.relu().relu(), lambda x: x.relu()),
    "not not": (("bool",), [V], lambda x: x.logical_not().logical_not(), lambda x: x),
    "x and True": (("bool",), [V], lambda x: x.logical_and(True), lambda x: x),
    "x and False": (("bool",), [V], lambda x: x.logical_and(False), lambda x: x.builder.const(np.zeros(V, np.bool_))),
    "False or x": (("bool",), [V], lambda x: x.logical_or(False), lambda x: x),
    "x or True": (("bool",), [V], lambda x: x.logical_or(True), lambda x: x.builder.const(np.ones(V, np.bool_))),
    "bit_not bit_not": ((*INTS, "bool"), [V], lambda x: ~~x, lambda x: x),
    "maximum(x, x)": ((*FLOATS, *INTS), [V], lambda x: x.maximum(x), lambda x: x),
    "minimum(x, x)": ((*FLOATS, *INTS), [V], lambda x: x.minimum(x), lambda x: x),
    "where(c, x, x)": ((*FLOATS, "i8"), [M], lambda x: x.is_nan().where(x, x) if x.dtype.is_float else x.eq(0).where(x, x), lambda x: x),
    "where(wide c, x, x)": (("bool",), [WIDE, ROW], lambda c, x: c.where(x, x), lambda c, x: x.expand(shape=WIDE)),
    "where that widens both ways": (("bool",), [(2, 1), ROW], lambda c, x: c.where(x, x), lambda c, x: x.expand(shape=M)),
    "transpose transpose": (FLOATS, [WIDE], lambda x: x.transpose(perm=(1, 2, 0)).transpose(perm=(2, 1, 0)), lambda x: x.transpose(perm=(0, 2, 1))),
    "transpose and back": (FLOATS, [WIDE], lambda x: x.transpose(perm=(1, 2, 0)).transpose(perm=(2, 0, 1)), lambda x: x),
    "transpose by nothing": (FLOATS, [M], lambda x: x.transpose(perm=(0, 1)), lambda x: x),
    "reshape reshape": (FLOATS, [M], lambda x: x.reshape(shape=(6,)).reshape(shape=(3, 2)), lambda x: x.reshape(shape=(3, 2))),
    "reshape and back": (FLOATS, [M], lambda x: x.reshape(shape=(6,)).reshape(shape=M), lambda x: x),
    "reshape to itself": (FLOATS, [M], lambda x: x.reshape(shape=M), lambda x: x),
    "expand expand": (FLOATS, [(1, 3)], lambda x: x.expand(shape=(2, 3)).expand(shape=WIDE), lambda x: x.expand(shape=WIDE)),
    "expand to itself": (FLOATS, [M], lambda x: x.expand(shape=M), lambda x: x),
    "whole slice": (FLOATS, [M], lambda x: x.slice(start=(0, 0), stop=(2, 3), step=(1, 1)), lambda x: x),
    "slice slice": (FLOATS, [(20,)], lambda x: x.slice(start=(1,), stop=(19,), step=(3,)).slice(start=(1,), stop=(6,), step=(2,)),
                    lambda x: x.slice(start=(4,), stop=(17,), step=(6,))),
    "slice slice, symbolic": (FLOATS, [(sym("S", 6, 12), 2)], lambda x: x[1:][2:-1], lambda x: x[3:-1]),
    "reverse and back": (FLOATS, [M], lambda x: x.reverse(axes=(1,)).reverse(axes=(1,)), lambda x: x),
    "pad by nothing": (FLOATS, [M], lambda x: x.pad(low=(0, 0), high=(0, 0), value=1.0), lambda x: x),
    "concat of one": (FLOATS, [M], lambda x: x.apply("concat", (x,), {"axis": 0}), lambda x: x),
}
SPELT = [(name, d) for name, (dtypes, *_) in PAIRS.items() for d in dtypes]


@pytest.mark.parametrize(("name", "d"), SPELT, ids=[f"{n}, {d}" for n, d in SPELT])
def test_a_rule_turns_one_graph_into_the_other(name: str, d: str) -> None:
    _, shapes, f, simpler = PAIRS[name]
    before, after = (built(g, [(d, s) for s in shapes]) for g in (f, simpler))
    assert canonical(before) == canonical(after) == after
    assert_equal_bits(before, after, {"S": 7})


def test_every_rule_has_a_pair() -> None:
    idle = set(CANONICAL.rules)
    for dtypes, shapes, f, _ in PAIRS.values():
        g = built(f, [(dtypes[-1], s) for s in shapes])
        idle -= {r for r in idle if Canonicalise(RuleSet((r,))).noted(g)[1]}
    assert not idle


KEPT: dict[str, tuple[Sequence[str], Sequence[tuple[Dim, ...]], Callable[..., Any]]] = {
    "x + 0.0 turns -0.0 into 0.0": (FLOATS, [V], lambda x: x + 0.0),
    "x - -0.0 turns -0.0 into 0.0": (FLOATS, [V], lambda x: x - -0.0),
    "x * 0.0 keeps NaN, and gives NaN for inf": (FLOATS, [V], lambda x: x * 0.0),  # A01
    "x - x is NaN for inf": (FLOATS, [V], lambda x: x - x),
    "0.0 - x is not -x for 0.0": (FLOATS, [V], lambda x: 0.0 - x),
    "x // 1.0 rounds": (FLOATS, [V], lambda x: x // 1.0),
    "x / x is NaN for 0 and inf": (FLOATS, [V], lambda x: x / x),
    "pow(x, 1.0)": (FLOATS, [V], lambda x: x ** 1.0),
    "abs(-x) of unsigned": (UNSIGNED, [V], lambda x: (-x).abs()),  # -1 is 255
    "maximum(x, -inf)": (FLOATS, [V], lambda x: x.maximum(-np.inf)),
    "minimum(-0.0, x) stays in this order": (("f32", "f64"), [V], lambda x: x.builder.const(-0.0, x.dtype).minimum(x)),
    "a factor that widens": (FLOATS, [ROW], lambda x: x * x.builder.const(np.ones((2, 3)).astype(x.dtype.numpy))),
    "a term that adds an axis": (INTS, [ROW], lambda x: x + x.builder.const(np.zeros((1, 3)).astype(x.dtype.numpy))),
    "two slices of which one may be empty": (FLOATS, [(sym("S", 1, 9) + 4,)], lambda x: x[4:-1][::2]),
    "two slices that take nothing": (FLOATS, [V], lambda x: x[4:4][::2]),
    "casts there and back": (("f32",), [V], lambda x: x.cast(to="f16").cast(to="f32")),
    "a cast to its own type": (FLOATS, [V], lambda x: x.cast(to=x.dtype)),  # the user wrote it
    "reverse of other axes": (FLOATS, [M], lambda x: x.reverse(axes=(0,)).reverse(axes=(1,))),
    "slices with steps": (FLOATS, [V], lambda x: x.slice(start=(0,), stop=(6,), step=(2,))),
}
SPARED = [(name, d) for name, (dtypes, *_) in KEPT.items() for d in dtypes]


@pytest.mark.parametrize(("name", "d"), SPARED, ids=[f"{n}, {d}" for n, d in SPARED])
def test_what_would_change_a_value_is_kept(name: str, d: str) -> None:
    _, shapes, f = KEPT[name]
    g = built(f, [(d, s) for s in shapes])
    assert canonical(g) == g
    assert_equal_bits(g, canonical(g), {"S": 3})


def test_multiplication_by_zero() -> None:  # A01
    x = np.array([1, np.nan, np.inf, -np.inf, -2], np.float32)
    for zero in (0.0, np.zeros(5, np.float32), np.zeros(1, np.float32)):
        for g in (built(lambda x, z=zero: x * x.builder.const(z), [("f32", (5,))]), built(lambda x, z=zero: x.builder.const(z) * x, [("f32", (5,))])):
            got = compile(g).run(x)
            np.testing.assert_array_equal(got, [0, np.nan, np.nan, np.nan, 0])
            assert np.signbit(got[4])


# ---- folding -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(60))
def test_constants_fold_to_what_a_run_gives(seed: int) -> None:
    """The same graph with its inputs as inputs, and as constants."""
    sample = random_graph(seed)
    rng = np.random.default_rng(seed)
    sizes = random_sizes(sample.graph, rng)
    g = sample.graph.bind(sizes)
    given = random_arrays(g.inputs, sizes, rng, special=True)
    params = random_arrays(g.params, sizes, rng)
    b = Builder()
    made = b.inline(g, [b.const(given[n.name]) for n in g.inputs])
    fixed = b.finish(*made, names=g.output_names)
    got = compile(fixed, params).run()
    want = compile(g, params, options=CompileOptions(optimise=False)).run(given)
    for name, x, y, t in zip(g.output_names, got, want, g.output_types, strict=True):
        assert_same(x, y, t.dtype, f"{sample} {name}", loose=name in sample.loose_outputs)


def test_everything_from_constants_becomes_one_constant() -> None:
    b = Builder()
    x = b.const(np.array([3.0, np.nan, -1.0], np.float32))
    values, at = x.sort(axis=0, descending=False)
    g = canonical(b.finish(values, at, (x * 2.0).sum(axes=(0,)), x.max(axes=(0,))))
    assert {n.op for n in g} == {Op.CONST}
    folded, order, total, top = (g[r].attrs.value.array for r in g.outputs)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(folded, [-1, 3, np.nan])
    np.testing.assert_array_equal(order, [2, 0, 1])
    assert np.isnan(total)
    assert np.isnan(top)


@pytest.mark.parametrize("index", [5, -6])
def test_an_index_out_of_range_raises_in_the_run_not_in_the_compiler(index: int) -> None:  # A16
    b = Builder()
    compiled = compile(b.finish(b.const(np.arange(10.0).reshape(5, 2)).gather(b.const([0, index]), axis=0)))
    with pytest.raises(IndexOutOfRange, match=f"gather: index {index} on axis 0") as e:
        compiled.run()
    assert __file__ in e.value.where


def test_folding_never_makes_a_large_array_from_a_small_one() -> None:
    b = Builder()
    g = b.finish(b.const(1.0).expand(shape=(1000, 1000)), b.emit("iota", shape=(1 << 40,), axis=0, to="i64"), b.const(np.ones(9)).expand(shape=(sym("S"), 9)))
    assert canonical(g) == g


# ---- sharing, order, dead code -------------------------------------------------------------------------------------
def test_equal_values_are_one() -> None:
    one = built(lambda x: (x * 2.0 + 1.0, 1.0 + 2.0 * x), [("f32", V)])
    g = canonical(one)
    assert g.outputs[0] == g.outputs[1]
    assert len(g) == 5


def test_numbers_that_only_look_equal_stay_two() -> None:
    g = canonical(built(lambda x: (x + 0.0, x.maximum(0.0), x.maximum(-0.0), x.pad(low=(1,), high=(0,), value=0.0), x.pad(low=(1,), high=(0,), value=-0.0)), [("f32", V)]))
    assert len(set(g.outputs)) == 5


def test_dead_code_goes_and_the_signature_stays() -> None:
    b = Builder()
    x, w = b.input("x", V), b.param("w", V)
    b.input("unused", M, "i8")
    x.exp() + w
    kept, old = b.state("kept", V), b.state("s", V)
    g = b.finish(x.neg(), updates=[(old, x)])
    assert [n.name for n in g.inputs] == ["x", "unused"]
    assert [n.name for n in canonical(g).states] == ["s"]
    assert kept.ref not in g.outputs


# ---- laws over random graphs ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(120))
def test_values_types_and_signature_are_kept_and_twice_is_once(seed: int) -> None:
    sample = random_graph(seed)
    g, once = sample.graph, canonical(sample.graph)
    assert Canonicalise()(once) is once, sample
    assert once.output_types == g.output_types
    assert [(n.name, n.type) for n in once.inputs] == [(n.name, n.type) for n in g.inputs]
    rng = np.random.default_rng(seed)
    for _ in range(2):
        sizes = random_sizes(g, rng)
        leaves = random_arrays((*g.inputs, *g.params, *g.states), sizes, rng, special=True)
        got, want = (evaluate(bound := graph.bind(sizes), {n.id: leaves[n.name] for n in (*bound.inputs, *bound.params, *bound.states)}) for graph in (once, g))
        for name, x, y, t in zip(g.output_names, got, want, g.output_types, strict=True):
            assert_same(x, y, t.dtype, f"{sample} {name}", loose=name in sample.loose_outputs)


# ---- rules of one's own --------------------------------------------------------------------------------------------
x = var("x")


def test_a_rule_set_can_be_extended() -> None:
    more = CANONICAL + rules((Op.EXP(Op.LOG(x)), lambda x: x))
    g = built(lambda x: (x + -0.0).log().exp(), [("f32", V)])
    assert Canonicalise(more)(g) == built(lambda x: x, [("f32", V)])


def test_rules_that_undo_each_other_are_an_error() -> None:
    endless = rules((Op.SIN(x), lambda x: x.cos()), (Op.COS(x), lambda x: x.sin()))
    with pytest.raises(RlxError, match="rules did not settle"):
        run(built(lambda x: x.sin(), [("f32", V)]), (Canonicalise(endless),))
    growing = rules((Op.SIN(x), lambda x: (x + 1.0).sin()))
    with pytest.raises(RlxError, match="rules did not settle on sin"):
        run(built(lambda x: x.sin(), [("f32", V)]), (Canonicalise(growing),))


@pytest.mark.parametrize(("rule", "why"), [
    ((3, 4), "is no rule"), ((Op.SIN(x), 4), "is no rule"), (Op.SIN(x), "is no rule"), ((x, lambda x: x), "is no rule"), ((Op.SIN(x), lambda x: x, 1), "is no rule"),
    ((Op.SIN(x), lambda y: y), "asks for y"), ((Op.SIN(x) + Op.COS(x.named("z")), lambda x, w: x), "asks for w[^$]*x, z")])
def test_what_is_no_rule_is_refused_when_it_is_made(rule: Any, why: str) -> None:
    with pytest.raises(BuildError, match=why):
        rules(rule)


def test_a_rule_that_would_change_the_type_is_not_taken() -> None:
    wrong = rules((Op.SIN(x), lambda x: x.cast(to="f64")))
    g = built(lambda x: x.sin(), [("f32", V)])
    assert Canonicalise(wrong)(g) == g


def test_notes_say_what_was_done_where() -> None:
    b = Builder()
    x = b.input("x", V)
    y = (x * 1.0) + b.const(2.0).exp()
    _, notes = Canonicalise().noted(b.finish(y))
    assert sorted((n.kind, n.label) for n in notes) == [("folded", "exp"), ("rewritten", "mul")]
    assert all(__file__ in n.where for n in notes)


def test_a_graph_in_canonical_form_comes_back_as_the_same_object() -> None:
    g = parse("graph g() {\n %0 = input {name='x'} : f32[2]\n %1 = exp %0 : f32[2]\n return y=%1\n}")
    assert Canonicalise()(g) is g


