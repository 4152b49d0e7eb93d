"""Symbolic sizes: their algebra is that of integers, their bounds hold, equal sizes are equal, and text reads back."""
from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, strategies as st

from rlxpy import sym
from rlxpy.errors import BuildError, InputError, RlxError
from rlxpy.ir.dims import (
    Dim,
    Sizes,
    Symbol,
    SymDim,
    at,
    check_sizes,
    divides,
    exact_quotient,
    lower,
    parse_dim,
    solve,
    symbols,
    upper,
)

SYMBOLS = {"A": Symbol("A", 0, 5), "B": Symbol("B", 1, 7), "S": Symbol("S", 4, 24, 4)}
DIMS: dict[str, Dim] = {s.name: sym(s.name, s.lo, s.hi, s.step) for s in SYMBOLS.values()}
ALL_SIZES: list[Sizes] = [dict(zip(SYMBOLS, v, strict=True)) for v in product(*(range(s.lo, s.hi + 1, s.step) for s in SYMBOLS.values()))]

# An expression as text: Python evaluates it over ints, rlxpy over dims.
leaves = st.one_of(st.sampled_from(list(SYMBOLS)), st.integers(-9, 9).map(str))
sums = st.recursive(leaves, lambda inner: st.one_of(
    st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    st.tuples(inner, st.sampled_from(["//", "%"]), st.integers(1, 6)).map(lambda t: f"({t[0]} {t[1]} {t[2]})")), max_leaves=6)


def dim_of(text: str) -> Dim:
    value: Dim = eval(text, {}, dict(DIMS))
    return value


@given(sums)
def test_algebra_is_that_of_integers(text: str) -> None:
    dim = dim_of(text)
    for sizes in ALL_SIZES[::7]:
        assert at(dim, sizes) == eval(text, {}, dict(sizes)), sizes


@given(sums)
def test_bounds_bound(text: str) -> None:
    dim = dim_of(text)
    values = [at(dim, sizes) for sizes in ALL_SIZES]
    assert lower(dim) <= min(values)
    assert max(values) <= upper(dim)


@given(sums, st.integers(1, 8))
def test_a_promised_divisor_divides(text: str, k: int) -> None:
    dim = dim_of(text)
    assert not divides(k, dim) or all(at(dim, sizes) % k == 0 for sizes in ALL_SIZES)


@given(sums)
def test_text_reads_back(text: str) -> None:
    dim = dim_of(text)
    assert parse_dim(str(dim), DIMS) == dim


@given(sums, sums)
def test_an_exact_quotient_is_one(a: str, b: str) -> None:
    x, y = dim_of(a), dim_of(b)
    for numerator in (x, x * y):
        q = exact_quotient(numerator, y)
        assert q is None or all(at(q, s) * at(y, s) == at(numerator, s) for s in ALL_SIZES[::7])


@given(sums, sums)
def test_equal_dims_hash_alike_and_have_equal_values(a: str, b: str) -> None:
    x, y = dim_of(a), dim_of(b)
    if x == y:
        assert hash(x) == hash(y)
        assert all(at(x, s) == at(y, s) for s in ALL_SIZES[::7])


A, B, S = DIMS["A"], DIMS["B"], DIMS["S"]


@pytest.mark.parametrize(("one", "other"), [
    (B * S, S * B),
    ((A + B) * (A - B), A * A - B * B),
    (2 * (S + 1) - 2, 2 * S),
    (A - A, 0),
    (B + 1 - B, 1),
    ((3 * B) // 2, B + B // 2),
    ((2 * B) // 4, B // 2),
    ((2 * B + 1) // 4, B // 2),
    ((B + 5) // 2, (B + 1) // 2 + 2),
    ((-B) // 2, B // 2 - B),
    ((4 * B + 4) // 4, B + 1),
    (S % 4, 0),
    ((S * B) % 2, 0),
    (B % 1, 0),
    ((B * 6) // 3, 2 * B),
], ids=str)
def test_equal_sizes_are_equal_dims(one: Dim, other: Dim) -> None:
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize(("dim", "bounds"), [
    (S + 1, (5, 25)),
    (B - 8, (-7, -1)),
    (B - B // 2, (1, 4)),           # the remainder of a floor is known
    ((B - 4) // 2, (-2, 1)),
    ((B + 1) // 2 * A, (0, 20)),
], ids=str)
def test_bounds_of(dim: Dim, bounds: tuple[int, int]) -> None:
    assert (lower(dim), upper(dim)) == bounds


def test_divisibility() -> None:
    assert divides(4, S)
    assert divides(8, 2 * S)
    assert divides(4, S * B + 8)
    assert divides(2, S // 2)
    assert not divides(8, S)
    assert not divides(2, S + 1)


@pytest.mark.parametrize(("a", "b", "q"), [
    (B * S, S, B), (6 * B * S, 2 * B, 3 * S), (S, 4, S // 4), (S, 3, None), (B * S, A, None), (B * S + B, B, S + 1), (12, 4, 3), (12, 5, None),
    (12, B, None), (0, B, 0), (0, 0, None), (B, 0, None), (B, -1, None), (B + 1, B + 1, 1),
], ids=str)
def test_exact_quotients(a: Dim, b: Dim, q: Dim | None) -> None:
    assert exact_quotient(a, b) == q


@pytest.mark.parametrize(("dim", "size", "known", "learnt"), [
    (S, 8, {}, {"S": 8}),
    (B + 1, 3, {}, {"B": 2}),
    (2 * B, 6, {}, {"B": 3}),
    (B * S, 24, {"B": 3}, {"S": 8}),
    (10 - B, 7, {}, {"B": 3}),
    (A * S, 0, {"A": 0}, {}),        # any S will do: another size must tell it
    (B * S, 24, {}, {}),             # two unknowns
    (B // 2, 3, {}, {}),             # 6 or 7
    (B * B, 9, {}, {}),
    (7, 7, {}, {}),
], ids=str)
def test_solve_learns(dim: Dim, size: int, known: dict[str, int], learnt: dict[str, int]) -> None:
    found = dict(known)
    assert solve(dim, size, found) is None
    assert found == known | learnt


@pytest.mark.parametrize(("dim", "size", "known", "words"), [
    (7, 8, {}, "8 was given, 7 is fixed"),
    (S, 8, {"S": 4}, "8 was given, S is 4 (S = 4)"),
    (S, 6, {}, "S = 6, allowed are 4..24 in steps of 4"),
    (S, 28, {}, "S = 28, allowed are 4..24"),
    (2 * B, 7, {}, "no B makes 2*B equal to 7"),
    (A * S, 3, {"A": 0}, "no S makes"),
    (B // 2, 3, {"B": 4}, "3 was given, (B//2) is 2 (B = 4)"),
], ids=str)
def test_solve_says_why_not(dim: Dim, size: int, known: dict[str, int], words: str) -> None:
    found = dict(known)
    assert words in (solve(dim, size, found) or "")
    assert found == known


@given(st.sampled_from(["S", "B+3", "5*B", "A*S", "B*S-1", "(A+1)*B"]), st.sampled_from(ALL_SIZES))
def test_what_solve_learns_is_true(text: str, sizes: Sizes) -> None:
    dim = dim_of(text)
    assert isinstance(dim, SymDim)
    names = sorted({s.name for s in dim.symbols()})
    known = {n: sizes[n] for n in names[:-1]}
    assert solve(dim, at(dim, sizes), known) is None
    assert all(known.get(n, sizes[n]) == sizes[n] for n in names)


@pytest.mark.parametrize("bad", [
    lambda: sym("S", 5, 4), lambda: sym("S", -1, 4), lambda: sym("S", 1, 10, 4), lambda: sym("S", 1, 8, 0),
    lambda: sym("a b"), lambda: sym(""), lambda: sym("1a"), lambda: sym("lambda"), lambda: sym("None"), lambda: sym("ﬁ"),
    lambda: S // 0, lambda: S // -2, lambda: S % 0, lambda: S // B, lambda: range(S),  # type: ignore[operator]
    lambda: symbols([S, sym("S", 1, 3)]),
    lambda: parse_dim("T+1", DIMS), lambda: parse_dim("S**2", DIMS), lambda: parse_dim("S//B", DIMS), lambda: parse_dim("S//0", DIMS),
    lambda: parse_dim("True", DIMS), lambda: parse_dim("1.5", DIMS), lambda: parse_dim("(", DIMS), lambda: parse_dim("\0", DIMS),
    lambda: parse_dim("(" * 5000, DIMS), lambda: parse_dim("", DIMS), lambda: parse_dim("f(S)", DIMS),
])
def test_bad_sizes_are_build_errors(bad: object) -> None:
    with pytest.raises(BuildError):
        bad()  # type: ignore[operator]


def test_a_range_of_one_is_an_int() -> None:
    assert sym("S", 3, 3) == 3


def test_check_sizes_names_the_symbol_and_its_range() -> None:
    check_sizes(SYMBOLS, {"A": 0, "B": 7, "S": 8})
    with pytest.raises(InputError, match="size S is unknown"):
        check_sizes(SYMBOLS, {"A": 0, "B": 7})
    for wrong in (0, 6, 28):
        with pytest.raises(InputError, match=f"size S = {wrong} is out of range\n.*4..24 in steps of 4"):
            check_sizes(SYMBOLS, {"A": 0, "B": 7, "S": wrong})


def test_a_size_is_not_a_number_yet() -> None:
    assert bool(S)
    with pytest.raises(RlxError, match="known only at run time"):
        int(S)
