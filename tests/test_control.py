"""scan, while and cond: Python functions as graphs, against Python's own loops; in C on every instruction set, by one thread and by two."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from samples import ISAS

from rlxpy import Builder, CompileOptions, Graph, Op, Value, compile, cond, parse, scan, show, sym, while_loop
from rlxpy.backends.cpu import threads
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.errors import BuildError, IndexOutOfRange, NonDifferentiableError, VerifyError
from rlxpy.ir.dtypes import Array
from rlxpy.ir.extension import OpExtension, register_op, registry
from rlxpy.ir.row import OpRow
from rlxpy.ir.verify import verify
from rlxpy.settings import override

reason = find_compiler()
needs_compiler = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")
DEVICES = ("reference", pytest.param("cpu", marks=needs_compiler))
devices = pytest.mark.parametrize("device", DEVICES)
CHECKED = CompileOptions(debug=True)


@pytest.fixture(params=[1, 2], ids=lambda n: f"{n} threads")
def count(request: pytest.FixtureRequest) -> Iterator[int]:
    threads.set_threads(request.param)
    yield request.param
    threads.set_threads(None)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def twice(f: Any, *arrays: Any, **more: Any) -> tuple[Array, ...]:
    """The results of a run, which are those of the run before."""
    first, second = f.run(*arrays, **more), f.run(*arrays, **more)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    return first  # type: ignore[no-any-return]


def recurrent(n: Any, width: int, weight: str = "param") -> Graph:
    """h = tanh(x + h w), with a weight from around the loop."""
    b = Builder("rnn")
    x = b.input("x", (n, 3, width))
    w = b.param("w", (width, width)) if weight == "param" else b.input("w", (width, width)).T
    h, ys = scan(lambda h, part: ((new := (part + h @ w).tanh()), new), b.input("h", (3, width)), x)
    return b.finish(h, ys)


def recurrent_oracle(x: Array, h: Array, w: Array) -> tuple[Array, Array]:
    ys = []
    for part in x.astype(np.float64):
        h = np.tanh(part + h @ w)
        ys.append(h)
    return h, np.array(ys).reshape(-1, *h.shape)


@devices
@pytest.mark.parametrize("width", [5, 64])
@pytest.mark.parametrize("weight", ["param", "input"])
@pytest.mark.parametrize("optimise", [True, False])
def test_a_recurrence(device: str, width: int, weight: str, optimise: bool, count: int) -> None:
    x, h, w = normal(7, 3, width), normal(3, width, seed=1), normal(width, width, seed=2) / 8
    graph = recurrent(sym("N", 0, 9), width, weight)
    options = CompileOptions(debug=True, optimise=optimise)
    f = compile(graph, {"w": w} if weight == "param" else {}, device=device, options=options)
    for steps in (7, 0, 1):
        given = (x[:steps], h) if weight == "param" else (x[:steps], w.T, h)
        for got, want in zip(twice(f, *given), recurrent_oracle(x[:steps], h, w), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    if device == "cpu":
        assert {row["tier"] for row in f.dispatch()} == {"native"}


@needs_compiler
@pytest.mark.parametrize("isa", ISAS)
def test_a_recurrence_on_every_instruction_set(isa: str) -> None:
    x, h, w = normal(4, 3, 33), normal(3, 33, seed=1), normal(33, 33, seed=2) / 8
    with override(isa=isa):
        f = compile(recurrent(4, 33), {"w": w}, device="cpu", options=CHECKED)
    for got, want in zip(twice(f, x, h), recurrent_oracle(x, h, w), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@needs_compiler
def test_weights_used_in_a_loop_are_packed_once_and_can_be_set() -> None:
    x, h, w = normal(2, 3, 16), normal(3, 16), normal(16, 16) / 4
    f = compile(recurrent(2, 16), {"w": w}, device="cpu")
    f.set_param("w", w.T)
    np.testing.assert_allclose(f.run(x, h)[0], recurrent_oracle(x, h, w.T)[0], rtol=1e-5, atol=1e-5)


@devices
def test_large_kernels_in_a_loop_are_shared_among_threads(device: str, count: int) -> None:
    """Many tasks a kernel, many kernels a step, and carries that trade places."""
    b = Builder("large")
    n = 70_001
    u, v, x = b.input("u", (n,)), b.input("v", (n,)), b.input("x", (5, n))
    (p, q), ys = scan(lambda c, part: ((c[1] * 0.5 + part, c[0]), (c[0] - c[1]).abs().sum(axes=(0,))), (u, v), x)
    f = compile(b.finish(p, q, ys), device=device, options=CHECKED)
    a, c, parts = normal(n), normal(n, seed=1), normal(5, n, seed=2)
    got = twice(f, a, c, parts)
    sums = []
    for part in parts:
        sums.append(np.abs(a.astype(float) - c).sum())
        a, c = c * np.float32(0.5) + part, a
    for g, w in zip(got, (a, c, np.array(sums)), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5)


VIEWS: dict[str, tuple[Any, Any]] = {  # on values, and on arrays
    "plain": (lambda x: x, lambda x: x), "transposed": (lambda x: x.transpose(perm=(2, 1, 0)), lambda x: x.transpose(2, 1, 0)),
    "reversed": (lambda x: x.reverse(axes=(0, 2)), lambda x: x[::-1, :, ::-1]), "stepped": (lambda x: x[::2, :, 1:], lambda x: x[::2, :, 1:]),
}


@devices
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("reverse", [False, True])
def test_slices_of_views(device: str, view: str, reverse: bool) -> None:
    change, by_numpy = VIEWS[view]
    b = Builder("views")
    x = change(b.input("x", (5, 3, 4)))
    seen = by_numpy(normal(5, 3, 4))
    carry, ys = scan(lambda c, part: (c + part, c * part), b.const(np.zeros(seen.shape[1:], np.float32)), x, reverse=reverse)
    c, want = np.zeros(seen.shape[1:]), np.zeros(seen.shape)
    for i in reversed(range(len(seen))) if reverse else range(len(seen)):
        want[i] = c * seen[i]
        c = c + seen[i]
    got = twice(compile(b.finish(carry, ys), device=device, options=CHECKED), normal(5, 3, 4))
    np.testing.assert_allclose(got[0], c, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1], want, rtol=1e-5, atol=1e-6)


@devices
def test_loops_in_loops_see_values_of_every_graph_around_them(device: str, count: int) -> None:
    """Sums of powers: the inner loop reads the outer slice, an input, and a constant; it runs a number of times that the data says."""
    b = Builder("nested")
    x, scale, times = b.input("x", (4, 3)), b.input("scale", (3,)), b.input("times", (4,), "i64")

    def outer(total: Value, at: tuple[Value, Value]) -> tuple[Value, Value]:
        part, many = at

        def grow(s: tuple[Value, Value]) -> tuple[Value, Value]:
            doubled = cond((s[1].sum(axes=(0,)) > 0.0), lambda v: v + part, lambda v: v * 2.0 + scale, s[1])
            return s[0] + 1, doubled

        steps, grown = while_loop(lambda s: s[0] < many, grow, (b.const(0), part * scale))
        return total + grown, steps

    total, steps = scan(outer, b.const(np.zeros(3, np.float32)), (x, times))
    f = compile(b.finish(total, steps), device=device, options=CHECKED)
    xs, s, t = normal(4, 3), normal(3, seed=5), np.array([3, 0, 1, 6])
    want = np.zeros(3)
    for part, many in zip(xs.astype(float), t, strict=True):
        v = part * s
        for _ in range(many):
            v = v + part if v.sum() > 0 else v * 2 + s
        want = want + v
    got = twice(f, xs, s, t)
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got[1], t)
    if device == "cpu":
        assert [row["tier"] for row in f.dispatch() if row["op"] == "scan"] == ["native"]


@devices
def test_only_one_side_of_a_cond_runs(device: str, count: int) -> None:
    """The other would read outside its axis."""
    b = Builder("guarded")
    p, x, i = b.input("p", (), "bool"), b.input("x", (5, 3)), b.input("i", (), "i64")
    f = compile(b.finish(cond(p, lambda: x.gather(i, axis=0), lambda: x[0] * 0.0)), device=device, options=CHECKED)
    a = normal(5, 3)
    np.testing.assert_array_equal(f.run(True, a, 4), a[4])
    np.testing.assert_array_equal(f.run(False, a, 9), np.zeros(3))
    with pytest.raises(IndexOutOfRange, match="index 9 on axis 0"):
        f.run(True, a, 9)


@devices
def test_a_cache_carried_by_a_loop_is_written_in_place(device: str) -> None:
    b = Builder("cache")
    x = b.input("x", (3, 1, 2))
    (cache, _), seen = scan(lambda s, part: (((new := s[0].kv_append(part, s[1], axis=0)), s[1] + 1), new.sum(axes=(0,))), (b.input("cache", (6, 2)), b.const(1)), x)
    f = compile(b.finish(cache, seen), device=device, options=CHECKED)
    a, start = normal(3, 1, 2), normal(6, 2, seed=1)
    want = start.copy()
    want[1:4] = a[:, 0]
    got = twice(f, a, start)
    np.testing.assert_array_equal(got[0], want)
    np.testing.assert_allclose(got[1][-1], want.sum(0), rtol=1e-6)
    if device == "cpu":
        (frame,) = [s.frame for s in f.plan.steps if s.frame]
        body = frame.bodies[0]
        assert body.places[body.graph.outputs[0]] == body.places[body.graph.inputs[0].refs[0]]
    b = Builder("full")
    full, _ = scan(lambda s, part: ((s[0].kv_append(part, s[1], axis=0), s[1] + 3), None), (b.input("cache", (6, 2)), b.const(1)), b.input("x", (3, 1, 2)))
    f = compile(b.finish(*full), device=device)
    with pytest.raises(IndexOutOfRange, match=r"kv_append: rows 7\.\.8"):
        f.run(start, a)


@needs_compiler
def test_a_body_that_c_cannot_say_runs_on_the_host_and_dispatch_names_the_reason() -> None:
    thrice = OpExtension("test.thrice", OpRow(1, lambda x: x.shape, lambda x: x.dtype, ref=lambda x: x * np.float32(3)))
    with registry():
        register_op(thrice)
        b = Builder("by reference")
        x = b.input("x", (4, 3))
        f = compile(b.finish(scan(lambda c, part: (c + thrice(part), None), x[0], x)[0]), device="cpu", options=CHECKED)
        a = normal(4, 3)
        np.testing.assert_allclose(f.run(a), a[0] + 3 * a.sum(0), rtol=1e-5, atol=1e-6)
        assert [row["tier"] for row in f.dispatch() if row["op"] == "scan"] == ["host"]
        assert [n.text for n in f.report.notes if n.kind == "host" and "test.thrice in its graph 'body': no kernel row serves test.thrice" in n.text]


def test_structures_come_back_as_they_were_given() -> None:
    b = Builder("trees")
    x = b.input("x", (2, 3))
    carry, ys = scan(lambda c, part: ({"a": c["a"] + part["x"], "b": [c["b"][0]]}, (part["x"], None)), {"a": x[0], "b": [x[1]]}, {"x": x})
    assert carry["a"].shape == carry["b"][0].shape == (3,)
    assert ys[0].shape == (2, 3)
    assert ys[1] is None


def test_a_scan_without_inputs_counts_its_steps() -> None:
    b = Builder("count")
    powers = scan(lambda c, _: (c * 2, c), b.const(1), length=5)[1]
    np.testing.assert_array_equal(compile(b.finish(powers)).run(), [1, 2, 4, 8, 16])


def test_text_holds_the_graphs_and_the_verifier_looks_into_them() -> None:
    g = recurrent(sym("N", 1, 9), 4)
    text = show(g)
    assert parse(text) == g
    assert " body {" in text
    broken = text.replace("tanh %", "relu %", 1).replace(": f32[3,4]\n", ": f64[3,4]\n", 6)
    with pytest.raises(VerifyError):
        verify(parse(broken))


def test_passes_work_inside() -> None:
    b = Builder("inside")
    x = b.input("x", (4, 3))
    y, _ = scan(lambda c, part: ((c + part).neg().neg() * 1.0, None), x[0], x)
    f = compile(b.finish(y), options=CHECKED)
    (node,) = [n for n in f.plan.graph if n.op is Op.SCAN]
    assert [n.op for n in node.attrs.body if n.op is not Op.INPUT] == [Op.ADD]  # type: ignore[attr-defined]


ERRORS: dict[str, tuple[Any, str]] = {
    "a carry that changes its type": (lambda b, x: scan(lambda c, p: (c.cast(to="f64"), None), x[0], x), r"carry 0 comes out as f64\[3\](?s:.*)goes in as f32\[3\]"),
    "lengths that differ": (lambda b, x: scan(lambda c, p: (c, None), x[0], (x, x[:2])), r"scan of 4 steps over f32\[2,3\](?s:.*)axis 0 has 2 slices"),
    "a scalar to map over": (lambda b, x: scan(lambda c, p: (c, None), x[0], b.const(1.0)), "a scalar has no slices"),
    "no length": (lambda b, x: scan(lambda c, p: (c, None), x[0]), "without a length"),
    "not a pair": (lambda b, x: scan(lambda c, p: c, x[0], x), "a pair is wanted"),
    "a carry lost": (lambda b, x: scan(lambda c, p: (c[0], None), (x[0], x[1]), x), r"built as \*(?s:.*)built as \('\*', '\*'\)"),
    "a number for a value": (lambda b, x: scan(lambda c, p: (c, None), 0.0, x), r"init holds 0\.0(?s:.*)builder\.const"),
    "nothing to give": (lambda b, x: scan(lambda c, p: (None, None), None, x), "without a result"),
    "a condition of many": (lambda b, x: while_loop(lambda c: c > 0.0, lambda c: c, x), r"condition of bool\[4,3\](?s:.*)bool\[\]"),
    "a choice of many": (lambda b, x: cond(x > 0.0, lambda: x, lambda: x), r"cond by bool\[4,3\](?s:.*)p\.where"),
    "sides that differ": (lambda b, x: cond((x > 0.0).all(axes=(0, 1)), lambda: x, lambda: x[0]), r"gives f32\[4,3\] or f32\[3\]"),
    "sides of another build": (lambda b, x: cond((x > 0.0).all(axes=(0, 1)), lambda: x, lambda: (x, x)), "`otherwise` returns is built"),
    "a param inside": (lambda b, x: scan(lambda c, p: (c + c.builder.param("w", (3,)), None), x[0], x), "has the param 'w'"),
    "a state updated inside": (lambda b, x: scan(lambda c, p: (b.update(b.state("s", (3,)), c), None), x[0], x), "return it from the function"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_say_what_and_where(case: str) -> None:
    make, pattern = ERRORS[case]
    b = Builder("wrong")
    with pytest.raises(BuildError, match=pattern) as caught:
        make(b, b.input("x", (4, 3)))
    assert caught.value.where.split(":")[0].endswith("test_control.py")


def test_a_value_of_a_loop_does_not_leave_it_by_the_side() -> None:
    b = Builder("leak")
    x, kept = b.input("x", (4, 3)), list[Value]()
    scan(lambda c, p: (kept.append(c) or c, None), x[0], x)  # type: ignore[func-returns-value]
    with pytest.raises(BuildError, match="return it from the function that makes it"):
        b.finish(kept[0])


# ---- derivatives ---------------------------------------------------------------------------------------------------
@devices
def test_gradients_go_through_loops_in_branches_in_loops(device: str) -> None:
    """d/dw of what a nested loop gives, with w used at every depth, against differences."""
    def loss(b: Builder, w: Value, x: Value) -> Any:
        def step(c: Value, part: Value) -> tuple[Value, Value]:
            grown = cond(c.sum(axes=(0,)) > 0.0, lambda v: scan(lambda s, _: ((s * w).tanh() + part, None), v, length=2)[0], lambda v: v * part - w, c)
            return grown, grown * w

        c, ys = scan(step, x[0], x)
        return c.sum(axes=(0,)) + ys.sum(axes=(0, 1))

    b = Builder("nested")
    w, x = b.input("w", (3,), "f64"), b.input("x", (4, 3), "f64")
    loss(b, w, x)
    node = next(n for n in b.nodes if n.op is Op.SCAN)
    ins, y = [Value(b, r) for r in node.inputs], tuple(Value(b, r) for r in node.refs)
    ones = [b.const(np.ones((3,))), b.const(np.ones((4, 3)))]
    grads = node.row.vjp(tuple(ones), y, *ins, **node.attrs.params())  # type: ignore[operator, misc]
    f = compile(b.finish(loss(b, w, x), grads[[v.ref for v in ins].index(w.ref)]), device=device, options=CHECKED)
    at, parts, step = normal(3).astype(float), normal(4, 3, seed=3).astype(float), 1e-6
    slope = [(f.run(at + step * e, parts)[0] - f.run(at - step * e, parts)[0]) / (2 * step) for e in np.eye(3)]
    np.testing.assert_allclose(f.run(at, parts)[1], slope, rtol=1e-6, atol=1e-7)


def test_no_gradient_goes_through_a_while_and_the_reason_is_given() -> None:
    b = Builder("while")
    x = b.input("x", (2, 3))
    carry, _ = scan(lambda c, part: (while_loop(lambda s: (s > 1.0).any(axes=(0,)), lambda s: s * 0.5, c + part), None), x[0], x)
    with pytest.raises(NonDifferentiableError, match=r"no vjp goes through while(?s:.*)how many steps"):
        carry.node.row.vjp(x[0], carry, *(Value(b, r) for r in carry.node.inputs), **carry.node.attrs.params())
