"""Prints templates/cpu/polynomials.h: minimax fits by the Remez exchange, and the digits of 2/pi.  Needs mpmath.

    python benchmarks/prelude_coefficients.py > templates/cpu/polynomials.h
"""
from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpmath import mp, mpf

Function = Callable[[mpf], mpf]
WIDTH = 160


@dataclass(frozen=True)
class Fit:
    """p(x) ~ f(x) on [lo, hi] with `terms` coefficients; `share(x)` times p's error is the error of the whole result, relative to it."""

    f: Function
    share: Function
    lo: float
    hi: float
    terms: dict[str, int]


def odd(f: Function, span: float, terms: dict[str, int]) -> Fit:
    """f(x) = x + x z p(z), z = x^2 <= span."""
    def p(z: mpf) -> mpf:
        x = mp.sqrt(z)
        return (f(x) - x) / (x * z)
    return Fit(p, lambda z: z * mp.sqrt(z) / f(mp.sqrt(z)), 2e-9, span, terms)


def far_erf(top: float, terms: dict[str, int]) -> Fit:
    return Fit(lambda x: -mp.log(mp.erfc(x), 2), lambda x: mp.erfc(x) * mp.log(2), 1.0, top, terms)


def tail(top: float, terms: dict[str, int]) -> Fit:
    """The normal distribution's share beyond x = 2^-p(x); errors count beside 1, not beside the share."""
    def share(x: mpf) -> mpf:
        return mp.erfc(x / mp.sqrt(2)) / 2
    return Fit(lambda x: -mp.log(share(x), 2), lambda x: share(x) * mp.log(2), 0.0, top, terms)


def _expm1_rest(r: mpf) -> mpf:
    return (mp.expm1(r) - r) / (r * r) if r else mpf(1) / 2


HALF_LN2 = float(mp.log(2) / 2) * 1.0001
EIGHTH_TURN = float(mp.pi / 4) * 1.0001
FITS = {
    # exp(r) = 1 + r + r^2 p(r); the share is that of expm1, which is the stricter
    "exp": Fit(_expm1_rest, lambda r: r * r / mp.expm1(r) if r else mpf(0), -HALF_LN2, HALF_LN2, {"f32": 5, "f64": 11}),
    # 2^r = 1 + r p(r)
    "exp2": Fit(lambda r: mp.expm1(r * mp.log(2)) / r if r else mp.log(2), lambda r: r / mpf(2) ** r, -0.5001, 0.5001, {"f32": 6, "f64": 12}),
    # log((1 + s) / (1 - s)) = 2 s + s z p(z), z = s^2
    "log": Fit(lambda z: (2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z, lambda z: z / 2, 1e-12, 0.0296, {"f32": 3, "f64": 7}),
    # the same, = 2 s + s z (2/3 + z p(z)), as pow needs it
    "pow": Fit(lambda z: ((2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z - mpf(2) / 3) / z, lambda z: z * z / 2, 1e-12, 0.0296, {"f64": 8}),
    "sin": odd(mp.sin, EIGHTH_TURN ** 2, {"f32": 3, "f64": 6}),
    # cos(x) = 1 - z / 2 + z^2 p(z)
    "cos": Fit(lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / (z * z), lambda z: z * z / mp.cos(mp.sqrt(z)), 1e-12, EIGHTH_TURN ** 2, {"f32": 3, "f64": 6}),
    "asin": odd(mp.asin, 0.25, {"f32": 5, "f64": 13}),
    "atan": odd(mp.atan, 1.0, {"f32": 9, "f64": 20}),
    "sinh": odd(mp.sinh, 1.0, {"f32": 4, "f64": 7}),
    # erf(x) = x + x p(z), z = x^2 <= 1
    "erf_near": Fit(lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1, lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)), 1e-12, 1.0, {"f32": 7, "f64": 13}),
    # erfc(x) = 2^-p(x) from 1 to where erf is 1
    "erf_far_f32": far_erf(3.93, {"f32": 7}),
    "erf_far_f64": far_erf(5.95, {"f64": 20}),
    # from the middle to where less than half a unit of 1 lies beyond
    "tail_f32": tail(5.6, {"f32": 9}),
    "tail_f64": tail(8.3, {"f64": 25}),
}


def remez(fit: Fit, terms: int, rounds: int = 8) -> tuple[list[mpf], mpf]:
    """Coefficients, lowest power first, and the largest weighted error."""
    lo, hi = mpf(fit.lo), mpf(fit.hi)
    points = [(lo + hi) / 2 - (hi - lo) / 2 * mp.cos(mp.pi * (2 * i + 1.1) / (2 * (terms + 1))) for i in range(terms + 1)]
    grid = [(lo + hi) / 2 - (hi - lo) / 2 * mp.cos(mp.pi * i / (24 * terms)) for i in range(24 * terms + 1)]
    grid = [x for x in grid if abs(fit.share(x)) > mpf(2) ** -100]  # where p has no say, its error has no sign
    wanted = [(fit.f(x), fit.share(x)) for x in grid]
    worst = mpf(0)
    for _ in range(rounds):
        rows = mp.matrix([[*(x ** k for k in range(terms)), (-1) ** i / abs(fit.share(x))] for i, x in enumerate(points)])
        found = mp.lu_solve(rows, mp.matrix([fit.f(x) for x in points]))
        c = [found[k] for k in range(terms)]
        errors = [(mp.polyval(c[::-1], x) - f) * abs(share) for x, (f, share) in zip(grid, wanted, strict=True)]
        worst = max(map(abs, errors))
        points = _alternating(grid, errors, terms + 1)
    return c, worst


def _alternating(grid: list[mpf], errors: list[mpf], count: int) -> list[mpf]:
    """The largest error of each run of one sign; with too many runs, the smaller ends go."""
    best: list[int] = []
    for i, e in enumerate(errors):
        if best and (e > 0) == (errors[best[-1]] > 0):
            best[-1] = i if abs(e) > abs(errors[best[-1]]) else best[-1]
        else:
            best.append(i)
    while len(best) > count:
        best.pop(0 if abs(errors[best[0]]) < abs(errors[best[-1]]) else -1)
    return [grid[i] for i in best]


def text(name: str, kind: str, coefficients: list[mpf], error: mpf) -> str:
    """One C function; coefficients from the lowest power."""
    numbers = ", ".join(literal(c, kind) for c in coefficients)
    head = f"RLX_INLINE {kind} rlx_{name}_p_{kind}({kind} x) {{ return RLX_P{len(coefficients)}(rlx_fma_{kind}, x,"
    return "\n".join([f"{head}  /* 2^{float(mp.log(error, 2)):.0f} */", *textwrap.wrap(f"{numbers}); }}", WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)])


def evaluators(most: int) -> list[str]:
    """Macros of p with 1 .. `most` coefficients, the upper ones apart from the lower (Estrin's scheme): short chains of dependent steps."""
    halves = [1 << (n - 1).bit_length() - 1 for n in range(2, most + 1)]
    powers = [f"#define RLX_X{k}(x) ({f'RLX_X{k // 2}(x) * RLX_X{k // 2}(x)' if k > 1 else 'x'})" for k in sorted(set(halves))]
    names = [f"c{k}" for k in range(most)]
    sums = [f"#define RLX_P{n}(fma, x, {', '.join(names[:n])}) "
            f"fma(RLX_P{n - k}(fma, x, {', '.join(names[k:n])}), RLX_X{k}(x), RLX_P{k}(fma, x, {', '.join(names[:k])}))" for n, k in enumerate(halves, 2)]
    return [*powers, "#define RLX_P1(fma, x, c0) (c0)", *sums]


def literal(c: mpf, kind: str) -> str:
    nearest = float(np.float32(float(c))) if kind == "f32" else float(c)
    return re.sub(r"\.?0+p", "p", nearest.hex()) + ("f" if kind == "f32" else "")


def turns() -> str:
    all_turns = [mp.fmod(mpf(2) ** k * 2 / mp.pi, 4) for k in range(105)]
    high = [mp.floor(t * 2 ** 27) / 2 ** 27 for t in all_turns]
    head = "/* 2^k 2/pi mod 4 as two f64, the first of 29 bits, so that 24 bits times it are exact */"
    return "\n".join([head, table("rlx_turns_high", high), table("rlx_turns_low", [t - h for t, h in zip(all_turns, high, strict=True)])])


def table(name: str, numbers: list[mpf]) -> str:
    text = ", ".join(literal(n, "f64") for n in numbers)
    return "\n".join([f"RLX_TABLE f64 {name}[{len(numbers)}] = {{", *textwrap.wrap(f"{text}}};", WIDTH, break_on_hyphens=False)])


def two_over_pi() -> str:
    words = ", ".join(f"0x{int(mp.floor(2 / mp.pi * mpf(2) ** (64 * i + 64))) % 2 ** 64:016x}" for i in range(20))
    return "\n".join(["/* 64 zeros, and 2/pi after the point */", "RLX_TABLE u64 rlx_two_over_pi[21] = {0,", *textwrap.wrap(words + "};", WIDTH)])


HEAD = """/* Minimax polynomials p of math.h, and 2/pi.  Printed by benchmarks/prelude_coefficients.py, which says what each stands for.
   Behind each: the error of the fit, relative to the result it serves.  Coefficients from the lowest power. */"""


def main() -> None:
    mp.prec = 240
    print(HEAD, *evaluators(max(t for fit in FITS.values() for t in fit.terms.values())), sep="\n")
    for kind in ("f32", "f64"):
        for name, fit in FITS.items():
            if kind in fit.terms:
                print(text(name.removesuffix(f"_{kind}"), kind, *remez(fit, fit.terms[kind])))
    mp.prec = 1500
    print(turns(), two_over_pi(), sep="\n")


if __name__ == "__main__":
    main()
