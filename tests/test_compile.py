"""compile() and what it gives: results, run_into, memory, and what one may ask of it."""
from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, CompiledGraph, CompileOptions, Graph, Session, Value, compile, parse, settings, sym
from rlxpy.errors import InputError
from rlxpy.ir import functions as F

levels = pytest.mark.parametrize("options", [CompileOptions(debug=True), CompileOptions(optimise=False, debug=True), CompileOptions(weights="dense")],
                                 ids=["optimised", "as written", "dense"])
X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)


def build(make: Callable[[Builder], Any], names: tuple[str, ...] = ()) -> Graph:
    b = Builder()
    made = make(b)
    return b.finish(*(made if isinstance(made, tuple) else (made,)), names=names)


# ---- results belong to the caller (A14, A15)
OUTPUTS: dict[str, tuple[Callable[[Builder, Value, Value], Any], Callable[[Any, Any], Any]]] = {
    "a sum": (lambda b, x, w: x.sum(axes=(0, 1)), lambda x, w: (x.sum(),)),
    "the input itself": (lambda b, x, w: x, lambda x, w: (x,)),
    "the input and more": (lambda b, x, w: (x, x + 1.0), lambda x, w: (x, x + 1)),
    "a view of the input": (lambda b, x, w: (x.T, x[1:, ::2], F.reshape(x, (3, 2))), lambda x, w: (x.T, x[1:, ::2], x.reshape(3, 2))),
    "the input stretched": (lambda b, x, w: x[:1].expand(shape=(4, 3)), lambda x, w: (np.broadcast_to(x[:1], (4, 3)),)),
    "a param": (lambda b, x, w: (w, x), lambda x, w: (w, x)),
    "a view of a param": (lambda b, x, w: w.reverse(axes=(0,)), lambda x, w: (w[::-1],)),
    "a constant": (lambda b, x, w: (b.const(0.0), x), lambda x, w: (np.float32(0), x)),
    "the same value twice": (lambda b, x, w: (x * w, x * w), lambda x, w: (x * w, x * w)),
    "a value and what is made of it": (lambda b, x, w: ((s := x + w), s.relu(), s), lambda x, w: (x + w, np.maximum(x + w, 0), x + w)),
    "of rank 0": (lambda b, x, w: (x[1, 2], x.max(axes=(0, 1))), lambda x, w: (x[1, 2], x.max())),
    "nothing": (lambda b, x, w: (), lambda x, w: ()),
}


@pytest.mark.parametrize(("make", "meaning"), OUTPUTS.values(), ids=OUTPUTS)
@levels
def test_results_are_the_callers_own(make: Any, meaning: Any, options: CompileOptions) -> None:
    w = np.array([7, 8, 9], np.float32)
    run = compile(build(lambda b: make(b, b.input("x", (2, 3)), b.param("w", (3,)))), {"w": w}, options=options)

    def results(x: Any) -> tuple[Any, ...]:
        got = run(x)
        return got if isinstance(got, tuple) else (got,)

    def check(got: tuple[Any, ...], x: Any) -> None:
        for g, want in zip(got, meaning(x, np.array([7, 8, 9], np.float32)), strict=True):
            assert (type(g), g.dtype, g.shape) == (np.ndarray, np.float32, np.shape(want))
            np.testing.assert_array_equal(g, want)

    xs = [X * k for k in (1, 2, 3)]
    given = [x.copy() for x in xs]
    got = [results(x) for x in given]
    for x in given:
        x[...] = np.nan  # the caller may reuse what was passed
    for g, x in zip(got, xs, strict=True):
        check(g, x)
    arrays = [a for g in got for a in g]
    for i, a in enumerate(arrays):
        assert a.flags.writeable
        assert not any(np.shares_memory(a, b) for b in (*arrays[:i], *given, w))
        a[...] = np.nan  # and what came back
    check(results(xs[0]), xs[0])


# ---- run_into
def two() -> CompiledGraph:
    """x + 1 and the sum of x's rows."""
    return compile(build(lambda b: ((x := b.input("x", (2, 3))) + 1.0, x.sum(axes=(1,))), ("more", "sums")), options=CompileOptions(debug=True))


def buffers() -> tuple[Any, Any]:
    return np.full((2, 3), 77, np.float32), np.full(2, 77, np.float32)


def test_run_into_writes_exactly_there() -> None:
    wide, sums = np.full((4, 6), 77, np.float32), np.full(5, 77, np.float32)
    two().run_into((wide[::2, 3:], sums[3:0:-2]), X)
    np.testing.assert_array_equal(wide[::2, 3:], X + 1)
    np.testing.assert_array_equal(sums, [77, 3, 77, 2, 77])
    assert np.count_nonzero(wide == 77) == wide.size - 6


def test_run_into_takes_one_array_for_one_output_of_any_rank_and_byte_order() -> None:
    run = compile(build(lambda b: b.input("x", (2, 3)).sum(axes=(0, 1))))
    for out in (np.zeros((), np.float32), np.zeros((), ">f4")):
        run.run_into(out, X)
        assert out == X.sum()


OVERLAPS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "the input": lambda a: (a[:6].reshape(2, 3), a[:6].reshape(2, 3)),
    "the input, moved": lambda a: (a[1:7].reshape(2, 3), a[:6].reshape(2, 3)),
    "the input, backwards": lambda a: (a[:6].reshape(2, 3), a[5::-1].reshape(2, 3)),
    "the input's gaps": lambda a: (a[1:12:2].reshape(2, 3), a[0:12:2].reshape(2, 3)),
}


@pytest.mark.parametrize("make", OVERLAPS.values(), ids=OVERLAPS)
def test_an_output_may_lie_on_an_input(make: Callable[[Any], tuple[Any, Any]]) -> None:
    run = compile(build(lambda b: b.input("x", (2, 3)).reverse(axes=(0, 1)) * 2.0))
    out, x = make(np.arange(12, dtype=np.float32))
    want = x.copy()[::-1, ::-1] * 2
    run.run_into(out, x)
    np.testing.assert_array_equal(out, want)


def locked() -> Any:
    a = np.full((2, 3), 77, np.float32)
    a.flags.writeable = False
    return a


BAD_OUTPUTS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "too few": (lambda a, b: (a,), "1 outputs given"),
    "too many": (lambda a, b: (a, b, b), "3 outputs given"),
    "one array for two": (lambda a, b: a, "1 outputs given"),
    "none": (lambda a, b: None, "NoneType"),
    "a generator": (lambda a, b: (v for v in (a, b)), "generator"),
    "lists": (lambda a, b: (a, [0, 0]), "'sums'"),
    "the wrong shape": (lambda a, b: (a, np.full(3, 77, np.float32)), "'sums'"),
    "a shape that would broadcast": (lambda a, b: (np.full((1, 2, 3), 77, np.float32), b), "'more'"),
    "the wrong type": (lambda a, b: (a, np.full(2, 77.0)), "'sums'"),
    "read-only": (lambda a, b: (locked(), b), "'more'"),
    "stretched": (lambda a, b: (a, np.broadcast_to(np.float32(77), (2,))), "'sums'"),
    "two on the same bytes": (lambda a, b: (a, a[0, 1:]), "'more' and 'sums'"),
}


@pytest.mark.parametrize(("make", "says"), BAD_OUTPUTS.values(), ids=BAD_OUTPUTS)
def test_run_into_refuses_and_then_writes_nothing(make: Any, says: str) -> None:
    a, b = buffers()
    with pytest.raises(InputError) as caught:
        two().run_into(make(a, b), X)
    assert says in caught.value.what
    assert caught.value.why
    assert caught.value.fix
    assert (a == 77).all()
    assert (b == 77).all()


def test_a_refused_input_writes_nothing_either() -> None:
    outs = buffers()
    with pytest.raises(InputError):
        two().run_into(outs, X.astype(np.float64))
    assert all((o == 77).all() for o in outs)


def test_outputs_may_be_columns_of_one_array() -> None:
    run = compile(build(lambda b: ((x := b.input("x", (4, 2))), -x)))
    both = np.zeros((4, 4), np.float32)
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    run.run_into((both[:, :2], both[:, 2:]), x)
    np.testing.assert_array_equal(both, np.hstack([x, -x]))


# ---- memory, and what one may ask
RUN_OF_A_LARGE_GRAPH = """
from rlxpy import Builder, CompileOptions, compile, sym
b = Builder()
x = b.input("x", (sym("B", 1, 1 << 14), sym("S", 1, 1 << 14)))
run = compile(b.finish((x + 1.0).softmax(axis=-1).sum(axes=(1,))), device="reference", options=CompileOptions(debug=True))
assert run.memory()["arena_nbytes"] >= 1 << 30
result = run([[1, -2, 3], [4, 5, -6]]).tolist()
most, = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))  # getrusage would count the parent before exec
print(result, int(most) >> 10)
"""


def test_a_run_touches_the_memory_of_its_own_sizes_in_debug_mode_too() -> None:
    """A GiB at the upper bounds; a run of 2 by 3 needs a page."""
    said = subprocess.run([sys.executable, "-c", RUN_OF_A_LARGE_GRAPH], capture_output=True, text=True, check=True).stdout
    result, _, mebibytes = said.rpartition(" ")
    np.testing.assert_allclose(ast.literal_eval(result), [1, 1], rtol=1e-6)
    assert int(mebibytes) < 500


def test_memory_that_cannot_be_had_is_an_error_with_the_bytes() -> None:
    n = sym("N", 1, 1 << 30)
    run = compile(build(lambda b: (b.input("x", (n, n)) + 1.0).relu()))
    with pytest.raises(InputError, match=str(4 << 60)) as caught:
        run(X[:, :2])
    assert "N up to 1073741824" in caught.value.why


def test_every_step_can_be_watched_and_dumped(tmp_path: Path) -> None:
    session, graph = Session(), build(lambda b: (b.input("x", (2, 3)) + 1.0) * 2.0)
    seen: list[tuple[str, Graph]] = []
    for _ in range(2):  # a plan that is kept is made again for whoever watches
        seen.clear()
        session.compile(graph, watch=lambda name, g: seen.append((name, g)))
        assert seen[0] == ("input", graph)
        assert {"canonicalise", "fuse"} <= {name for name, _ in seen}
    with settings.override(dump=tmp_path / "a" / "b"):
        session.compile(graph)
    files = sorted((tmp_path / "a" / "b").iterdir())
    assert [f.name.partition("-")[2] for f in files] == [f"{name}.rlx" for name, _ in seen]
    assert [parse(f.read_text()) for f in files] == [g for _, g in seen]
    (tmp_path / "file").touch()
    with settings.override(dump=tmp_path / "file" / "c"), pytest.raises(InputError, match="cannot be made") as caught:
        session.compile(graph)
    assert caught.value.where.startswith(__file__)


def test_each_level_of_debug_tells_more_of_every_compile(capsys: pytest.CaptureFixture[str]) -> None:
    b = Builder("told")
    graph = b.finish((b.input("x", (3, 4)) * 2.0).relu())
    parts = ("passes", "notes", "launches", "selection", "memory")
    for level in range(6):
        for _ in range(2):  # the second compile has its plan already
            with settings.override(debug=level):
                compile(graph, device="reference")
            said = capsys.readouterr().err.splitlines()
            assert [line for line in said if line in parts] == list(parts[:level])
            assert ("rlxpy: compiled told" in said) == (level > 0)
    with settings.override(debug=5, quiet=True):
        compile(graph, device="reference")
    assert capsys.readouterr().err == ""


def test_explain_and_reports_speak_of_this_graph() -> None:
    run = compile(build(lambda b: (b.input("x", (2, 3)) + 1.0) * b.param("w", (3,))), {"w": np.ones(3, np.float32)})
    text = run.explain()
    assert f"device {run.device}" in text
    assert "canonicalise" in text
    assert [n.name for n in run.inputs] == ["x"]
    assert run.param_names == ("w",)
    assert run.memory()["param_nbytes"] >= 12
    rows: list[Any] = run.dispatch()
    assert len(rows) == 1
    assert __file__ in rows[0]["where"]
