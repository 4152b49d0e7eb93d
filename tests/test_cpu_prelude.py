"""The C prelude against NumPy and ml_dtypes: every function, on every instruction set that this CPU has."""
from __future__ import annotations

import ctypes
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlxpy import settings
from rlxpy.backends.cpu.build import build, flags_of, prelude
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.backends.cpu.isa import ISAS, Isa, available
from rlxpy.ir import refs
from rlxpy.ir.dtypes import Array, DType, dtype
from rlxpy.ir.op import ELEMENTWISE

FOUND = find_compiler()
if isinstance(FOUND, str):
    pytest.skip(f"the C prelude did not run: {FOUND}", allow_module_level=True)
COMPILER = FOUND

BOUNDS = {name: {"f32": float(single), "f64": float(double)}
          for name, single, double in re.findall(r"\b([a-z]\w+) +([\d.]+) ([\d.]+)(?=\s)", prelude().partition("*/")[0])}
NUMPY = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "pow": "power"}
NARROW: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f8e4m3fn": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2,
          "f4e2m1": ml_dtypes.float4_e2m1fn}
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
FLOATS = ("f32", "f64")
NARROWED = (*FLOATS, "i64")  # the sources of casts to narrow floats: other integers are in i64
PLAIN: dict[str, Any] = {"f32": np.float32, "f64": np.float64, "bool": np.bool_, **{t: np.dtype(t[0] + str(int(t[1:]) // 8)).type for t in INTEGERS}}
WHOLE = ("floor", "ceil", "trunc", "rint")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
TESTS = ("isnan", "isinf", "isfinite")
FLOAT_ONE = tuple(sorted({*BOUNDS} - {"pow", "atan2"})) + WHOLE + ACTIVATIONS + ("abs", "sign")
FLOAT_TWO = ("pow", "atan2", "maximum", "minimum", "mod", "floor_div")
INTEGER_ONE, INTEGER_TWO = ("abs", "sign", "bit_not"), ("maximum", "minimum", "mod", "floor_div", "shl", "shr")
EXACT: dict[str, Any] = {"maximum": np.maximum, "minimum": np.minimum, "mod": np.mod, "floor_div": np.floor_divide, "shl": np.left_shift, "shr": np.right_shift,
         "abs": np.abs, "sign": np.sign, "bit_not": np.invert, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint}


def storage(t: str) -> str:
    return {"bool": "u8", "f16": "u16", "bf16": "u16"}.get(t, "u8" if t in NARROW else t)


def kernels() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(name, C expression over x, y, types of the operands and the result)."""
    for t in FLOATS:
        yield from ((f"{f}_{t}", f"rlx_{f}(x)", (t, t)) for f in FLOAT_ONE)
        yield from ((f"{f}_{t}", f"rlx_{f}(x)", (t, "u8")) for f in TESTS)
        yield from ((f"{f}_{t}", f"rlx_{f}(x, y)", (t, t, t)) for f in FLOAT_TWO)
    for t in INTEGERS:
        yield from ((f"{f}_{t}", f"rlx_{f}(x)", (t, t)) for f in INTEGER_ONE)
        yield from ((f"{f}_{t}", f"rlx_{f}(x, y)", (t, t, t)) for f in INTEGER_TWO)
    yield "bit_not_bool", "rlx_bit_not((_Bool)x)", ("u8", "u8")
    for a in (*FLOATS, *INTEGERS):
        yield from ((f"{a}_to_{b}", f"rlx_to_{b}(x)", (a, storage(b))) for b in (*FLOATS, *INTEGERS, "bool"))
    for a in NARROWED:
        yield from ((f"{a}_to_{b}", f"rlx_to_{b}(x)", (a, "f32")) for b in NARROW)
    for t in NARROW:
        yield f"load_{t}", f"rlx_load_{t}(x)", (storage(t), "f32")
        yield f"store_{t}", f"rlx_store_{t}(x)", ("f32", storage(t))


def function(name: str, expression: str, types: tuple[str, ...]) -> str:
    """A loop over contiguous arrays, as an emitter writes it."""
    *operands, result = types
    arrays = [*(f"const {t} *restrict {v}s" for t, v in zip(operands, "xy", strict=False)), f"{result} *restrict out"]
    values = " ".join(f"const {t} {v} = {v}s[i];" for t, v in zip(operands, "xy", strict=False))
    return f"RLX_EXPORT void {name}(i64 n, {', '.join(arrays)}) {{\n  RLX_SIMD\n  for (i64 i = 0; i < n; i++) {{ {values} out[i] = {expression}; }}\n}}\n"


SOURCE = prelude() + "\n".join(function(*k) for k in kernels())
TYPES = {name: types for name, _, types in kernels()}


class Library:
    """Calls a kernel on arrays; the result's elements are poisoned first."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))

    def __call__(self, name: str, *arrays: Any) -> Array:
        *operands, result = TYPES[name]
        given = [np.ascontiguousarray(a, PLAIN[t]) for a, t in zip(arrays, operands, strict=True)]
        out = np.full(given[0].size + 1, 0xA5, np.uint8).astype(PLAIN[result])
        end = out[-1]
        self.library[name](ctypes.c_int64(given[0].size), *(ctypes.c_void_p(a.ctypes.data) for a in (*given, out)))
        assert out[-1] == end, "written beyond the end"
        return out[:-1]


def variants() -> list[tuple[Isa, tuple[str, ...]]]:
    """Each distinct instruction set of this CPU, and the best one without optimisation."""
    usable = list({isa.flags: isa for isa in reversed(available())}.values())
    return [*((isa, ()) for isa in usable), (usable[-1], ("-O0",))]


@pytest.fixture(scope="module", params=variants(), ids=lambda v: "".join((v[0].name, *v[1])))
def c(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    isa, options = request.param
    with settings.override(cache=tmp_path_factory.getbasetemp() / "prelude"):
        return Library(build(SOURCE, isa, COMPILER, options))


# ---- samples
def specials(t: str) -> Array:
    f = np.finfo(PLAIN[t])
    some = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 20.0, 88.72, 89.0, 103.9, 104.1, 127.0, 150.0, 709.7, 710.5, 745.2, 2.0**20, 2.0**24, 1e18, 1e300,
            float(f.max), float(f.tiny), float(f.smallest_subnormal), float(f.tiny) / 2, float(f.eps), 1 + float(f.eps), 1 - float(f.epsneg), math.inf, math.nan, math.pi]
    with np.errstate(over="ignore"):
        return np.array([*some, *(-s for s in some)], PLAIN[t])


def reals(t: str, count: int = 40_000) -> Array:
    """Special values, all exponents, and the ranges where functions bend."""
    rng = np.random.default_rng(7)
    kind = PLAIN[t]
    bits = rng.bytes(count * np.dtype(kind).itemsize)
    near = [rng.uniform(-s, s, count) for s in (1, 10, 100, 1e4, 1e7)]
    return np.concatenate([specials(t), np.frombuffer(bits, kind), *(n.astype(kind) for n in near), (1 + rng.normal(0, 1e-3, count)).astype(kind)])


def pairs(t: str) -> tuple[Array, Array]:
    s = specials(t)
    x, y = np.meshgrid(s, s)
    rng = np.random.default_rng(8)
    n = 30_000
    spread = np.exp(rng.uniform(-80, 80, n))
    more = [(rng.uniform(0, 10, n), rng.uniform(-30, 30, n)), (spread, rng.uniform(-1.05, 1.05, n)), (1 + rng.normal(0, 1e-4, n), rng.uniform(-1e5, 1e5, n)),
            (-rng.uniform(0, 10, n), rng.integers(-40, 40, n)), (rng.normal(size=n) * 1000, rng.normal(size=n)), (-spread, spread[::-1])]
    first, second = (np.concatenate([a.ravel(), *(np.asarray(m[i]) for m in more)]).astype(PLAIN[t]) for i, a in enumerate((x, y)))
    return first, second


# ---- oracles: f64 for f32, x87's 64 bits or more for f64
WIDE: dict[str, Any] = {"f32": np.float64, "f64": np.longdouble}
needs_wide = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="f64 functions were not measured: this NumPy has no wider type")
floats = pytest.mark.parametrize("t", ["f32", pytest.param("f64", marks=needs_wide)])


def wide(name: str, *xs: Array) -> Array:
    match name:
        case "erf": return np.array([math.erf(v) for v in xs[0].astype(np.float64).tolist()], xs[0].dtype)
        case "sigmoid": return np.asarray(1 / (1 + np.exp(-xs[0])))
        case "softplus": return np.asarray(np.logaddexp(xs[0], 0))
        case _: return np.asarray(getattr(np, NUMPY.get(name, name))(*xs))


def ulps(got: Array, want: Array) -> Array:
    """Distance in steps of got's type at the exact value; infinite where NaN, infinity or the sign of a zero is wrong."""
    rounded = want.astype(got.dtype)
    step = np.spacing(np.minimum(np.abs(rounded), np.finfo(got.dtype).max)).astype(want.dtype)
    far = np.abs(got.astype(want.dtype) - want) / step
    same = (got == rounded) & (np.signbit(got) == np.signbit(rounded)) | np.isnan(got) & np.isnan(rounded)
    return np.where(np.isfinite(far), far, np.where(same, 0, np.inf)) + np.where((got == 0) & (rounded == 0) & ~same, np.inf, 0)


def same(got: Array, want: Array) -> Array:
    """Bit for bit, any NaN."""
    return np.asarray((got == want) & (np.signbit(got) == np.signbit(want)) | np.isnan(got) & np.isnan(want) if got.dtype.kind == "f" else got == want)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


# ---- mathematics
def test_bounds_are_stated_for_all_that_is_measured() -> None:
    assert len(BOUNDS) == 21
    assert all(0.5 <= b <= 4 for each in BOUNDS.values() for b in each.values())


@floats
@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_errors_stay_within_their_bounds(c: Library, name: str, t: str) -> None:
    xs = pairs(t) if name in FLOAT_TWO else (reals(t),)
    if name == "erf":
        xs = (xs[0][::4],)  # the oracle is a Python call
    far = ulps(c(f"{name}_{t}", *xs), wide(name, *(x.astype(WIDE[t]) for x in xs)))
    worst = int(np.argmax(far))
    assert far[worst] <= BOUNDS[name][t], f"{far[worst]} ulp at {[x[worst] for x in xs]}"


@pytest.mark.parametrize("t", FLOATS)
def test_angles_next_to_multiples_of_a_quarter_turn_keep_their_digits(c: Library, t: str) -> None:
    """The floats nearest to multiples of pi/2, by continued fractions of 2^k 2/pi; values by mpmath with 1600 bits."""
    hard = {"f32": [("cos", 16367173 * 2.0**72, -1.6147697982476212e-9), ("sin", 16367173 * 2.0**73, -3.2295395964952424e-9), ("cos", 10741887 * 2.0**11, -2.0126460319185526e-9)],
            "f64": [("cos", 6381956970095103 * 2.0**797, -4.6871659242546276e-19), ("sin", 6381956970095103 * 2.0**798, -9.3743318485092552e-19),
                    ("cos", 6411027962775774 * 2.0**-47, -6.189806365883577e-19)]}
    for name, x, exact in hard[t]:
        for sign in (1, -1):
            want = np.array([exact * (sign if name == "sin" else 1)])
            assert ulps(c(f"{name}_{t}", np.array([sign * x])), want) <= BOUNDS[name][t]


@pytest.mark.parametrize("t", FLOATS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_their_formulas_and_finite(c: Library, name: str, t: str) -> None:
    x = reals(t)
    got, exact = c(f"{name}_{t}", x), getattr(refs, name)(x.astype(np.float64))
    with_end = np.isneginf(x)
    assert (np.isfinite(got) | ~np.isfinite(x)).all()
    assert (got[with_end] == 0).all()
    assert np.signbit(got[with_end]).all()
    assert (got[np.isposinf(x)] == np.inf).all()
    assert np.isnan(got[np.isnan(x)]).all()
    usual = np.isfinite(x)
    eps = float(np.finfo(PLAIN[t]).eps)
    assert (np.abs(got[usual] - exact[usual]) <= 4 * eps * np.abs(x[usual]) + np.finfo(PLAIN[t]).smallest_subnormal).all()


@pytest.mark.parametrize("t", FLOATS)
@pytest.mark.parametrize("name", [*WHOLE, "abs", "sign"])
def test_exact_functions_of_one_float_are_numpys(c: Library, name: str, t: str) -> None:
    x = reals(t)
    assert same(c(f"{name}_{t}", x), EXACT[name](x)).all()


@pytest.mark.parametrize("t", FLOATS)
@pytest.mark.parametrize("name", ["maximum", "minimum", "mod", "floor_div"])
def test_exact_functions_of_two_floats_are_numpys(c: Library, name: str, t: str) -> None:
    x, y = pairs(t)
    wrong = np.flatnonzero(~same(c(f"{name}_{t}", x, y), EXACT[name](x, y)))
    assert not wrong.size, [(x[i], y[i]) for i in wrong[:5]]


@pytest.mark.parametrize("t", FLOATS)
@pytest.mark.parametrize("name", TESTS)
def test_tests_of_floats(c: Library, name: str, t: str) -> None:
    x = reals(t)
    assert (c(f"{name}_{t}", x) == getattr(np, name)(x)).all()


# ---- integers
def whole(t: str) -> tuple[Array, Array]:
    """All pairs of a type of 8 bits; of wider ones the ends, small numbers and random ones."""
    if t in ("i8", "u8"):
        every = np.arange(256, dtype=np.uint8).view(PLAIN[t])
        return np.repeat(every, 256), np.tile(every, 256)
    low, high = dtype(t).range
    rng = np.random.default_rng(9)
    few = np.array([low, low + 1, -1 % (high + 1) if low == 0 else -1, 0, 1, 2, 3, 7, 15, 31, 63, 64, 65, high - 1, high], object).astype(PLAIN[t])
    a, b = np.meshgrid(few, few)
    bits = np.frombuffer(rng.bytes(20_000 * np.dtype(PLAIN[t]).itemsize), PLAIN[t])
    return np.concatenate([a.ravel(), bits, bits]), np.concatenate([b.ravel(), bits[::-1], rng.integers(0, 70, bits.size).astype(PLAIN[t])])


@pytest.mark.parametrize("t", INTEGERS)
def test_integers_are_numpys(c: Library, t: str) -> None:
    a, b = whole(t)
    for name in INTEGER_TWO:
        wrong = np.flatnonzero(c(f"{name}_{t}", a, b) != EXACT[name](a, b))
        assert not wrong.size, (name, [(a[i], b[i]) for i in wrong[:5]])
    for name in INTEGER_ONE:
        assert (c(f"{name}_{t}", a) == EXACT[name](a)).all(), name


def test_what_would_trap_or_be_undefined_in_c_is_defined(c: Library) -> None:
    low = np.array([-(2**31)])
    assert c("floor_div_i32", low, [-1])[0] == -(2**31)
    assert c("mod_i32", low, [-1])[0] == 0
    assert c("floor_div_i32", [7], [0])[0] == 0
    assert c("mod_i64", [7], [0])[0] == 0
    assert c("shl_i32", [3], [32])[0] == 0
    assert c("shr_i32", [-3], [-1])[0] == -1


def test_not_of_a_bool_is_a_bool(c: Library) -> None:
    assert c("bit_not_bool", [0, 1, 1]).tolist() == [1, 0, 0]


# ---- casts
@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS])
def test_every_cast_is_the_references(c: Library, source: str) -> None:
    x = np.concatenate([reals(source), _edges(source)]) if source in FLOATS else whole(source)[0]
    for d in map(dtype, (*FLOATS, *INTEGERS, "bool", *(NARROW if source in NARROWED else ()))):
        got, want = c(f"{source}_to_{d.text}", x), refs.cast(x, d)
        wrong = np.flatnonzero(~same(got, want.astype(got.dtype)))
        if d is DType.F4E2M1:
            wrong = wrong[~np.isnan(x[wrong].astype(np.float64))]  # the zero that a NaN becomes has the sign of the NaN, turned: see the codes below
        assert not wrong.size, (d, [(x[i], got[i], want[i]) for i in wrong[:5]])


def _edges(t: str) -> Array:
    """Floats around the ends of integer types, and ties of f16 that only wide inputs can break."""
    ends = [float(s * 2.0**k) for k in (7, 8, 15, 16, 31, 32, 63, 64) for s in (1, -1)]
    around = [e + d for e in ends for d in (0, 0.5, -0.5, 1, -1)]
    ties = [1 + 2.0**-11, 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11 - 2.0**-40, 65520.0, 65519.999999, 2.0**-25, 2.0**-25 + 2.0**-60]
    x = np.array([*around, *ties, *(-v for v in ties)], PLAIN[t])
    return np.concatenate([x, np.nextafter(x, PLAIN[t](0)), np.nextafter(x, PLAIN[t](np.inf))])


@pytest.mark.parametrize("t", NARROW)
def test_every_code_is_read_as_ml_dtypes_reads_it(c: Library, t: str) -> None:
    bits = 8 * np.dtype(PLAIN[storage(t)]).itemsize if t != "f4e2m1" else 4
    codes = np.arange(2**bits, dtype=PLAIN[storage(t)])
    assert same(c(f"load_{t}", codes), codes.view(NARROW[t]).astype(np.float32)).all()


@pytest.mark.parametrize("t", NARROW)
def test_codes_are_written_as_ml_dtypes_writes_them(c: Library, t: str) -> None:
    """Every value, every midpoint between two, and the floats beside both."""
    codes = np.arange(2 ** (4 if t == "f4e2m1" else 8 * np.dtype(PLAIN[storage(t)]).itemsize), dtype=PLAIN[storage(t)])
    values = np.unique(codes.view(NARROW[t]).astype(np.float64))
    values = values[np.isfinite(values)]
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2, [values[-1] * 1.04, values[-1] * 1.07, values[0] * 1.3, 1e30]]).astype(np.float32)
    x = np.concatenate([points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf)), reals("f32")])
    got, want = c(f"store_{t}", x), x.astype(NARROW[t]).view(PLAIN[storage(t)])
    wrong = np.flatnonzero((got != want) & ~(np.isnan(x) & np.isnan(got.view(NARROW[t]).astype(np.float32))))
    assert not wrong.size, [(x[i], hex(got[i]), hex(want[i])) for i in wrong[:5]]


# ---- the text
def test_every_function_that_the_op_table_names_is_there() -> None:
    named = {f for op in ELEMENTWISE for f in re.findall(r"rlx_\w+", op.row.scalar or "")} - {"rlx_cast"}
    assert named <= set(re.findall(r"#define (rlx_\w+)\(", SOURCE))


@pytest.mark.parametrize("isa", ISAS, ids=lambda i: i.name)
def test_no_library_function_is_needed_and_no_warning_given(isa: Isa, tmp_path: Path) -> None:
    """Other machines' instruction sets are compiled where the compiler can: this one's are always."""
    if isa.machine not in ("", available()[0].machine):
        pytest.skip(f"{isa.name} was not compiled: {COMPILER.argv[0]} makes code for {available()[0].machine}")
    unit = tmp_path / "unit.c"
    unit.write_text(SOURCE)
    warnings = ("-Wall", "-Wextra", "-Werror", "-Wno-type-limits", "-Wno-unused-command-line-argument", "-Wno-pass-failed")
    done = subprocess.run([*COMPILER.argv, *flags_of(isa, COMPILER), *warnings, "-O0", "-o", str(tmp_path / "unit.so"), str(unit)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if nm := shutil.which("nm"):
        undefined = subprocess.run([nm, "-u", str(tmp_path / "unit.so")], capture_output=True, text=True, check=True).stdout.split()
        assert {u for u in undefined if u != "U"} <= {"memcpy", "memset", "memmove", "_DYNAMIC", "w", "__gmon_start__"}


LOOPS_OF_SCALARS = {f"{f}_f64" for f in ("sin", "cos", "tan")} | {f"{f}_{t}" for f in ("mod", "floor_div") for t in FLOATS}


def test_loops_become_vector_code(tmp_path: Path) -> None:
    """Arithmetic on whole AVX2 registers in every loop over floats, but those that the prelude's first lines except."""
    isa = next((isa for isa in available() if isa.name == "avx2"), None)
    if isa is None:
        pytest.skip("vector code was not looked for: this machine is no x86-64 with AVX2")
    loops = {n for n, types in TYPES.items() if types[0] in FLOATS and not n.startswith("f64_to_") and not n.endswith(("_to_i64", "_to_u64"))}
    (tmp_path / "unit.c").write_text(prelude() + "".join(function(*k) for k in kernels() if k[0] in loops))
    flags = [f for f in flags_of(isa, COMPILER) if f != "-shared"]
    subprocess.run([*COMPILER.argv, *flags, "-S", "-o", str(tmp_path / "unit.s"), str(tmp_path / "unit.c")], capture_output=True, check=True)
    text = (tmp_path / "unit.s").read_text("utf-8", "replace")
    bodies = dict(re.findall(r"^(\w+):[^\n]*\n(.*?)^\s*\.size\s+\1,", text, re.DOTALL | re.MULTILINE))
    scalar = {n for n in loops if not re.search(r"\bv\w+p[sd]\s.*%ymm", bodies[n])}
    assert scalar <= LOOPS_OF_SCALARS


def test_no_access_or_operation_is_undefined(tmp_path: Path) -> None:
    """Every function on bit patterns of every kind, in a program under AddressSanitizer and UndefinedBehaviorSanitizer."""
    patterns = [*specials("f64").view(np.uint64).tolist(), *(int(b) * 0x100000001 for b in specials("f32").view(np.uint32)), *(2**k - d for k in (7, 8, 16, 31, 32, 63, 64) for d in (1, 0, 2))]
    sizes = " ".join(f"case {i}: {call_on_copies(n)} break;" for i, n in enumerate(TYPES))
    main = f"""static const u64 patterns[] = {{{", ".join(f"{p % 2**64}ULL" for p in patterns)}}};
static void run(i64 kernel, i64 n, i64 turn) {{
  switch (kernel) {{ {sizes} }}
}}
int main(void) {{ for (i64 k = 0; k < {len(TYPES)}; k++) for (i64 t = 0; t < {len(patterns)}; t += 7) run(k, {len(patterns)}, t); return 0; }}
"""
    (tmp_path / "unit.c").write_text("void *malloc(__SIZE_TYPE__);\nvoid free(void *);\n" + SOURCE + main)
    flags = [f for f in flags_of(available()[0], COMPILER) if f not in ("-shared", "-nostdlib")]
    checks = ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-O1", "-g"]
    made = subprocess.run([*COMPILER.argv, *flags, *checks, "-o", str(tmp_path / "unit"), str(tmp_path / "unit.c")], capture_output=True, text=True, check=False)
    if made.returncode != 0 and re.search("asan|ubsan", made.stderr):
        pytest.skip(f"the sanitizers did not run: {COMPILER.argv[0]} has no libraries for them")
    assert made.returncode == 0, made.stderr[-2000:]
    done = subprocess.run([tmp_path / "unit"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def call_on_copies(name: str) -> str:
    """C that calls a kernel on arrays of just its size, filled with the patterns from `turn` on."""
    *operands, result = TYPES[name]
    arrays = list(zip(operands, "xy", strict=False))
    made = [f"{t} *{v} = malloc(n * sizeof({t}));" for t, v in [*arrays, (result, "out")]]
    # a pattern's low bytes are the value: __builtin_memcpy copies as many as the type has
    filled = [f"for (i64 i = 0; i < n; i++) __builtin_memcpy({v} + i, patterns + (i {'+ turn' if v == 'y' else ''}) % n, sizeof({t}));" for t, v in arrays]
    return " ".join(["{", *made, *filled, f"{name}(n, {', '.join([v for _, v in arrays] + ['out'])});", *(f"free({v});" for _, v in [*arrays, ("", "out")]), "}"])
