"""Derivatives through extension ops and custom_fn: the rule where there is one, the lowering where there is none, else an error; never a part."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from rlxpy import Builder, CompileOptions, DType, Graph, compile, parse, show, sym
from rlxpy.errors import BuildError, HookMismatch, NonDifferentiableError
from rlxpy.extend import TensorType, Why, custom_fn, declare_op, op, register_cpu_kernel, registry
from rlxpy.ir.differentiate import pull, push
from rlxpy.ir.dtypes import Array
from rlxpy.ir.trace import cond, scan
from rlxpy.ir.verify import verify

RNG = np.random.default_rng(7)
X, Z = RNG.standard_normal((3, 4)), RNG.standard_normal((3, 4))


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with registry():
        yield


def built(f: Callable[..., Any], *arrays: Array) -> Graph:
    b = Builder()
    made = f(*(b.input(f"x{k}", a.shape, str(DType.F64 if a.dtype == np.float64 else DType.I64)) for k, a in enumerate(arrays)))
    return b.finish(*(made if isinstance(made, tuple) else (made,)))


def ran(b: Builder, outputs: Sequence[Any], arrays: Sequence[Array], device: str = "reference") -> list[Array]:
    g = b.finish(*outputs)
    assert parse(show(g)) == verify(g)
    got = compile(g, device=device, options=CompileOptions(debug=True), wait=True).run(*arrays)
    return [np.asarray(a) for a in (got if isinstance(got, tuple) else (got,))]


def gradients(g: Graph, arrays: Sequence[Array], dys: Sequence[Array]) -> list[Array]:
    b = Builder("gradients")
    xs, ds = [b.input(n.name, *n.type) for n in g.inputs], [b.input(f"d{k}", a.shape, "f64") for k, a in enumerate(dys)]
    rest = iter(ds)
    return ran(b, pull(g, xs, [next(rest) if t.dtype.is_float else None for t in g.output_types]), [*arrays, *dys])


def tangents(g: Graph, arrays: Sequence[Array], dxs: Sequence[Array]) -> list[Array]:
    b = Builder("tangents")
    xs, ds = [b.input(n.name, *n.type) for n in g.inputs], [b.input(f"d{k}", a.shape, "f64") for k, a in enumerate(dxs)]
    rest = iter(ds)
    return ran(b, push(g, xs, [next(rest) if n.type.dtype.is_float else None for n in g.inputs])[1], [*arrays, *dxs])


def assert_derivatives(f: Callable[..., Any], *arrays: Array) -> None:
    """Both directions against central differences of the function itself."""
    g = built(f, *arrays)
    run = compile(g, device="reference")

    def value(xs: Sequence[Array]) -> list[Array]:
        got = run(*xs)
        return [a for a in (got if isinstance(got, tuple) else (got,)) if a.dtype == np.float64]

    moving = [k for k, a in enumerate(arrays) if a.dtype == np.float64]
    dxs, dys = [np.asarray(RNG.standard_normal(arrays[k].shape)) for k in moving], [np.asarray(RNG.standard_normal(a.shape)) for a in value(arrays)]
    step = 1e-6
    ends = [value([a + s * dxs[moving.index(k)] if k in moving else a for k, a in enumerate(arrays)]) for s in (step, -step)]
    want = [(hi - lo) / (2 * step) for hi, lo in zip(*ends, strict=True)]
    forward = tangents(g, arrays, dxs)
    for got, slope in zip(forward, want, strict=True):
        assert_allclose(got, slope, rtol=1e-6, atol=1e-7)
    backward = gradients(g, arrays, dys)
    assert sum((d * t).sum() for d, t in zip(dys, want, strict=True)) == pytest.approx(sum((d * t).sum() for d, t in zip(backward, dxs, strict=True)), rel=1e-6, abs=1e-7)


# ---- through the lowering ------------------------------------------------------------------------------------------
def test_a_composition_needs_no_rule() -> None:
    @op("acme.softcap")
    def softcap(x: Any, cap: float = 3.0) -> Any: return (x / cap).tanh() * cap

    @op("acme.mixed")
    def mixed(x: Any, z: Any) -> Any: return softcap(x * z), x.argmax(axis=-1), (z * z).sum(axes=(0,))

    assert_derivatives(lambda x: softcap(x).exp(), X)
    assert_derivatives(lambda x, z: mixed(x + 1.0, x * z), X, Z)
    assert_derivatives(lambda x: scan(lambda c, row: (softcap(c + row), c), x[0], x), X)
    assert_derivatives(lambda x: cond(x.sum(axes=(0, 1)) > 100.0, lambda x: x, softcap, x), X)


def test_a_built_in_whose_rule_nobody_wrote_is_its_lowering_too() -> None:
    q, k, v = (RNG.standard_normal((1, h, t, 4)) for h, t in ((4, 3), (2, 5), (2, 5)))
    assert_derivatives(lambda q, k, v: q.attention(k, v, scale=0.5, mask="causal"), q, k, v)
    assert_derivatives(lambda x, at: x.rope(at), RNG.standard_normal((1, 2, 3, 4)), np.array([0, 1, 5]))


def test_a_value_inside_that_equals_an_input_is_not_taken_for_it() -> None:
    g = built(lambda a, z: a.exp() + z * 2.0, X, Z)
    b = Builder()
    a = b.input("a", (3, 4), "f64")
    da, dz = ran(b, pull(g, [a, a.exp()], [b.input("d", (3, 4), "f64")]), [X, Z])
    assert_allclose(da, Z * np.exp(X), rtol=1e-12)
    assert_allclose(dz, Z * 2)
    moved = Builder()
    a = moved.input("a", (3, 4), "f64")
    assert_allclose(ran(moved, push(g, [a, a.exp()], [None, moved.input("d", (3, 4), "f64")])[1], [X, Z])[0], Z * 2)


# ---- through a rule ------------------------------------------------------------------------------------------------
def test_a_rule_comes_before_the_lowering() -> None:
    @op("acme.clip", vjp=lambda dy, y, x, to: (dy * to,), jvp=lambda dxs, y, x, to: dxs[0] * (to + 1.0))
    def clip(x: Any, to: float = 5.0) -> Any: return x.minimum(to)

    g = built(clip, X)
    assert_allclose(gradients(g, [X], [Z]), [Z * 5])
    assert_allclose(tangents(g, [X], [Z]), [Z * 6])


def test_an_op_with_a_kernel_and_rules() -> None:
    """Sorted rows, whose lowering nobody has: the rules are all there is."""
    @declare_op("acme.cube", vjp=lambda dy, y, x: (dy * x * x * 3.0,), jvp=lambda dxs, y, x: dxs[0] * x * x * 3.0)
    def cube(x: Any) -> Any: return x

    register_cpu_kernel(cube, lambda x: x ** 3)
    assert_derivatives(lambda x: cube(x * 2.0).exp(), X / 4)


def test_neither_is_an_error_that_names_the_line() -> None:
    opaque = declare_op("acme.opaque")(lambda x: x)
    register_cpu_kernel(opaque, lambda x: x + 1)
    refused = op("acme.refused", vjp=Why("it jumps"), jvp=Why("it jumps"))(lambda x: x.floor())
    only = op("acme.both")(lambda x: opaque(x) * x)
    for f, name, why in ((opaque, "acme.opaque", "no ..p rule, and no lowering"), (refused, "acme.refused", "it jumps"), (only, "acme.opaque", "no ..p rule"),
                         (lambda x: scan(lambda c, row: (opaque(c) + row, c), x[0], x)[0], "acme.opaque", "no ..p rule")):
        g = built(lambda x, f=f: f(x * 2.0) + x, X)  # what does have a derivative is no excuse
        for derive in (gradients, tangents):
            with pytest.raises(NonDifferentiableError, match=rf"no ..p goes through {name}\n(.*\n)*.*because: .*{why}") as e:
                derive(g, [X], [Z if g.output_types[0].shape == (3, 4) else Z[0]])
            assert __file__ in e.value.where


def test_what_needs_no_derivative_needs_no_rule() -> None:
    opaque = declare_op("acme.opaque")(lambda x: TensorType(x.shape, DType.I64))
    register_cpu_kernel(opaque, lambda x: x.astype(np.int64))
    assert_derivatives(lambda x: (x * 3.0, opaque(x)), X)


def test_what_a_rule_gives_is_checked_where_it_is_used() -> None:
    """At shapes that no trial at registration has."""
    def three(x: Any) -> Any:
        if x.shape != (3, 4):
            raise BuildError("three by four")
        return x
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"vjp": lambda dy, y, x: (dy.sum(axes=(0,)),)}, r"vjp of acme.odd gives f64\[4\]"), ({"vjp": lambda dy, y, x: dy}, r"in a tuple"),
        ({"vjp": lambda dy, y, x: (dy, dy)}, r"gives f64\[3,4\], f64\[3,4\]"), ({"vjp": lambda dy, y, x: (1.0,)}, r"gives float"),
        ({"jvp": lambda dxs, y, x: dxs[0].cast(to="f32")}, r"jvp of acme.odd gives f32\[3,4\]"))
    for hooks, words in cases:
        odd = declare_op("acme.odd", **hooks)(three)
        with pytest.raises(HookMismatch, match=words) as e:
            (gradients if "vjp" in hooks else tangents)(built(odd, X), [X], [Z])
        assert __file__ in e.value.where


# ---- custom_fn -----------------------------------------------------------------------------------------------------
def test_a_function_with_derivatives_of_its_own() -> None:
    b = Builder()
    x = b.input("x", (3, 4), "f64")
    straight = b.custom_fn(lambda x: x.round(), vjp=lambda dy, y, x: (dy,), jvp=lambda dxs, y, x: dxs[0])
    g = b.finish(straight(x * 2.0).sin())
    assert "= rlx.fn %" in show(g)
    assert parse(show(g)) == verify(g)
    for device in ("reference", "cpu"):
        f = compile(g, device=device, options=CompileOptions(debug=True), wait=True)
        assert_allclose(f(X), np.sin(np.rint(X * 2)), rtol=1e-9)
        assert [hit.label for hit in f.fusion.hits] == ["elementwise"]
    assert_allclose(gradients(g, [X], [Z]), [2 * Z * np.cos(np.rint(X * 2))])
    assert_allclose(tangents(g, [X], [Z]), [2 * Z * np.cos(np.rint(X * 2))])


def test_without_rules_it_is_its_body() -> None:
    assert_derivatives(lambda x, z: custom_fn(lambda a, c: (a * c.exp(), a.argmax(axis=0)))(x, z), X, Z)


def test_it_takes_integers_gives_several_and_lives_in_loops() -> None:
    def body(x: Any, at: Any) -> Any: return x.gather(at, axis=0), at + 1, x * 3.0

    def back(dy: Any, y: Any, x: Any, at: Any) -> Any:
        assert dy[1] is None
        assert (y[0].shape, y[1].dtype) == ((2, 4), DType.I64)
        return dy[2] * 10.0, None

    def forth(dxs: Any, y: Any, x: Any, at: Any) -> Any:
        assert dxs[1] is None
        return None, None, dxs[0] * 10.0

    f = custom_fn(body, vjp=back, jvp=forth)
    at = np.array([2, 0])
    g = built(f, X, at)
    got = compile(g, device="cpu", wait=True)(X, at)
    assert_array_equal(got[0], X[at])
    assert_array_equal(got[1], at + 1)
    assert_allclose(gradients(g, [X, at], [Z[:2], Z]), [Z * 10])
    zero, moved = tangents(g, [X, at], [Z])
    assert_array_equal(zero, np.zeros((2, 4)))
    assert_allclose(moved, Z * 10)
    twice = custom_fn(lambda x: x * 2.0, vjp=lambda dy, y, x: (dy * 7.0,))
    looped = built(lambda x: scan(lambda c, row: (twice(c) + row, None), x[0], x)[0], X)
    want = X[0]
    for row in X:
        want = want * 2 + row
    assert_allclose(compile(looped, device="cpu", wait=True)(X), want, rtol=1e-6)
    assert_allclose(gradients(looped, [X], [Z[0]])[0], Z[0] * np.array([[343 + 49], [7], [1]]))


def test_symbolic_sizes_and_numbers_beside_values() -> None:
    S = sym("S", 1, 9)
    b = Builder()
    x = b.input("x", (S, 4), "f64")
    g = b.finish(custom_fn(lambda a, k: a * k, vjp=lambda dy, y, a, k: (dy * k, None))(x, 3.0))
    assert parse(show(g)) == g
    assert_allclose(compile(g)(X), X * 3)
    back = Builder()
    xs = back.input("x", (S, 4), "f64")
    assert_allclose(ran(back, pull(g, [xs], [back.input("d", (S, 4), "f64")]), [X, Z])[0], Z * 3)


MISTAKES: list[tuple[str, Callable[[Any], Any], type[Exception], str]] = [
    ("a value from around it", lambda x: custom_fn(lambda y: y + x)(x * 2.0), BuildError, r"a value of graph 'main' used in graph 'body'"),
    ("another number of inputs", lambda x: custom_fn(lambda y, z: y)(x), HookMismatch, r"body of the function is body\(y, z\)"),
    ("a vjp without dy", lambda x: custom_fn(lambda y: y, vjp=lambda y, x: (y,))(x), HookMismatch, r"vjp\(dy, y, x0\)"),
    ("a gradient of another shape", lambda x: custom_fn(lambda y: y, vjp=lambda dy, y, x: (dy[0],))(x), HookMismatch, r"vjp of the function gives f32\[4\]"),
    ("a gradient that is no tuple", lambda x: custom_fn(lambda y: y, vjp=lambda dy, y, x: dy)(x), HookMismatch, r"in a tuple"),
    ("a tangent of another type", lambda x: custom_fn(lambda y: y, jvp=lambda dxs, y, x: dxs[0] > 0.0)(x), HookMismatch, r"jvp of the function gives bool\[3,4\]"),
    ("an integer with a gradient", lambda x: custom_fn(lambda y: y, vjp=lambda dy, y, x: (x,))(x.cast(to="i32")), HookMismatch, r"integers and bools"),
    ("nothing given", lambda x: custom_fn(lambda y: y)(3.0), BuildError, r"without a Value"),
    ("no function", lambda x: custom_fn(3), HookMismatch, r"custom_fn with body=3"),  # type: ignore[arg-type]
    ("a weight inside", lambda x: custom_fn(lambda y: y + y.builder.param("w", (4,)))(x), BuildError, r"has the param 'w'"),
    ("a name of ours", lambda x: op("rlx.mine")(lambda x: x), BuildError, r"rlx is rlxpy's own vendor"),
]


@pytest.mark.parametrize(("mistake", "error", "words"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_mistakes_are_told_where_they_are_made(mistake: Callable[[Any], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as e:
        mistake(Builder().input("x", (3, 4)))
    assert __file__ in e.value.where  # type: ignore[attr-defined]
