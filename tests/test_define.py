"""Ops written as functions: what a signature means, what follows from a body, and what is refused when an op is registered."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, make_dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from rlxpy import Builder, DType, Graph, Op, compile, parse, show, sym
from rlxpy.errors import AlreadyRegistered, BuildError, HookMismatch, NotRegistered, VerifyError
from rlxpy.extend import Attrs, OpExtension, OpRow, TensorType, declare_op, is_op_registered, op, register_op, register_op_strict, registry
from rlxpy.ir.dims import Dim
from rlxpy.ir.extension import registered_ops
from rlxpy.ir.verify import verify


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with registry():
        yield


X = np.linspace(-3, 5, 12, dtype=np.float32).reshape(3, 4)


def one(f: Callable[..., Any], shape: tuple[Dim, ...] = (3, 4)) -> Graph:
    b = Builder()
    made = f(b.input("x", shape))
    return b.finish(*(made if isinstance(made, tuple) else (made,)))


# ---- what a signature means ----------------------------------------------------------------------------------------
def softcap(x: Any, cap: float = 30.0) -> Any:
    """soft limit at +-cap"""
    return (x / cap).tanh() * cap


def test_inputs_parameters_defaults_and_doc() -> None:
    ext = op("acme.softcap")(softcap)
    assert registered_ops()["acme.softcap"] is ext
    assert (ext.row.arity, ext.inputs, ext.row.doc) == (1, ("x",), "soft limit at +-cap")
    graphs = [one(lambda x: ext(x, cap=2.0)), one(lambda x: ext(x, 2.0)), one(lambda x: ext(x, 2)), one(lambda x: x.builder.custom_op("acme.softcap", x, cap=2))]
    assert all(g == graphs[0] for g in graphs)
    assert "acme.softcap %0 {cap=30.0}" in show(one(ext))
    assert_allclose(compile(graphs[0]).run(X), np.tanh(X / 2) * 2, rtol=1e-6)


def test_optional_inputs_any_number_of_inputs_and_several_outputs() -> None:
    @op("acme.norm")
    def norm(x: Any, scale: Any = None) -> Any: return x if scale is None else x * scale

    @op("acme.total")
    def total(*xs: Any, twice: bool = False) -> Any:
        y = xs[0]
        for x in xs[1:]:
            y = y + x
        return y * 2.0 if twice else y

    @op("acme.parts")
    def parts(x: Any) -> Any: return x.floor(), x - x.floor(), x > 0.0

    assert (norm.row.arity, total.row.arity) == ((1, 2), (0, None))
    b = Builder()
    x = b.input("x", (3, 4))
    floor, rest, positive = parts(x)
    g = b.finish(total(norm(floor), norm(rest, x), x, twice=True), positive)
    assert parse(show(g)) == verify(g)
    got = compile(g).run(X)
    assert_allclose(got[0], 2 * (np.floor(X) + (X - np.floor(X)) * X + X), rtol=1e-5, atol=1e-6)
    assert_array_equal(got[1], X > 0)


def test_symbolic_sizes_and_types_follow_from_the_body() -> None:
    @op("acme.head")
    def head(x: Any, count: Dim, to: DType) -> Any: return x[:count].cast(to=to)

    S = sym("S", 2, 8)
    g = one(lambda x: head(x, S // 2, "f64"), (S, 4))
    assert str(g.output_types[0]) == "f64[(S//2),4]"
    assert parse(show(g)) == g
    for n in (5, 2, 8):
        x = np.arange(n * 4, dtype=np.float32).reshape(n, 4)
        assert_array_equal(compile(g).run(x), x[:n // 2].astype(np.float64))


def test_a_definition_run_again_makes_equal_graphs() -> None:
    first = one(op("acme.softcap")(softcap))
    assert one(op("acme.softcap")(softcap)) == first


def test_it_folds_through_its_body_and_fuses_as_if_written_by_hand() -> None:
    ext = op("acme.softcap")(softcap)
    c, by_hand = compile(one(lambda x: ext(x + 1.0, 2.0).exp())), compile(one(lambda x: (((x + 1.0) / 2.0).tanh() * 2.0).exp()))
    assert c.plan.graph == by_hand.plan.graph
    assert [(hit.label, hit.text) for hit in c.fusion.hits] == [("elementwise", "add div tanh mul exp : f32[3,4]")]
    b = Builder()
    folded = compile(b.finish(ext(b.const(X), 2.0)))
    assert [n.op for n in folded.plan.graph] == [Op.CONST]
    assert_allclose(folded.run(), np.tanh(X / 2) * 2, rtol=1e-6)


def test_a_mistake_inside_a_body_names_both_lines() -> None:
    @op("acme.wrong")
    def wrong(x: Any) -> Any: return x @ x

    here = wrong.row.lower.__code__.co_firstlineno  # type: ignore[union-attr]
    with pytest.raises(BuildError, match=rf"(?s)acme.wrong\(f32\[3,4\]\): matmul.*at: .*test_define.py:\d+\n.*inside the op, .*test_define.py:{here + 1}\n"):
        one(wrong)

    @op("acme.numbers")
    def numbers(x: Any) -> Any: return x * int("seven")

    here = numbers.row.lower.__code__.co_firstlineno  # type: ignore[union-attr]
    with pytest.raises(BuildError, match=rf"(?s)the body of acme.numbers failed\n  at: .*test_define.py:\d+\n  because: ValueError: .*; at .*test_define.py:{here + 1}\n"):
        one(numbers)


def test_an_op_made_of_itself_ends_or_is_told_once() -> None:
    op("acme.endless")(lambda x: x.builder.custom_op("acme.endless", x + 1.0))
    with pytest.raises(BuildError, match=r"^acme.endless\(f32\[3,4\]\): the body of acme.endless never ends\n  at: .*test_define.py") as e:
        one(lambda x: x.builder.custom_op("acme.endless", x))
    assert e.value.what.count("acme.endless") == 2

    @op("acme.halves")
    def halves(x: Any, n: int) -> Any: return x if n == 0 else halves(x / 2.0, n - 1)

    assert_array_equal(compile(one(lambda x: halves(x, 5))).run(X), X / 32)


# ---- parameters survive the text form ------------------------------------------------------------------------------
KINDS: tuple[tuple[str, Any, Any], ...] = (
    ("int", np.int64(3), 4), ("int", True, 0), ("float", 1, 0.5), ("bool", True, False), ("str", "a 'b' // {c}", "d"), ("DType", "f16", "i8"), ("Dim", sym("S", 1, 9) + 1, 3),
    ("Shape", (sym("S", 1, 9), 2), (3,)), ("tuple[int, ...]", 5, (1, 2)), ("tuple[float, ...]", [0.5, float("inf"), float("nan"), -0.0], (0.5, float("inf"), float("nan"), 0.0)),
    ("tuple[str, ...]", ["a", "b"], ()), ("tuple[tuple[int, int], ...]", [[1, 2], (3, 4)], ()), ("tuple[str, float]", ("a", 1), ("a", 2)), ("float | None", None, 0.0),
    ("int | None", 3, None), ("Constant", [1.0, 2.0], 3), ("Graph", one(lambda x: x.exp()), one(lambda x: x)), ("Graph | None", None, one(lambda x: x)),
)


@pytest.mark.parametrize(("kind", "value", "other"), KINDS, ids=[k for k, _, _ in KINDS])
def test_a_parameter_of_every_kind_is_written_read_and_told_apart(kind: str, value: Any, other: Any) -> None:
    def f(x: Any, p: Any) -> Any: return x
    f.__annotations__ = {"p": kind}
    ext = op("acme.kind")(f)
    g = one(lambda x: ext(x, p=value))
    assert parse(show(g)) == verify(g) == parse(show(parse(show(g))))
    assert g != one(lambda x: ext(x, p=other))
    hash(g)


@pytest.mark.parametrize(("kind", "value"), [("tuple[str, ...]", "abc"), ("tuple[int, int]", (1, 2, 3)), ("tuple[int, ...]", (1.5,)), ("float", "high"), ("bool", 1), ("str", 3),
                                             ("Graph", 3), ("tuple[float, ...]", 1.0), ("int | None", "x")])
def test_a_parameter_of_another_kind_is_refused(kind: str, value: Any) -> None:
    def f(x: Any, p: Any) -> Any: return x
    f.__annotations__ = {"p": kind}
    ext = op("acme.kind")(f)
    with pytest.raises(BuildError, match=r"acme.kind: p = .*\n.*\n?.*because: p is "):
        one(lambda x: ext(x, p=value))


# ---- what is refused when it is registered -------------------------------------------------------------------------
@dataclass(frozen=True)
class Count(Attrs):
    n: int = 1


@dataclass(frozen=True)
class Listed(Attrs):
    n: list[int] = field(default_factory=list)


def same(x: Any, n: int) -> Any: return x.shape
def kept(x: Any, n: int) -> Any: return x.dtype
def row(**cells: Any) -> OpRow: return replace(OpRow(1, same, kept, attrs=Count), **cells)


REFUSED: list[tuple[str, Callable[[], Any], str]] = [
    ("swapped names", lambda: row(shape=lambda n, x: x), r"shape of acme.foo is shape\(n, x\)\n(.*\n)*.*called as shape\(x0, n=..\): multiple values for argument 'n'"),
    ("an input missing", lambda: row(lower=lambda n: n), r"lower\(n\)"),
    ("a parameter missing", lambda: row(lower=lambda x: x), r"lower\(x\)\n(.*\n)*.*called as lower\(x0, n=..\): got an unexpected keyword argument 'n'"),
    ("one input too many", lambda: row(dtype=lambda x, y, n: x.dtype), r"missing a required argument: 'y'"),
    ("a rule for fewer inputs than the most", lambda: row(arity=(1, 3), shape=lambda x, y=None, n=1: x.shape), r"shape\(x0, x1, x2, n=..\): multiple values for argument 'n\'"),
    ("a rule that takes one of any number", lambda: row(arity=(1, None)), r"shape\(x0, x1, n=..\)"),
    ("vjp without dy", lambda: row(vjp=lambda x, n: (x,)), r"vjp\(dy, y, x0, n=..\)"),
    ("jvp without y", lambda: row(jvp=lambda dxs, x, n: x), r"jvp\(dxs, y, x0, n=..\)"),
    ("vmap without batched", lambda: row(vmap=lambda x, n: x), r"vmap\(batched, x0, n=..\)"),
    ("a reference that takes no parameter", lambda: row(ref=lambda x: x), r"ref\(x\)"),
    ("a lowering of another shape", lambda: row(lower=lambda x, n: x.sum(axes=(0,))), r"lower of acme.foo gives f32\[4\]\n(.*\n)*.*f32\[4,4\] is wanted for inputs f32\[4,4\]"),
    ("a lowering of another type", lambda: row(lower=lambda x, n: x.cast(to="f64")), r"gives f64\[4,4\]"),
    ("a lowering without a return", lambda: row(lower=lambda x, n: None), r"gives None"),
    ("a lowering of two", lambda: row(lower=lambda x, n: (x, x)), r"gives f32\[4,4\], f32\[4,4\]"),
    ("a gradient that is no tuple", lambda: row(vjp=lambda dy, y, x, n: dy), r"vjp of acme.foo gives f32\[4,4\]\n(.*\n)*.*in a tuple"),
    ("too few gradients", lambda: row(arity=2,
                                      shape=lambda a, b, n: a.shape, dtype=lambda a, b, n: a.dtype, vjp=lambda dy, y, a, b, n: (dy,)),
     r"vjp of acme.foo gives f32\[4,4\]\n(.*\n)*.*f32\[4,4\], f32\[4,4\] is wanted"),
    ("a gradient of another shape", lambda: row(vjp=lambda dy, y, x, n: (dy.sum(axes=(0,)),)), r"gives f32\[4\]"),
    ("a tangent of another type", lambda: row(jvp=lambda dxs, y, x, n: dxs[0].cast(to="f16")), r"jvp of acme.foo gives f16\[4,4\]"),
    ("a batch that is lost", lambda: row(vmap=lambda batched, x, n: x[0]), r"vmap of acme.foo gives f32\[4,4\]\n(.*\n)*.*f32\[3,4,4\] is wanted"),
    ("dtypes as text", lambda: row(dtypes="unknown"), r"dtypes 'unknown'"),
    ("dtypes as a tuple of text", lambda: row(dtypes=("f32",)), r"each input needs a set of DTypes"),
    ("an arity as text", lambda: row(arity="2"), r"arity '2'"),
    ("an arity upside down", lambda: row(arity=(3, 1)), r"arity \(3, 1\)"),
    ("parameters that cannot be written down", lambda: row(attrs=Listed), r"parameter n: list\[int\]\n(.*\n)*.*no text form"),
    ("parameters that are no dataclass of ours", lambda: row(attrs=dict), r"made from Attrs"),
    ("a rule that is no function", lambda: row(shape=(3, 4)), r"shape is \(3, 4\)"),
    *((f"{cell} as {kind}", lambda cell=cell, held=held: row(**{cell: held}), rf"{cell} is {held!r}\n(.*\n)*.*it is no function")
      for cell in ("ref", "lower", "vjp", "jvp", "vmap") for kind, held in (("text", "unknown"), ("a number", 3))),
    *((f"a parameter named {name}", lambda name=name: row(attrs=make_dataclass("Named", [(name, int)], bases=(Attrs,), frozen=True)), f"a parameter named {name}")
      for name in ("params", "graphs", "bind", "symbolic")),
    ("no row", lambda: 3, r"has no row"),
    ("a shape without a return", lambda: row(shape=lambda x, n: None), r"rules of acme.foo give no type\n(.*\n)*.*shape gives None"),
    ("a type where a shape is wanted", lambda: row(shape=lambda x, n: x), r"rules of acme.foo give no type"),
    ("a dtype as text", lambda: row(dtype=lambda x, n: "f32"), r"dtype gives 'f32'"),
    ("two shapes of one dtype", lambda: row(shape=lambda x, n: [x.shape, x.shape]), r"rules of acme.foo disagree"),
    ("whole types that are shapes", lambda: row(shape=lambda x, n: x.shape, dtype=None), r"type rule of acme.foo gives no type\n(.*\n)*.*it gives \(4, 4\)"),
]


@pytest.mark.parametrize(("make", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_a_hook_that_does_not_fit_is_refused_when_it_is_registered(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(HookMismatch, match=words) as e:
        register_op(OpExtension("acme.foo", make()))
    assert __file__ in e.value.where
    assert e.value.why
    assert e.value.fix
    assert not is_op_registered("acme.foo")


@pytest.mark.parametrize("inputs", ["xy", ("x", "x"), ("1",), ["x"], (3,)])
def test_names_of_inputs_are_names(inputs: Any) -> None:
    with pytest.raises(HookMismatch, match="no tuple of different names"):
        register_op(OpExtension("acme.foo", row(), inputs))


def test_hooks_that_fit_are_taken() -> None:
    fits = row(lower=lambda x, **attrs: x, ref=lambda *xs, n: xs[0], vjp=lambda dy, y, x, n: (None,), jvp=lambda dxs, y, x, n: dxs[0], vmap=lambda batched, x, n: x)
    assert register_op(OpExtension("acme.fits", fits)).row is fits
    assert register_op(OpExtension("acme.ufunc", OpRow(1, lambda x: x.shape, lambda x: x.dtype, ref=np.exp))).name == "acme.ufunc"


SIGNATURES: list[tuple[str, Callable[[], Any], str]] = [
    ("an annotation of no kind", lambda: op("acme.foo")(_annotated("list[int]")), r"p: 'list\[int\]'.* in f\(x, p: .*\n(.*\n)*.*no text form"),
    ("any keywords", lambda: op("acme.foo")(lambda x, **more: x), r"\*\*more"),
    ("a default for an input", lambda: op("acme.foo")(lambda x, y=3: x), r"y=3"),
    ("an input that comes by keyword", lambda: op("acme.foo")(lambda x, *, y: x), r"keyword-only"),
    ("an input behind a parameter", lambda: op("acme.foo")(_late), r"an input stands behind a parameter"),
    ("a default of another kind", lambda: op("acme.foo")(_defaulted), r"default p = 'x'"),
    ("swapped inputs in a hook", lambda: op("acme.foo", vjp=lambda dy, z, y, x: (dy, dy))(lambda x, y: x + y), r"y would be x, x would be y"),
    ("a hook without the parameter", lambda: op("acme.foo", vjp=lambda dy, y, x: (dy,))(softcap), r"vjp\(dy, y, x, cap=..\)"),
    ("not a function", lambda: op("acme.foo")(3), r"made from int"),  # type: ignore[arg-type]
    ("no name", lambda: op(lambda x: x), r"is not named vendor.op"),  # type: ignore[arg-type]
    ("types without a name", lambda: declare_op(lambda x: x), r"is not named vendor.op"),  # type: ignore[arg-type]
    ("a body without a return", lambda: op("acme.foo")(lambda x: None), r"the body gives NoneType"),
    ("a body that gives a list", lambda: op("acme.foo")(lambda x: [x, x]), r"the body gives list"),
    ("a body that gives nothing", lambda: op("acme.foo")(lambda x: ()), r"an empty tuple"),
    ("types without a return", lambda: declare_op("acme.foo")(lambda x: None), r"type rule of acme.foo gives no type\n(.*\n)*.*it gives None"),
    ("no types", lambda: declare_op("acme.foo")(lambda x: ()), r"type rule of acme.foo gives no type"),
    ("types that are none", lambda: one(declare_op("acme.bar")(lambda x: x.shape)), r"type rule of acme.bar gives no type"),
]


def _annotated(kind: str) -> Callable[..., Any]:
    def f(x: Any, p: Any) -> Any: return x
    f.__annotations__ = {"p": kind}
    return f


def _late(x: Any, p: int, y: Any) -> Any: return x
def _defaulted(x: Any, p: float = "x") -> Any: return x  # type: ignore[assignment]


@pytest.mark.parametrize(("make", "words"), [s[1:] for s in SIGNATURES], ids=[s[0] for s in SIGNATURES])
def test_a_function_that_says_no_signature_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(BuildError, match=words) as e:
        make()
    assert __file__ in e.value.where
    assert not is_op_registered("acme.foo")


def test_a_clash_names_both_places() -> None:
    first = op("acme.softcap")(softcap)
    second = OpExtension("acme.softcap", first.row)
    with pytest.raises(AlreadyRegistered, match=rf"because: by .*test_define.py:{first.where.line}, and now by .*test_define.py:{second.where.line}") as e:
        register_op_strict(second)
    assert first.where.line != second.where.line
    assert __file__ in e.value.where


def test_a_declared_op_has_types_and_nothing_to_run_it_with() -> None:
    @declare_op("acme.median")
    def median(x: Any) -> Any: return TensorType(x.shape[:-1], x.dtype)

    @declare_op("acme.pair")
    def pair(x: Any, y: Any = None) -> Any: return x, TensorType((), DType.I32)

    g = one(lambda x: (median(x), *pair(x)))
    assert [str(t) for t in g.output_types] == ["f32[3]", "f32[3,4]", "i32[]"]
    assert parse(show(g)) == verify(g)


def test_builders_report_the_kinds_of_error() -> None:
    ext = op("acme.softcap")(softcap)
    b = Builder()
    x = b.input("x", (3,))
    assert isinstance(b.try_custom_op("acme.softcab", x), NotRegistered)
    assert type(b.try_custom_op("acme.softcap", x, x)).__name__ == "ArityMismatch"
    found: Any = b.try_custom_op("acme.softcap", x, cap=1.0)
    assert found.ref == ext(x, 1.0).ref == ext(x, cap=1.0).ref
    y = op("acme.sub")(lambda x, y: x - y)(1.0, x)
    assert_array_equal(compile(b.finish(y)).run(np.array([1, 2, 3], np.float32)), [0, -1, -2])


def test_a_graph_of_an_op_that_was_registered_anew_is_told_what_changed() -> None:
    @op("acme.scaled")
    def scaled(x: Any, by: float = 1.0) -> Any: return x * by

    g = one(lambda x: scaled(x, by=2.0))
    f = compile(g)

    @op("acme.scaled")
    def other(x: Any, times: int = 1, plus: float = 0.0) -> Any: return x * times + plus

    with pytest.raises(VerifyError, match=r"its parameters are by, and those of acme.scaled as it is registered now times, plus"):
        compile(g)
    assert_allclose(f(X), X * 2, rtol=1e-6)  # what was compiled before is as it was
