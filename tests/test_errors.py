"""Every mistake gets a sentence: what, where (the very line), why (two concrete values), how to fix it; and nothing else escapes."""
from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, CompileOptions, Op, Session, compile, parse, sym
from rlxpy.errors import RlxError
from rlxpy.ir import functions as F

THREE: Any = 3


class Mistake:
    """A user with a graph half built, who errs on one line: each mistake is a lambda on a line of its own."""

    def __init__(self) -> None:
        b = self.b = Builder()
        self.x, self.y, self.i = b.input("x", (2, 3)), b.input("y", (3, 4)), b.input("i", (5,), "i64")
        self.S, self.B = sym("S", 1, 8), sym("B", 1, 4)
        self.t = b.input("t", (self.S, 4))
        doubling = Builder()
        self.run = compile(doubling.finish(doubling.input("x", (2, 3)) * 2.0))
        self.other = Builder("other").input("z", (2, 3))


BUILD: list[tuple[str, Callable[[Mistake], Any], str, str]] = [  # title, the mistake, words of `what`, words of `why`
    ("matmul of shapes that do not meet", lambda m: m.x @ m.x, "matmul of [2,3], [2,3]", "3 columns meet 2 rows"),
    ("matmul of a vector", lambda m: m.x[0] @ m.y, "matmul of [3], [3,4]", "rank 2"),
    ("shapes that do not broadcast", lambda m: m.x + m.y, "[2,3], [3,4] do not broadcast", "2 and 3 differ"),
    ("symbolic shapes that do not broadcast", lambda m: m.t + m.y, "[S,4], [3,4]", "S and 3 differ"),
    ("mixed types", lambda m: m.x + m.i[:3].cast(to="i32"), "mixed dtypes f32, i32", "never converts"),
    ("a type an op does not take", lambda m: m.i.sqrt(), "sqrt: input 0 is i64[5]", "i64 is not among"),
    ("integers divided", lambda m: m.i / m.i, "div: input 0 is i64[5]", "i64 is not among"),
    ("float indices", lambda m: m.x.gather(m.x, axis=0), "gather: input 1 is f32[2,3]", "f32 is not among"),
    ("an axis too far", lambda m: m.x.softmax(axis=2), "axis 2 of a rank 2", "-2..1"),
    ("an axis of a scalar", lambda m: m.x.sum(axes=(0, 1)).softmax(axis=0), "axis 0 of a rank 0", "no axes"),
    ("an axis twice", lambda m: m.x.sum(axes=(1, -1)), "axes (1, -1) repeat", "rank 2"),
    ("an axis that is no int", lambda m: m.x.softmax(axis=1.0), "axis = 1.0", "float"),
    ("a parameter misspelt", lambda m: m.x.softmax(axs=1), "softmax", "no parameter axs"),
    ("a parameter missing", lambda m: m.x.sum(), "sum", "'axes'"),
    ("a flag that is no flag", lambda m: m.x.sum(axes=0, keep="no"), "keep = 'no'", "str is not True or False"),
    ("too many inputs", lambda m: m.x.relu(m.x), "relu takes 1 inputs, got 2", "f32[2,3], f32[2,3]"),
    ("too few inputs", lambda m: m.b.emit("add", m.x), "add takes 2 inputs, got 1", "f32[2,3]"),
    ("an unknown op", lambda m: m.b.emit("sofmax", m.x), "no op 'sofmax'", "ops"),
    ("no value among the inputs", lambda m: Op.RELU(3), "relu of 3", "none of them"),
    ("a number where a value is meant", lambda m: m.b.emit("relu", THREE), "3 is not a value", "input"),
    ("text in arithmetic", lambda m: m.x + "a", "'a' is not a value", "str"),
    ("None in arithmetic", lambda m: None * m.x, "None is not a value", "NoneType"),
    ("a parameter by position", lambda m: m.x.transpose((1, 0)), "(1, 0) is not a value", "tuple"),
    ("a size to be worked out", lambda m: m.x.reshape(shape=(-1,)), "reshape of [2,3] to [-1]", "6 elements become -1"),
    ("a float beside integers", lambda m: m.i + 0.5, "0.5 beside a i64", "float"),
    ("a complex beside floats", lambda m: m.x * 1j, "1j beside a f32", "complex"),
    ("a number that does not fit", lambda m: m.i.cast(to="i8") + 300, "does not fit i8", "300"),
    ("a float that overflows", lambda m: m.x + 1e300, "does not fit f32", "1e+300"),
    ("NumPy's doubles", lambda m: m.x * np.ones(3), "mixed dtypes f32, f64", "never converts"),
    ("NumPy on the left", lambda m: np.ones(3) + m.x, "mixed dtypes f64, f32", "never converts"),
    ("a value of another graph", lambda m: m.x + m.other, "graph 'other' used in graph 'main'", "another Builder"),
    ("a reshape that loses elements", lambda m: m.x.reshape(shape=(4, 2)), "reshape of [2,3] to [4,2]", "6 elements become 8"),
    ("a -1 that cannot be told", lambda m: F.reshape(m.x, (4, -1)), "reshape of [2,3] to [4,-1]", "6 / 4"),
    ("two -1", lambda m: F.reshape(m.x, (-1, -1)), "to [-1,-1]", "-1 cannot"),
    ("a transpose without an axis", lambda m: m.x.transpose(perm=(0, 0)), "transpose of f32[2,3] by (0, 0)", "every axis"),
    ("an expand of what is not 1", lambda m: m.x.expand(shape=(4, 3)), "[2,3], [4,3]", "2 and 4"),
    ("a concat of unequal shapes", lambda m: F.concat([m.x, m.y], 0), "concat of [2,3], [3,4]", "all axes but 0"),
    ("a concat of nothing", lambda m: F.concat([], 0), "concat of nothing", "0 values"),
    ("a split that leaves some", lambda m: F.split(m.x, (1, 1), 1), "split of f32[2,3] into [1, 1]", "add up to 2, axis 1 has 3"),
    ("a squeeze of what is not 1", lambda m: F.squeeze(m.x, 0), "squeeze of axis 0", "2, not 1"),
    ("an index too far", lambda m: m.x[2], "index 2 into f32[2,3]", "-2..1"),
    ("an index too many", lambda m: m.x[0, 0, 0], "3 indices into f32[2,3]", "2 axes"),
    ("an index that is a float", lambda m: m.x[1.5], "1.5", "float"),
    ("an index that is a value", lambda m: m.x[m.i], "index", "Value"),
    ("an index that is a list", lambda m: m.x[[0, 1]], "index [0, 1]", "list"),
    ("an index that is a bool", lambda m: m.x[True], "index True", "bool"),
    ("a slice backwards", lambda m: m.x[::-1], "step -1", "above 0"),
    ("a slice with step 0", lambda m: m.x[::0], "step 0", "above 0"),
    ("a slice to text", lambda m: m.x[:"a"], "'a' is not a size", "str"),
    ("a slice beyond what S may be", lambda m: m.t[:5], "slice 0:5:1 of axis 0 of f32[S,4]", "for every size"),
    ("top_k of more than there is", lambda m: m.x.top_k(k=4), "top_k of 4", "3 elements"),
    ("attention of rank 2", lambda m: m.x.attention(m.x, m.x, scale=1.0), "attention of [2,3]", "[batch, heads, length, channels]"),
    ("a norm with a scale of another width", lambda m: m.x.layer_norm(m.i.cast(to="f32"), eps=1e-5), "normalisation of f32[2,3] with f32[5]", "[3]"),
    ("an unknown type", lambda m: m.x.cast(to="float33"), "no dtype 'float33'", "float32"),
    ("NumPy's short names", lambda m: m.b.input("n", (2,), "<i8"), "no dtype '<i8'", "i8"),
    ("no type", lambda m: m.x.cast(to=None), "no dtype None", ""),
    ("an input twice", lambda m: m.b.input("x", (5,)), "input 'x' is declared twice", "f32[2,3] and as f32[5]"),
    ("a negative size", lambda m: m.b.input("n", (-1,)), "input 'n' of shape [-1]", "0 or more"),
    ("a size that is a float", lambda m: m.b.input("n", (2.5,)), "2.5 is not a size", "float"),  # type: ignore[arg-type]
    ("a size that is text", lambda m: m.b.input("n", "S"), "'S' is not a size", "str"),  # type: ignore[arg-type]
    ("a symbol with two ranges", lambda m: m.b.input("n", (sym("S", 1, 9),)), "symbol S has two ranges", "(1, 8) and, in input 'n', (1, 9)"),
    ("a symbol without sizes", lambda m: sym("Q", 5, 2), "symbol Q in 5..2", "lo <= hi"),
    ("a symbol that is no name", lambda m: sym("a b"), "'a b' is not a name", ""),
    ("a size divided by 0", lambda m: m.S // 0, "size S divided by 0", "0 is not"),
    ("sizes divided", lambda m: m.S // m.B, "size S divided by B", "B is not"),  # type: ignore[operator]
    ("sizes compared", lambda m: m.S < m.B, "S compared with B", "run time"),
    ("a size as a number", lambda m: range(m.S), "size S is known only", ""),
    ("a size and a half", lambda m: m.S + 0.5, "0.5 is not a size", "float"),  # type: ignore[operator]
    ("a ragged constant", lambda m: m.b.const([[1], [2, 3]]), "not an array", "inhomogeneous"),
    ("a constant of text", lambda m: m.b.const("a"), "constant cannot be", "str"),
    ("a constant that is cut", lambda m: m.b.const(1.5, "i32"), "constant cannot be i32", "float64"),
    ("an output that is no value", lambda m: m.b.finish([m.x]), "is not a value", "input"),  # type: ignore[arg-type]
    ("outputs in a tuple", lambda m: m.b.finish((m.x, m.x)), "is not a value", "input"),  # type: ignore[arg-type]
    ("an output of another graph", lambda m: m.b.finish(m.other), "graph 'other'", "another Builder"),
    ("an unregistered extension", lambda m: m.b.custom_op("vendor.op", m.x), "'vendor.op' is not registered", "near"),
]

X = np.zeros((2, 3), np.float32)
RUN: list[tuple[str, Callable[[Mistake], Any], str, str]] = [
    ("a wrong shape", lambda m: m.run(X.T), "input 'x' has the wrong size on axis 0", "[3,2] was given, f32[2,3]"),
    ("a wrong rank", lambda m: m.run(X[0]), "input 'x' has the wrong rank", "[3] was given, f32[2,3]"),
    ("a wrong type", lambda m: m.run(X.astype(float)), "input 'x' has the wrong type", "float64 was given, f32"),
    ("a ragged list", lambda m: m.run([[1], [2, 3]]), "input 'x' is not an array", "inhomogeneous"),
    ("an unknown name", lambda m: m.run(z=X), "input 'z' does not exist", "'x'"),
    ("an unknown size", lambda m: m.run(X, sizes={"Q": 2}), "size 'Q' does not exist", "none"),
    ("an output of another shape", lambda m: m.run.run_into(X.T.copy(), X), "output 'out0'", "float32[3,2] was given, a writable f32[2,3]"),
    ("an unknown weight", lambda m: m.run.set_param("w", X), "no param 'w'", "0"),
    ("no graph", lambda m: compile(m.b), "compile takes a Graph, not Builder", ""),  # type: ignore[arg-type]
    ("a weight that is missing", lambda m: compile(m.b.finish(m.b.param("w", (2,)))), "1 of 1 params", "'w'; given: 0"),
    ("weights in a list", lambda m: compile(m.run.source, [X]), "params given as list", "mapping"),  # type: ignore[arg-type]
    ("an unknown device", lambda m: compile(m.run.source, device="referense"), "no device 'referense'", "reference"),
    ("options in a dict", lambda m: Session(options={"optimise": False}), "options=", "dict"),  # type: ignore[arg-type]
    ("an unknown kind of weights", lambda m: CompileOptions(weights="dens"), "weights='dens'", "dense"),
]


def fails(mistake: Callable[[Mistake], Any]) -> RlxError:
    m = Mistake()
    with pytest.raises(RlxError) as caught:
        mistake(m)
    return caught.value


def line_of(f: Callable[..., Any]) -> str:
    return f"{__file__}:{inspect.getsourcelines(f)[1]}"


@pytest.mark.parametrize(("mistake", "what", "why"), [r[1:] for r in BUILD + RUN], ids=[r[0] for r in BUILD + RUN])
def test_what_where_why_and_fix(mistake: Callable[[Mistake], Any], what: str, why: str) -> None:
    e = fails(mistake)
    assert what in e.what
    assert why in e.why
    assert e.where == line_of(mistake)
    assert e.fix
    assert str(e).splitlines()[0] == e.what.splitlines()[0]


@pytest.mark.parametrize(("mistake", "fix"), [
    (lambda m: m.x.transpose((1, 0)), "x.transpose(perm=..)"),
    (lambda m: m.x.reshape(shape=(-1,)), "each size is written out"),
    (lambda m: m.x.sum(dim=1), "by name, are: axes"),
    (lambda m: m.b.finish((m.x, m.x)), "finish(y, z)"),
])
def test_habits_from_elsewhere_are_answered(mistake: Callable[[Mistake], Any], fix: str) -> None:
    assert fix in fails(mistake).fix


def test_a_method_that_is_no_op_names_those_near_it() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'soft_max'.*near it: softmax"):
        Mistake().x.soft_max(axis=1)


@pytest.mark.parametrize("mistake", [r[1] for r in BUILD + RUN], ids=[r[0] for r in BUILD + RUN])
def test_nothing_from_inside_is_chained(mistake: Callable[[Mistake], Any]) -> None:
    e = fails(mistake)
    assert e.__cause__ is None
    assert "During handling" not in "".join(traceback.format_exception(e))


@pytest.mark.parametrize("mistake", [r[1] for r in BUILD], ids=[r[0] for r in BUILD])
def test_a_mistake_leaves_the_builder_as_it_was(mistake: Callable[[Mistake], Any]) -> None:
    m = Mistake()
    before = m.b.finish(m.x @ m.y)
    with pytest.raises(RlxError):
        mistake(m)
    assert m.b.finish(m.x @ m.y) == before


# ---- at run time the place is the line that made the node, whatever became of it
def failing(op: str) -> tuple[Any, int]:
    """A graph whose `op` meets index 7 at run time, and the line of that op; around it, what fuses and is rewritten."""
    b = Builder()
    x, i = b.input("x", (4, 3)), b.input("i", (), "i64")
    y = (x + 1.0) * 2.0 - 0.0
    picked = y.gather(i, axis=0) if op == "gather" else y.take_along(i.expand(shape=(1, 3)), axis=0)
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    return b.finish((picked.relu() * 1.0).sum(axes=(-1,)) + 1.0), line


@pytest.mark.parametrize("op", ["gather", "take_along"])
@pytest.mark.parametrize("optimise", [True, False])
def test_an_error_of_a_run_names_the_line_that_made_the_node(op: str, optimise: bool) -> None:
    graph, line = failing(op)
    run = compile(graph, options=CompileOptions(optimise=optimise))
    for _ in range(2):
        with pytest.raises(IndexError) as caught:
            run(np.zeros((4, 3), np.float32), 7)
        assert isinstance(caught.value, RlxError)
        assert f"{__file__}:{line}" in caught.value.where
        assert f"{op}: index 7 on axis 0" in caught.value.what
        assert "-4..3" in caught.value.why
        assert caught.value.fix
        assert caught.value.__cause__ is None
        assert np.all(run(np.zeros((4, 3), np.float32), 3) == 7)


def test_an_index_that_is_wrong_in_the_weights_or_the_graph_names_its_line_too() -> None:
    b = Builder()
    table = b.param("table", (4, 3))
    bad = table.gather(b.const(4), axis=0) + 1.0
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    for optimise in (True, False):
        with pytest.raises(IndexError) as caught:
            compile(b.finish(bad), {"table": np.zeros((4, 3), np.float32)}, options=CompileOptions(optimise=optimise)).run()
        assert f"{__file__}:{line}" in str(caught.value)


# ---- a value is no number
MISUSES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "bool": (bool, "truth value"), "if": (lambda x: 1 if x > 0.0 else 2, "truth value"), "loop": (list, "looped over"), "unpack": (lambda x: [*x], "looped over"),
    "len of a symbol": (lambda x: len(x.reshape(shape=(6,)).expand(shape=(sym("N"), 6))), "no fixed length"), "asarray": (np.asarray, "no numbers"),
    "float": (float, "Value"), "int": (int, "Value"), "in": (lambda x: 1 in x, "Value"), "sum": (sum, "looped over"), "as an index": (lambda x: [1, 2][x], "Value"),
}


@pytest.mark.parametrize(("misuse", "says"), MISUSES.values(), ids=MISUSES)
def test_a_value_used_as_a_number_says_so(misuse: Callable[[Any], Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        misuse(Mistake().x)


def test_numpy_leaves_the_arithmetic_to_values() -> None:
    m = Mistake()
    ones = np.ones(3, np.float32)
    ours: tuple[Any, ...] = (ones + m.x, m.x - ones, np.float32(2) * m.x, ones[0] / m.x)
    run = compile(m.b.finish(*ours))
    x = np.array([[1, 2, 4], [8, -1, 0.5]], np.float32)
    for got, want in zip(run(x, np.zeros((3, 4), np.float32), np.zeros(5, np.int64), np.zeros((1, 4), np.float32)), (ones + x, x - ones, 2 * x, 1 / x), strict=True):
        np.testing.assert_array_equal(got, want)


# ---- whatever is thrown at the table, only our own errors come back
GARBAGE: tuple[Any, ...] = (
    None, True, -1, 0, 3, 2**70, 1.5, float("nan"), -0.0, 1j, "a", "f32", b"x", (), (0,), (0, 1), (-1, 5), (1.5,), ("a",), [], [0, 0], {}, {1}, object(), np.zeros(2), np.int64(1),
    sym("S", 1, 8), print)
GOOD: dict[str, Any] = {"axis": 0, "axes": (0,), "keep": False, "to": "f32", "shape": (2, 3), "dim": 3, "perm": (1, 0), "start": (0, 0), "stop": (1, 1), "step": (1, 1), "low": (0, 0),
                        "high": (1, 1), "eps": 1e-5, "scale": 1.0, "k": 1, "encoding": "q8_0", "value": 1.0}


@pytest.mark.parametrize("op", [op for op in Op if op not in (Op.CUSTOM, Op.FUSED)], ids=lambda op: op.text)
def test_garbage_in_the_parameters_of_an_op_gives_our_errors_or_a_node(op: Op) -> None:
    m = Mistake()
    fields = op.row.attrs.__dataclass_fields__
    least, _ = op.row.arity if isinstance(op.row.arity, tuple) else (op.row.arity, 0)
    for operand in (m.x, m.i, m.t):
        for name in fields:
            for junk in GARBAGE:
                try:
                    m.b.emit(op, *[operand] * least, **{**{k: GOOD[k] for k in fields if k in GOOD}, name: junk})
                except RlxError as e:
                    said = e.what, e.where
                    assert all(said)
                    assert said[1].startswith(__file__)


@pytest.mark.parametrize("junk", GARBAGE, ids=lambda v: re.sub(r" at 0x[0-9a-f]+", "", repr(v)))
def test_garbage_at_the_front_door_gives_our_errors_or_a_result(junk: Any) -> None:
    m = Mistake()
    doors: list[Callable[[], Any]] = [
        lambda: m.b.input("n", junk), lambda: m.b.input(junk, (2,)), lambda: m.b.input("n", (2,), junk), lambda: m.b.const(junk), lambda: m.b.const(junk, "i32"),
        lambda: m.x + junk, lambda: junk + m.x, lambda: m.x[junk], lambda: m.x[junk:], lambda: m.x[:junk], lambda: m.x[::junk], lambda: m.b.finish(junk),
        lambda: m.b.finish(m.x, names=(junk,)), lambda: m.b.emit(junk, m.x), lambda: m.b.emit("relu", junk), lambda: m.b.update(junk, m.x), lambda: F.reshape(m.x, junk),
        lambda: F.squeeze(m.x, junk), lambda: F.unsqueeze(m.x, junk), lambda: sym(junk), lambda: sym("N", junk), lambda: sym("N", 0, 8, junk), lambda: m.S + junk, lambda: m.S * junk,
        lambda: m.S // junk, lambda: compile(junk), lambda: compile(m.run.source, junk), lambda: compile(m.run.source, device=junk), lambda: compile(m.run.source, options=junk),
        lambda: Session(junk), lambda: CompileOptions(weights=junk), lambda: CompileOptions(kernels=junk), lambda: m.run(junk), lambda: m.run(x=junk), lambda: m.run(X, sizes=junk),
        lambda: m.run(X, sizes={"S": junk}), lambda: m.run({junk: X} if isinstance(junk, str) else {"x": junk}), lambda: m.run.run_into(junk, X), lambda: m.run.run_into((junk,), X),
        lambda: m.run.set_param(junk, X), lambda: parse(junk),
    ]
    for number, door in enumerate(doors):
        try:
            door()
        except RlxError:
            continue
        except Exception as e:
            pytest.fail(f"door {number} let {type(e).__name__} through: {e}")


def test_errors_are_json_too() -> None:
    assert fails(lambda m: m.x @ m.x).to_json() == {
        "error": "BuildError", "what": "matmul(f32[2,3], f32[2,3]): matmul of [2,3], [2,3]", "why": "3 columns meet 2 rows", "fix": "transpose one side",
        "where": f"{__file__}:{inspect.currentframe().f_lineno - 2}"}  # type: ignore[union-attr]
