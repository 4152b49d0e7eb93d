"""Dimensions: ints, or polynomials over symbols whose ranges are known."""
from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from keyword import iskeyword
from math import gcd, lcm, prod
from operator import index
from typing import Any, TypeAlias
from unicodedata import normalize

from rlxpy.errors import BuildError, InputError
from rlxpy.frozen import dataclass
from rlxpy.ir.place import placed


@dataclass(frozen=True)
class Symbol:
    """A size known only at run time, lo..hi inclusive and a multiple of `step`.  Memory is planned for `hi`."""

    name: str
    lo: int
    hi: int
    step: int = 1

    def at(self, sizes: Mapping[str, int]) -> int:
        return sizes[self.name]

    @property
    def bounds(self) -> tuple[int, int]:
        return self.lo, self.hi

    def symbols(self) -> Iterator[Symbol]:
        yield self

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Quotient:
    """floor(num / den), den > 0: the one thing a polynomial cannot say."""

    num: SymDim
    den: int

    @property
    def step(self) -> int:
        known = _step(self.num)
        return known // self.den if known % self.den == 0 else 1

    def at(self, sizes: Mapping[str, int]) -> int:
        return self.num.at(sizes) // self.den

    @property
    def bounds(self) -> tuple[int, int]:
        lo, hi = self.num.bounds
        return lo // self.den, hi // self.den

    def symbols(self) -> Iterator[Symbol]:
        yield from self.num.symbols()

    def __str__(self) -> str:
        num = str(self.num)
        return f"({num if num.isidentifier() else f'({num})'}//{self.den})"


Atom: TypeAlias = "Symbol | Quotient"
Monomial: TypeAlias = tuple[Atom, ...]  # sorted, repeated for powers


def _order(monomial: Monomial) -> tuple[int, str]:
    return -len(monomial), "*".join(map(str, monomial))


Terms: TypeAlias = tuple[tuple[Monomial, int], ...]
_KNOWN: dict[Terms, SymDim] = {}


class SymDim:
    """A polynomial with integer coefficients, canonical, so that equal sizes compare equal: `B*S`, `P+1`, `2*N`.

    Equal ones are one object: types hold sizes, and comparing and hashing types must cost what it does for ints."""

    __slots__ = ("terms",)
    terms: Terms

    def __new__(cls, terms: Terms) -> SymDim:
        made = object.__new__(cls)
        made.terms = terms
        return _KNOWN.setdefault(terms, made)

    def __reduce__(self) -> tuple[Any, ...]:
        return SymDim, (self.terms,)

    @placed
    def __lt__(self, other: object) -> bool:
        raise BuildError(f"{self} compared with {other}", why=f"{self} is known only at run time",
                         fix="compare lower(dim) or upper(dim), its least and greatest value")

    __le__ = __gt__ = __ge__ = __lt__

    @placed
    def __add__(self, other: Dim) -> Dim:
        return _collect([*self.terms, *_terms(other)])

    @placed
    def __mul__(self, other: Dim) -> Dim:
        return _collect([(tuple(sorted(a + b, key=str)), m * n) for a, m in self.terms for b, n in _terms(other)])

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Dim: return self * -1
    def __sub__(self, other: Dim) -> Dim: return self + other * -1
    def __rsub__(self, other: Dim) -> Dim: return self * -1 + other

    @placed
    def __floordiv__(self, den: int) -> Dim:
        """Whole multiples of `den` are taken out of every coefficient, and what is left becomes a Quotient in lowest terms."""
        if not isinstance(den, int) or den <= 0:
            raise BuildError(f"size {self} divided by {den}", why=f"{den} is not a whole number above 0", fix="divide by a positive int")
        whole = _collect([(m, c // den) for m, c in self.terms])
        rest = _collect([(m, c % den) for m, c in self.terms])
        if isinstance(rest, int):  # less than den
            return whole
        shared = gcd(den, *(c for m, c in rest.terms if m))  # floor((2S+1)/4) is floor(S/2): a remainder below `shared` decides nothing
        num = _collect([(m, c // shared) for m, c in rest.terms])
        assert isinstance(num, SymDim)
        return whole + _collect([((Quotient(num, den // shared),), 1)])

    def __mod__(self, den: int) -> Dim:
        whole = self // den
        return 0 if _step(self) % den == 0 else self - whole * den

    def at(self, sizes: Mapping[str, int]) -> int:
        return sum(c * prod(a.at(sizes) for a in m) for m, c in self.terms)

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and greatest value by interval arithmetic: safe, not always tight."""
        return _bounds(self)

    def symbols(self) -> Iterator[Symbol]:
        for monomial, _ in self.terms:
            for atom in monomial:
                yield from atom.symbols()

    def __bool__(self) -> bool:
        return True  # a symbolic size is a size; compare with lower(d) or upper(d) to ask how large it is

    @placed
    def __index__(self) -> int:
        raise BuildError(f"size {self} is known only at run time", fix="keep it as a Dim, or use upper(dim) for the largest value")

    def __str__(self) -> str:
        parts = [_term_text(m, c) for m, c in self.terms]
        return "+".join(parts).replace("+-", "-")

    def __repr__(self) -> str:
        return str(self)


Dim: TypeAlias = "int | SymDim"
Shape: TypeAlias = tuple[Dim, ...]
Sizes: TypeAlias = Mapping[str, int]


def _term_text(monomial: Monomial, c: int) -> str:
    names = "*".join(map(str, monomial))
    if not monomial:
        return str(c)
    return {1: names, -1: f"-{names}"}.get(c, f"{c}*{names}")


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    known = as_dim(dim)
    return known.terms if isinstance(known, SymDim) else (((), known),)


def as_dim(value: Any) -> Dim:
    """Raises BuildError for what is neither a whole number nor made of sym()."""
    if type(value) is int or isinstance(value, SymDim):
        return value
    if not isinstance(value, bool):
        with suppress(TypeError):
            return index(value)
    raise BuildError(f"{value!r} is not a size", why=f"{type(value).__name__} is neither a whole number nor a sym()",
                     fix="use an int, or sym('name') for a size that differs from run to run")


def as_shape(value: Any) -> Shape:
    """One size, or several.  Raises BuildError."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return (as_dim(value),)
    return tuple(map(as_dim, value))


@lru_cache(maxsize=1 << 14)
def _bounds(dim: SymDim) -> tuple[int, int]:
    """In parts of `whole`, that all may be integers.  floor(n/d) is n/d less a remainder: so S - S//2 is known to be positive."""
    floors = [m[0] if len(m) == 1 and isinstance(m[0], Quotient) else None for m, _ in dim.terms]
    whole = lcm(*(q.den for q in floors if q))
    smooth, less, more = dict[Monomial, int](), 0, 0
    for (monomial, c), q in zip(dim.terms, floors, strict=True):
        part = c * (whole // q.den if q else whole)
        for inner, k in q.num.terms if q else ((monomial, 1),):
            smooth[inner] = smooth.get(inner, 0) + part * k
        remainder = part * (q.den - 1) if q else 0
        less, more = less + max(remainder, 0), more - min(remainder, 0)
    lo, hi = _interval(smooth.items())
    return -((less - lo) // whole), (hi + more) // whole


def _interval(terms: Iterable[tuple[Monomial, int]]) -> tuple[int, int]:
    lo = hi = 0
    for monomial, c in terms:
        ends = prod(a.bounds[0] for a in monomial), prod(a.bounds[1] for a in monomial)  # atoms are never negative
        lo += c * ends[c < 0]
        hi += c * ends[c > 0]
    return lo, hi


def _collect(terms: Iterable[tuple[Monomial, int]]) -> Dim:
    total: dict[Monomial, int] = {}
    for monomial, c in terms:
        total[monomial] = total.get(monomial, 0) + c
    kept = tuple(sorted(((m, c) for m, c in total.items() if c), key=lambda t: _order(t[0])))
    if not kept:
        return 0
    return kept[0][1] if len(kept) == 1 and kept[0][0] == () else SymDim(kept)


def _step(dim: Dim) -> int:
    return gcd(*(c * prod(a.step for a in m) for m, c in _terms(dim)))


@placed
def sym(name: str, lo: int = 1, hi: int = 1 << 16, step: int = 1) -> Dim:
    """A symbolic size.  `sym("S", 1, 512)`; `step=16` promises a multiple of 16.  Raises BuildError on an empty range."""
    if not isinstance(name, str) or not name.isidentifier() or iskeyword(name) or normalize("NFKC", name) != name:  # as Python reads it in the text form
        raise BuildError(f"symbol {name!r} is not a name", fix="use letters, digits and _, as in sym('seq_len')")
    if not all(isinstance(n, int) for n in (lo, hi, step)) or not 0 <= lo <= hi or step < 1 or hi % step:
        raise BuildError(f"symbol {name} in {lo}..{hi} step {step} has no sizes", why="0 <= lo <= hi and hi a multiple of step are needed",
                         fix="sym('S', 1, 512)")
    return lo if lo == hi else SymDim((((Symbol(name, lo, hi, step),), 1),))


def lower(dim: Dim) -> int:
    return dim if isinstance(dim, int) else dim.bounds[0]


def upper(dim: Dim) -> int:
    return dim if isinstance(dim, int) else dim.bounds[1]


def at(dim: Dim, sizes: Sizes) -> int:
    """Concrete value once every symbol has a size."""
    return dim if isinstance(dim, int) else dim.at(sizes)


def divides(k: int, dim: Dim) -> bool:
    """Whether `dim` is provably a multiple of k."""
    return _step(dim) % k == 0


def product(dims: Iterable[Dim]) -> Dim:
    total: Dim = 1
    for d in dims:
        total = total * d
    return total


def exact_quotient(a: Dim, b: Dim) -> Dim | None:
    """q with q * b == a for every size, or None where that cannot be shown."""
    if a == b and a != 0:
        return 1
    if isinstance(b, int):
        return a // b if b > 0 and divides(b, a) else None
    if len(b.terms) != 1 or isinstance(a, int):
        return 0 if a == 0 else None
    (monomial, c), = b.terms
    out: list[tuple[Monomial, int]] = []
    for m, n in a.terms:
        left = list(m)
        for atom in monomial:
            if atom not in left:
                return None
            left.remove(atom)
        if n % c:
            return None
        out.append((tuple(left), n // c))
    return _collect(out)


def symbols(dims: Iterable[Dim | Symbol]) -> dict[str, Symbol]:
    """Every symbol by name.  Raises BuildError when one name has two ranges."""
    found: dict[str, Symbol] = {}
    for d in dims:
        if isinstance(d, (SymDim, Symbol)):
            for s in d.symbols():
                if found.setdefault(s.name, s) != s:
                    raise BuildError(f"symbol {s.name} has two ranges", why=f"{found[s.name].bounds} and {s.bounds}",
                                     fix="use one sym() object")
    return found


def solve(dim: Dim, size: int, known: dict[str, int]) -> str | None:
    """Learn symbols from `dim == size`, adding to `known`.  Returns why the size cannot be, or None.

    Handles one unknown symbol of degree one, which is what shapes contain: S, P+1, 2*B, B*S once B is known.  Of anything
    else nothing is learnt: once another size has told the symbol, the same call checks it."""
    if isinstance(dim, int):
        return None if dim == size else f"{size} was given, {dim} is fixed"
    unknown = {s.name: s for s in dim.symbols() if s.name not in known}
    if not unknown:
        want = dim.at(known)
        return None if want == size else f"{size} was given, {dim} is {want} ({_sizes_text(dim, known)})"
    if len(unknown) > 1:
        return None
    (name, symbol), = unknown.items()
    if any(m.count(symbol) > 1 or any(isinstance(a, Quotient) and symbol in a.symbols() for a in m) for m, _ in dim.terms):
        return None
    base = dim.at({**known, name: 0})
    slope = dim.at({**known, name: 1}) - base
    if slope == 0 and size == base:  # 0*S: any S will do
        return None
    if slope == 0 or (size - base) % slope:
        return f"no {name} makes {dim} equal to {size}"
    value = (size - base) // slope
    if not symbol.lo <= value <= symbol.hi or value % symbol.step:
        return f"{name} = {value}, allowed are {symbol.lo}..{symbol.hi}" + (f" in steps of {symbol.step}" if symbol.step > 1 else "")
    known[name] = value
    return None


def check_sizes(wanted: Mapping[str, Symbol], sizes: Sizes) -> None:
    """Raise InputError unless every symbol has a size in its range."""
    for name, s in wanted.items():
        if name not in sizes:
            raise InputError(f"size {name} is unknown", why="no input's shape tells it",
                             fix=f"pass sizes={{'{name}': n}} with n in {s.lo}..{s.hi}")
        if not s.lo <= sizes[name] <= s.hi or sizes[name] % s.step:
            raise InputError(f"size {name} = {sizes[name]} is out of range", why=f"the graph was built for {s.lo}..{s.hi} in steps of {s.step}",
                             fix="pass a size in that range, or build the graph for a wider one")


def _sizes_text(dim: SymDim, sizes: Sizes) -> str:
    return ", ".join(f"{s} = {sizes[s]}" for s in sorted({x.name for x in dim.symbols()}))


def shape_text(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]"


def parse_dim(text: str | ast.expr, known: Mapping[str, Dim]) -> Dim:
    """A dim from its text: ints, symbol names, + - * //.  Raises BuildError naming an unknown symbol."""
    node = _parsed(text) if isinstance(text, str) else text
    match node:
        case ast.Constant(value=int(n)) if not isinstance(n, bool):
            return n
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.UnaryOp(op=ast.USub(), operand=x):
            return parse_dim(x, known) * -1
        case ast.BinOp(left=a, op=ast.Add(), right=b):
            return parse_dim(a, known) + parse_dim(b, known)
        case ast.BinOp(left=a, op=ast.Sub(), right=b):
            return parse_dim(a, known) - parse_dim(b, known)
        case ast.BinOp(left=a, op=ast.Mult(), right=b):
            return parse_dim(a, known) * parse_dim(b, known)
        case ast.BinOp(left=a, op=ast.FloorDiv(), right=ast.Constant(value=int(n))):
            return parse_dim(a, known) // n
    raise BuildError(f"cannot read size {ast.unparse(node)!r}", why=f"symbols are {', '.join(known) or 'none'}")


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:  # what Python's parser raises on bad or endless text
        raise BuildError(f"cannot read size {text!r}", why=str(e)) from None
