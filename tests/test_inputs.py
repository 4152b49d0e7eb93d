"""What callers may pass to a compiled graph: kinds of array, layouts, types, names and sizes; and what each refusal says."""
from __future__ import annotations

import array
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, CompiledGraph, CompileOptions, DType, compile, sym
from rlxpy.errors import InputError


def plain_id(value: object) -> str:
    """A test's name that is the same in every process: no addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


class OnlyArray:
    """An array of another library: __array__ and nothing else."""

    def __init__(self, a: Any) -> None:
        self._a = a

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._a


class OnlyDlpack:
    def __init__(self, a: Any) -> None:
        self._a = a

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._a.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self._a.__dlpack_device__()


class OnlyInterface:
    def __init__(self, a: Any) -> None:
        self._a = a

    @property
    def __array_interface__(self) -> Any:
        return self._a.__array_interface__


class Subclass(np.ndarray[Any, Any]):
    """Arrays that say so."""


class Unreadable:
    """As a tensor on a GPU answers."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise TypeError("cannot convert a device tensor")


def affine(shape: tuple[Any, ...], dtype: str = "f32", optimise: bool = True) -> CompiledGraph:
    """(x + 1) * 2: two ops, so that it fuses."""
    b = Builder()
    x = b.input("x", shape, dtype)
    return compile(b.finish((x + b.const(1, x.dtype)) * b.const(2, x.dtype)), options=CompileOptions(optimise=optimise, debug=True))


def locked(a: Any) -> Any:
    a.flags.writeable = False
    return a


GRID = np.arange(6.0, dtype=np.float32).reshape(2, 3) - 2.5
VIEWS: dict[str, Callable[[], Any]] = {
    "plain": lambda: GRID.copy(),
    "Fortran order": lambda: np.asfortranarray(GRID),
    "reversed rows": lambda: GRID.copy()[::-1],
    "reversed both ways": lambda: GRID.copy()[::-1, ::-1],
    "every second": lambda: np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::2],
    "stride 0": lambda: np.broadcast_to(np.float32(2.5), (2, 3)),
    "one row for all": lambda: np.broadcast_to(np.arange(3, dtype=np.float32), (2, 3)),
    "read-only": lambda: locked(GRID.copy()),
    "big-endian": lambda: GRID.astype(">f4"),
    "unaligned": lambda: np.frombuffer(b"x" + GRID.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 3),
    "a field of records": lambda: np.array([[(i, j) for j in range(3)] for i in range(2)], [("a", "f4"), ("b", "i8")])["a"],
    "transposed": lambda: np.arange(6, dtype=np.float32).reshape(3, 2).T,
    "a subclass": lambda: GRID.copy().view(Subclass),
    "__array__ alone": lambda: OnlyArray(GRID[::-1]),
    "__dlpack__ alone": lambda: OnlyDlpack(GRID.copy()[::-1]),
    "__array_interface__ alone": lambda: OnlyInterface(GRID.copy()[:, ::-1]),
    "lists": lambda: GRID.tolist(),
    "tuples of ints": lambda: ((1, 2, 3), (-4, 5, 6)),
    "a list of arrays": lambda: [GRID[0], GRID[1]],
    "a buffer": lambda: memoryview(array.array("f", GRID.ravel())).cast("B").cast("f", (2, 3)),
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("optimise", [True, False])
def test_any_array_however_it_lies(make: Callable[[], Any], optimise: bool) -> None:
    given = make()
    plain = np.array(given if not isinstance(given, (OnlyArray, OnlyDlpack, OnlyInterface)) else given._a, np.float32)
    before = plain.copy()
    run = affine((2, 3), optimise=optimise)
    for _ in range(2):
        got = run(given)
        assert type(got) is np.ndarray
        assert got.dtype == np.float32
        assert got.dtype.isnative
        np.testing.assert_array_equal(got, (before + 1) * 2)
    now = given._a if isinstance(given, (OnlyArray, OnlyDlpack, OnlyInterface)) else given
    np.testing.assert_array_equal(np.array(now, np.float32), before, "the caller's array was written to")


@pytest.mark.parametrize("scalar", [3, 3.0, np.float32(3), np.array(3, np.float32), OnlyArray(np.array(3, np.float32)), array.array("f", [3])[0]], ids=plain_id)
def test_scalars_are_arrays_of_rank_0(scalar: Any) -> None:
    got = affine(())(scalar)
    assert (type(got), got.shape, got.dtype) == (np.ndarray, (), np.float32)
    assert got == 8


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (2, 0, 3)])
@pytest.mark.parametrize("optimise", [True, False])
def test_zero_size(shape: tuple[int, ...], optimise: bool) -> None:
    empty = np.zeros(shape, np.float32)
    for given in (empty, empty[::-1], empty.tolist()) if np.array(empty.tolist()).shape == shape else (empty, empty[::-1]):
        got = affine(shape, optimise=optimise)(given)
        assert (got.shape, got.dtype) == (shape, np.float32)


@pytest.mark.parametrize("d", [d for d in DType if d not in (DType.BOOL,) and d.bits >= 8], ids=str)
def test_every_type_comes_in_and_out_as_itself(d: DType) -> None:
    numbers = np.array([1, 2, 3, 5, 7]).astype(d.numpy)
    got = affine((5,), d.text)(numbers[::-1])
    assert got.dtype == d.numpy
    np.testing.assert_array_equal(got.astype(np.complex128), np.array([16, 12, 8, 6, 4]))


LISTS: list[tuple[str, Any, str]] = [
    ("i8", [127, -128], ""), ("i8", [128, 0], "0..128, i8 holds -128..127"), ("u8", [-1, 3], "-1..3, u8 holds 0..255"), ("i32", [2**31, 0], "i32 holds"),
    ("u64", [2**64 - 1, 0], ""), ("u64", [2**64, 0], "18446744073709551616"), ("i64", [2**70, 1], str(2**70)), ("i64", [-2**63, 2**63 - 1], ""),
    ("i32", [float("nan"), 1], "float64"), ("i32", [1.0, 2.0], "float64"), ("i32", [True, False], "bool"), ("i32", [1j, 2], "complex"),
    ("f32", [1e39, 1.0], "1e+39"), ("f32", [float("inf"), float("nan")], ""), ("f16", [65504, 1.0], ""), ("f16", [70000, 1], "70000"), ("f32", [10**400, 1], "object"),
    ("bf16", [1.5, -2], ""), ("f32", [1j, 0], "complex"), ("f32", [None, 1], "object"), ("f32", ["1", "2"], "str"), ("f32", [[1], [2, 3]], "inhomogeneous"),
    ("f32", {1, 2}, "set"), ("f32", "12", "str"), ("f32", None, "NoneType"), ("f32", object(), "object"), ("c64", [1, 2.5], ""),
    ("bool", [True, False], ""), ("bool", [1, 0], "int64"), ("i4", [7, -8], ""), ("i4", [8, 0], "i4 holds -8..7"), ("u4", [15, 0], ""), ("u4", [-1, 0], "u4 holds 0..15"),
]


def as_python(v: Any, dtype: str) -> Any:
    return {"f": float, "b": float if dtype == "bf16" else bool, "c": complex}.get(dtype[0], int)(v)


@pytest.mark.parametrize(("dtype", "given", "says"), LISTS, ids=[f"{d} {plain_id(g):.40}" for d, g, _ in LISTS])
def test_lists_take_the_wanted_type_when_they_fit_it(dtype: str, given: Any, says: str) -> None:
    b = Builder()
    run = compile(b.finish(b.input("x", (2,), dtype)))
    if not says:
        assert [repr(v) for v in run(given).tolist()] == [repr(as_python(v, dtype)) for v in given]
        return
    with pytest.raises(InputError) as caught:
        run(given)
    assert "'x'" in caught.value.what
    assert says in caught.value.why
    assert caught.value.fix


@pytest.mark.parametrize("given", [
    np.zeros((2, 3)), np.zeros((2, 3), np.int32), np.zeros((2, 3), np.float16), np.zeros((2, 3), object), np.zeros((2, 3), "U3"), np.zeros((2, 3), bool),
    np.zeros((2, 3), [("a", "f4")]), np.zeros((2, 3), "datetime64[s]"), OnlyArray(np.zeros((2, 3))), OnlyDlpack(np.zeros((2, 3), np.int64)), np.float64(1)], ids=plain_id)
def test_an_array_of_another_type_is_refused_with_the_cast_that_mends_it(given: Any) -> None:
    with pytest.raises(InputError) as caught:
        affine((2, 3))(given)
    assert "'x'" in caught.value.what
    assert "f32 is wanted" in caught.value.why
    assert "astype('float32')" in caught.value.fix


def test_what_cannot_be_read_says_why() -> None:
    with pytest.raises(InputError, match="cannot be read") as caught:
        affine((2, 3))(Unreadable())
    assert "Unreadable raised TypeError: cannot convert a device tensor" in caught.value.why


def test_a_value_of_a_graph_is_no_array() -> None:
    b = Builder()
    with pytest.raises(InputError, match="cannot be read"):
        affine((2, 3))(b.input("x", (2, 3)))


@pytest.mark.parametrize("shape", [(3,), (3, 2), (1, 2, 3), (2, 4), ()])
def test_a_wrong_shape_names_the_input_and_both_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as caught:
        affine((2, 3))(np.zeros(shape, np.float32))
    assert "'x'" in caught.value.what
    assert f"[{','.join(map(str, shape))}] was given, f32[2,3]" in caught.value.why


# ---- names
def subtract() -> CompiledGraph:
    b = Builder()
    return compile(b.finish(b.input("first", (2,)) - b.input("second", (2,))))


A, B = np.array([10, 20], np.float32), np.array([1, 2], np.float32)


@pytest.mark.parametrize("call", [
    lambda f: f(A, B), lambda f: f({"second": B, "first": A}), lambda f: f(second=B, first=A), lambda f: f(A, second=B), lambda f: f.run(A, B)])
def test_inputs_by_position_by_name_and_as_a_dict(call: Callable[[CompiledGraph], Any]) -> None:
    np.testing.assert_array_equal(call(subtract()), A - B)


NAME_MISTAKES: dict[str, tuple[Callable[[CompiledGraph], Any], str]] = {
    "missing": (lambda f: f(A), "'second' is missing"),
    "none at all": (lambda f: f(), "'first', 'second' is missing"),
    "unknown": (lambda f: f(A, B, secnd=B), "'secnd' does not exist"),
    "unknown in a dict": (lambda f: f({"first": A, "second": B, "third": B}), "'third' does not exist"),
    "twice": (lambda f: f(A, B, first=A), "'first' is given twice"),
    "too many": (lambda f: f(A, B, A), "3 inputs"),
    "a key that is no text": (lambda f: f({"first": A, 2: B}), "2 does not exist"),
    "self": (lambda f: f(A, B, self=A), "'self' does not exist"),
}


@pytest.mark.parametrize(("call", "says"), NAME_MISTAKES.values(), ids=NAME_MISTAKES)
def test_a_mistaken_name_is_named(call: Callable[[CompiledGraph], Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        call(subtract())
    assert says in caught.value.what
    assert "first" in caught.value.why
    assert caught.value.fix


# ---- symbolic sizes
def sized(*shapes: tuple[Any, ...], optimise: bool = True) -> CompiledGraph:
    """Each input's sum, so that nothing but the inputs tells the sizes."""
    b = Builder()
    sums = [b.input(f"x{i}", s).sum(axes=tuple(range(len(s)))) for i, s in enumerate(shapes)]
    return compile(b.finish(*sums), options=CompileOptions(optimise=optimise, debug=True))


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


S, T, BATCH, PAST = sym("S", 1, 9), sym("T", 1, 9), sym("B", 0, 4), sym("P", 0, 8)
LEARNT: dict[str, tuple[tuple[tuple[Any, ...], ...], tuple[tuple[int, ...], ...]]] = {
    "one symbol, two inputs": (((BATCH, 3), (BATCH,)), ((2, 3), (2,))),
    "none at all": (((BATCH, 3), (BATCH,)), ((0, 3), (0,))),
    "a product told by its factor": (((BATCH * S,), (BATCH,)), ((6,), (2,))),
    "the factor comes first": (((BATCH,), (BATCH * S,)), ((3,), (12,))),
    "a chain from the end": (((S * T,), (BATCH * S,), (BATCH,)), ((15,), (6,), (2,))),
    "one more": (((PAST + 1,), (PAST,)), ((1,), (0,))),
    "a multiple": (((2 * S, 3),), ((14, 3),)),
    "half, told elsewhere": (((S // 2,), (S,)), ((3,), (7,))),
    "a square, told elsewhere": (((S * S,), (S,)), ((49,), (7,))),
    "a difference": (((S - T,), (S,)), ((2,), (5,))),
}


@pytest.mark.parametrize(("shapes", "given"), LEARNT.values(), ids=LEARNT)
@pytest.mark.parametrize("optimise", [True, False])
def test_sizes_are_learnt_from_shapes(shapes: Any, given: Any, optimise: bool) -> None:
    got = sized(*shapes, optimise=optimise)(*(ones(*s) for s in given))
    np.testing.assert_array_equal(got, [np.prod(s) for s in given])


CONFLICTS: dict[str, tuple[tuple[tuple[Any, ...], ...], tuple[tuple[int, ...], ...], str]] = {
    "two inputs disagree": (((BATCH, 3), (BATCH,)), ((2, 3), (3,)), "3 was given, B is 2"),
    "two axes disagree": (((BATCH, BATCH),), ((2, 3),), "3 was given, B is 2"),
    "too large": (((BATCH,),), ((5,),), "B = 5, allowed are 0..4"),
    "too small": (((S,),), ((0,),), "S = 0, allowed are 1..9"),
    "a product that does not divide": (((BATCH,), (BATCH * S,)), ((2,), (7,)), "no S makes"),
    "one more, of nothing": (((PAST + 1,),), ((0,),), "P = -1, allowed are 0..8"),
    "a chain": (((S * T,), (BATCH * S,), (BATCH,), (T,)), ((15,), (6,), (2,), (4,)), "no S makes S*T equal to 15"),
    "steps": (((sym("M", 8, 32, 8),),), ((12,),), "in steps of 8"),
    "a half that is another": (((S // 2,), (S,)), ((2,), (7,)), "is 3"),
    "fixed": (((BATCH, 3),), ((2, 4),), "4 was given, 3 is fixed"),
}


@pytest.mark.parametrize(("shapes", "given", "says"), CONFLICTS.values(), ids=CONFLICTS)
def test_sizes_that_cannot_be_name_input_axis_and_both_numbers(shapes: Any, given: Any, says: str) -> None:
    with pytest.raises(InputError) as caught:
        sized(*shapes)(*(ones(*s) for s in given))
    assert "input 'x" in caught.value.what
    assert "axis" in caught.value.what
    assert says in caught.value.why


def counting() -> CompiledGraph:
    """x + P for a size P that no shape tells."""
    b = Builder()
    return compile(b.finish(b.input("x", (2,), "i64") + b.emit("size", dim=PAST)))


def test_a_size_that_no_shape_tells_is_passed_by_name() -> None:
    run = counting()
    for n in (0, 8, 3):
        np.testing.assert_array_equal(run([1, 2], sizes={"P": n}), [1 + n, 2 + n])
    numpys_own: Any = np.int32(5)
    np.testing.assert_array_equal(run([1, 2], sizes={"P": numpys_own}), [6, 7])


SIZE_MISTAKES: dict[str, tuple[Any, str, str]] = {
    "missing": ({}, "P is unknown", "no input"),
    "unknown": ({"P": 1, "Q": 2}, "'Q' does not exist", "'P'"),
    "too large": ({"P": 9}, "P = 9", "0..8"),
    "negative": ({"P": -1}, "P = -1", "0..8"),
    "not whole": ({"P": 2.5}, "2.5", "float"),
    "text": ({"P": "2"}, "'2'", "str"),
    "a list": ([3], "[3]", "list"),
}


@pytest.mark.parametrize(("sizes", "what", "why"), SIZE_MISTAKES.values(), ids=SIZE_MISTAKES)
def test_mistaken_sizes(sizes: Any, what: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        counting()([1, 2], sizes=sizes)
    assert what in caught.value.what
    assert why in caught.value.why
    assert caught.value.fix


def test_a_size_that_is_told_twice_must_agree() -> None:
    run = sized((BATCH, 3))
    assert run(ones(2, 3), sizes={"B": 2}) == 6
    with pytest.raises(InputError, match="axis 0"):
        run(ones(2, 3), sizes={"B": 3})


@pytest.mark.parametrize("optimise", [True, False])
def test_a_size_that_the_optimiser_has_no_use_for_is_still_the_callers_to_give(optimise: bool) -> None:
    b = Builder()
    x = b.input("x", (2,), "i64")
    nothing = (x - x) * b.emit("size", dim=PAST)
    run = compile(b.finish(x + nothing), options=CompileOptions(optimise=optimise))
    np.testing.assert_array_equal(run([1, 2], sizes={"P": 3}), [1, 2])


def test_a_refused_call_does_no_harm() -> None:
    def calls(run: CompiledGraph) -> Iterator[Callable[[], Any]]:
        yield lambda: run(ones(5, 3))
        yield lambda: run(np.ones((2, 3)))
        yield lambda: run()

    run = sized((BATCH, 3))
    for bad in calls(run):
        with pytest.raises(InputError):
            bad()
        assert run(ones(2, 3)) == 6
