"""Weights: what set_param changes and what it leaves, whose arrays they are, and what is computed from them once."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, CompiledGraph, CompileOptions, Graph, Session, compile, sym
from rlxpy.errors import InputError
from rlxpy.ir.quantize import quantize

levels = pytest.mark.parametrize("options", [CompileOptions(debug=True), CompileOptions(optimise=False, debug=True), CompileOptions(weights="dense")],
                                 ids=["optimised", "as written", "dense"])
X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)


def build(make: Callable[[Builder], Any], names: tuple[str, ...] = ()) -> Graph:
    b = Builder()
    made = make(b)
    return b.finish(*(made if isinstance(made, tuple) else (made,)), names=names)


def weighted(options: CompileOptions, w: Any) -> CompiledGraph:
    """Values that only w decides, hoisted where the level allows: a transpose, a cast that grows, an affine chain; and w itself."""
    def make(b: Builder) -> Any:
        x, v = b.input("x", (2, 3)), b.param("w", (4, 3), "f16")
        wide = v.cast(to="f32")
        return x @ wide.T, x * ((wide + 1.0) * 2.0)[0], v

    return compile(build(make), {"w": w}, options=options)


def meaning(w: Any) -> tuple[Any, ...]:
    wide = w.astype(np.float32)
    return X @ wide.T, X * ((wide + 1) * 2)[0], w


def check(got: Any, w: Any) -> None:
    for g, want in zip(got, meaning(w), strict=True):
        np.testing.assert_allclose(g, want, rtol=1e-6)


OLD = np.arange(12, dtype=np.float16).reshape(4, 3)
NEW = np.arange(12, dtype=np.float16)[::-1].reshape(4, 3) * np.float16(0.5)


@levels
def test_set_param_leaves_nothing_stale(options: CompileOptions) -> None:
    run = weighted(options, OLD.copy())
    check(run(X), OLD)
    for w in (NEW, OLD, NEW[::-1]):
        run.set_param("w", w)
        check(run(X), w)
        check(run(X), w)


@levels
def test_what_the_caller_writes_later_does_not_reach_the_weights(options: CompileOptions) -> None:
    first, second = OLD.copy(), NEW.copy()
    run = weighted(options, first)
    first[...] = -1
    check(run(X), OLD)
    run.set_param("w", second)
    second[...] = -1
    check(run(X), NEW)
    run(X)[2][...] = -1  # the weight as a result is the caller's
    check(run(X), NEW)


def test_read_only_weights_are_used_where_they_lie() -> None:
    w = np.arange(3, dtype=np.float32)
    w.flags.writeable = False
    run = compile(build(lambda b: b.input("x", (2, 3)) * b.param("w", (3,))), {"w": w})
    np.testing.assert_array_equal(run(X), X * w)
    seen = w.view()
    assert not seen.flags.writeable
    base = np.arange(3, dtype=np.float32)  # a read-only view of an array that its owner still writes to
    view = base.view()
    view.flags.writeable = False
    run = compile(build(lambda b: b.input("x", (2, 3)) * b.param("w", (3,))), {"w": view})
    base[...] = 0
    np.testing.assert_array_equal(run(X), X * [0, 1, 2])


@pytest.mark.parametrize("weights", ["packed", "dense", "auto"])
def test_packed_weights_change_too(weights: str) -> None:
    def packed(seed: int) -> tuple[Any, Any]:
        dense = np.random.default_rng(seed).standard_normal((5, 32)).astype(np.float32)
        return quantize(dense, "q8_0")[0], dense

    (old, old_dense), (new, new_dense) = packed(1), packed(2)
    x = np.random.default_rng(3).standard_normal((2, 32)).astype(np.float32)
    graph = build(lambda b: b.input("x", (2, 32)).qmatmul(b.param("w", old.shape, "u8"), encoding="q8_0", shape=(5, 32)))
    run = compile(graph, {"w": old}, options=CompileOptions(weights=weights))
    np.testing.assert_allclose(run(x), x @ old_dense.T, atol=0.1)
    run.set_param("w", new)
    np.testing.assert_allclose(run(x), x @ new_dense.T, atol=0.1)


BAD_PARAMS: dict[str, tuple[str, Any, str]] = {
    "an unknown name": ("v", NEW, "'v'"),
    "a name that is no text": (3, NEW, "3"),  # type: ignore[dict-item]
    "the wrong shape": ("w", NEW.T, "[3,4] was given, f16[4,3]"),
    "the wrong type": ("w", NEW.astype(np.float32), "float32 was given, f16"),
    "numbers that do not fit": ("w", [[1e9] * 3] * 4, "1000000000.0"),
}


@pytest.mark.parametrize(("name", "value", "says"), BAD_PARAMS.values(), ids=BAD_PARAMS)
@levels
def test_a_refused_weight_changes_nothing(name: str, value: Any, says: str, options: CompileOptions) -> None:
    run = weighted(options, OLD.copy())
    with pytest.raises(InputError) as caught:
        run.set_param(name, value)
    assert says in str(caught.value)
    check(run(X), OLD)


def test_a_weight_that_cannot_be_computed_with_changes_nothing() -> None:
    """The hoisted gather of `table` at `at` raises: the old indices stay."""
    graph = build(lambda b: b.input("x", (2,)) + b.param("table", (3, 2)).gather(b.param("at", (), "i64"), axis=0) * 2.0)
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    run = compile(graph, {"table": table, "at": 1})
    with pytest.raises(IndexError, match="index 5"):
        run.set_param("at", 5)
    np.testing.assert_array_equal(run([0, 0]), table[1] * 2)
    run.set_param("table", table + 1)
    np.testing.assert_array_equal(run([0, 0]), (table[1] + 1) * 2)


def test_missing_weights_are_all_named_before_anything_is_planned() -> None:
    session = Session()
    graph = build(lambda b: b.input("x", (3,)) * b.param("a.weight", (3,)) + b.param("a.bias", (3,)))
    with pytest.raises(InputError) as caught:
        session.compile(graph, {"a.wieght": np.zeros(3, np.float32)})
    assert "'a.weight', 'a.bias'" in caught.value.why
    assert "2 of 2" in caught.value.what
    assert session.plans_made == 0


def test_weights_of_other_models_may_be_among_those_given() -> None:
    run = compile(build(lambda b: b.input("x", (3,)) * b.param("w", (3,))), {"w": np.full(3, 2, np.float32), "unused": "anything"})
    np.testing.assert_array_equal(run([1, 2, 3]), [2, 4, 6])


def test_a_hoisted_value_never_takes_a_name_that_a_weight_has() -> None:
    def make(b: Builder) -> Any:
        x = b.input("x", (3,))
        return x * (b.param("w", (3,)) + 1.0), x + b.param("hoisted.0", (3,))

    run = compile(build(make), {"w": np.full(3, 2, np.float32), "hoisted.0": np.full(3, 50, np.float32)})
    np.testing.assert_array_equal(run([1, 2, 3]), [[3, 6, 9], [51, 52, 53]])


def test_what_sizes_decide_is_not_hoisted() -> None:
    p = sym("P", 0, 3)
    run = compile(build(lambda b: b.param("table", (4, 2))[p:p + 1] * 2.0), {"table": np.arange(8, dtype=np.float32).reshape(4, 2)})
    for n in (2, 0, 3):
        np.testing.assert_array_equal(run(sizes={"P": n}), [[4 * n, 4 * n + 2]])
