"""The C99 target: every op it writes against its reference, without a warning; states, loops, sizes, names, refusals."""
from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_projects import SECONDS, STRICT, compiled, project, reason
from kernel_graphs import LARGE, norms_of_constant_rows
from random_graphs import random_graph
from samples import OPS, Sample, assert_close, samples

from rlxpy import Builder, CompileOptions, DType, Graph, Op, compile, cond, scan, sym, while_loop
from rlxpy.compiler.session import lower
from rlxpy.errors import InputError, LegaliseError
from rlxpy.extend import Attrs, OpExtension, OpRow, declare_op, register_cpu_kernel, register_op, registry
from rlxpy.ir.dtypes import dtype
from rlxpy.ir.encoding import encoding
from rlxpy.ir.quantize import quantize
from rlxpy.targets.c99.filescope import declared
from rlxpy.targets.c99.library import spec
from rlxpy.targets.c99.packed import WRITTEN
from rlxpy.targets.projects import record, write
from rlxpy.tools.equivalence import random_params

needs_compiler = pytest.mark.skipif(isinstance(reason, str), reason=f"no C compiler: {reason}")
COMPLEX = {Op.FFT, Op.IFFT, Op.RFFT, Op.IRFFT}  # C99's _Complex is optional, and nothing simpler says them
WITHOUT = {Op.QUANTIZE} | COMPLEX  # the first to q8_0 alone
AT_ONCE = 150  # calls in one graph
SAFE = "-O1 -fsanitize=address,undefined -fno-sanitize-recover=all"


def written(s: Sample) -> bool:
    try:
        lower(s.graph(), spec(), CompileOptions())
    except LegaliseError:
        return False
    return True


def calls(dtype: DType) -> list[Sample]:
    """Of every op that calculates in a type; every case in f32."""
    return [s for op in OPS if op not in COMPLEX for s in islice(samples(op, frozenset({dtype})), None if dtype is DType.F32 else 3) if written(s)]


@needs_compiler
@pytest.mark.parametrize("dtype", [d for d in DType if not d.is_complex], ids=str)
def test_every_op_gives_what_its_reference_gives(dtype: DType, tmp_path: Path) -> None:
    every = calls(dtype)
    for first in range(0, len(every), AT_ONCE):
        together(dtype, every[first:first + AT_ONCE], tmp_path / str(first))


def together(dtype: DType, every: Sequence[Sample], folder: Path) -> None:
    """All in one graph, run twice."""
    b, outputs = Builder(f"ops {dtype.text}"), list[Any]()
    for k, s in enumerate(every):
        outputs += s.call(b, s.inputs(b, f"s{k}x"))
    given = [s.arrays() for s in every]
    run = project(b.finish(*outputs), folder)
    for _ in range(2):
        got = iter(run.run(*(a for arrays in given for a in arrays)))
        for s, arrays in zip(every, given, strict=True):
            for want in s.reference(arrays):
                assert_close(next(got), want, s.dtype, str(s))


def test_only_ops_that_nothing_simpler_makes_are_refused() -> None:
    refused = {s.op for op in OPS for s in islice(samples(op, frozenset({DType.F32, DType.I32})), 4) if not written(s)}
    assert refused <= WITHOUT
    assert Op.QUANTIZE in refused


def test_every_node_that_cannot_be_written_is_named_at_once() -> None:
    b = Builder("m")
    x = b.input("x", (4, 8))
    graph = b.finish(x.rfft(axis=1).irfft(n=8, axis=1), x.cast(to="c64").square().cast(to="f32"))
    with pytest.raises(LegaliseError) as e:
        write(graph, {}, "c99", "nowhere")
    assert all(op in str(e.value) for op in ("rfft", "irfft", "square"))
    assert "test_target_c99.py" in str(e.value)
    assert not Path("nowhere").exists()


@needs_compiler
def test_every_encoding_that_is_written_decodes_bit_for_bit(tmp_path: Path) -> None:
    """Of random bytes, scales that are NaN or infinite among them; rows as they lie and as a view.  Products, where numbers are finite."""
    b, rng, given, wants, outputs = Builder("packed"), np.random.default_rng(0), list[Any](), list[Any](), list[Any]()
    for name in WRITTEN:
        e = encoding(name)
        columns = 3 * e.block
        raw = rng.integers(0, 256, (5, e.row_nbytes(columns))).astype(np.uint8)
        want = e.decode((raw,), columns)
        planes = b.input(name, raw.shape, "u8")
        outputs += [planes.dequantize(encoding=name, shape=(5, columns)), planes.reverse(axes=(0,)).dequantize(encoding=name, shape=(5, columns))]
        given.append(raw)
        wants += [want, want[::-1]]
    finite = quantize(rng.normal(size=(5, 64)).astype(np.float32), "q4_1")[0]
    x = rng.normal(size=(2, 3, 64)).astype(np.float32)
    outputs.append(planes.apply("qmatmul", (b.input("x", x.shape).reverse(axes=(2,)), b.input("w", finite.shape, "u8")), {"encoding": "q4_1", "shape": (5, 64)}))
    got = project(b.finish(*outputs), tmp_path).run(*given, x, finite)
    for k, (found, want) in enumerate(zip(got, wants, strict=False)):
        np.testing.assert_array_equal(found, want, WRITTEN[k // 2])
    np.testing.assert_allclose(got[-1], x[..., ::-1] @ encoding("q4_1").decode((finite,), 64).T, rtol=1e-4, atol=1e-4)
    assert {"q8_0", "q4_1", "q4_k", "q6_k", "mxfp4"} <= set(WRITTEN)


@needs_compiler
def test_what_is_packed_is_what_the_quantiser_packs_bit_for_bit(tmp_path: Path) -> None:
    """Zeros, numbers beyond what a scale can be, NaN and infinity, halves on both sides; narrow types, and rows as a view."""
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(size=(3, 4, 64)), np.zeros((1, 4, 64)), rng.normal(size=(1, 4, 64)) * 1e36, rng.normal(size=(1, 4, 64)) * 1e-6]).astype(np.float32)
    x[0, 0, 5], x[0, 1, 40], x[1, 2, 0] = np.nan, np.inf, -np.inf
    x[2, 0, :32] = np.arange(-16, 16) * np.float32(0.5) * 127 / 16
    b, given, outputs, wants = Builder("packing"), list[Any](), list[Any](), list[Any]()
    for name in ("f32", "f16", "bf16"):
        with np.errstate(over="ignore"):
            narrow = x.astype(dtype(name).numpy) if name != "f32" else x
        value = b.input(name, x.shape, name)
        given.append(narrow)
        for out, array in ((value, narrow), (value.reverse(axes=(1, 2)), narrow[:, ::-1, ::-1]), (value.transpose(perm=(1, 0, 2)), narrow.transpose(1, 0, 2))):
            outputs.append(out.quantize(encoding="q8_0"))
            wants.append(quantize(array.astype(np.float32), "q8_0", finite=False)[0])
    run = project(b.finish(*outputs), tmp_path)
    for _ in range(2):
        for found, want in zip(run.run(*given), wants, strict=True):
            np.testing.assert_array_equal(found, want)


@needs_compiler
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.F64], ids=lambda d: d.text)
def test_lowered_norms_of_constant_rows_are_their_bias(dtype: DType, tmp_path: Path) -> None:
    graph, given, wants = norms_of_constant_rows(dtype, 37)
    for got, want in zip(project(graph, tmp_path).run(*given), wants, strict=True):
        np.testing.assert_array_equal(got, want)


@needs_compiler
def test_lowered_norms_of_large_rows_stay_finite(tmp_path: Path) -> None:
    b = Builder("large")
    (got,) = project(b.finish(b.input("x", LARGE.shape).layer_norm(eps=1e-5)), tmp_path).run(LARGE)
    np.testing.assert_array_equal(got, np.zeros_like(LARGE))


# ---- whole graphs
@needs_compiler
@pytest.mark.parametrize("seed", range(3))
def test_random_graphs_under_sanitizers_by_their_own_test(seed: int, tmp_path: Path) -> None:
    """`make test`: symbolic sizes, states, constants, several outputs; nothing is read or written outside what is ours."""
    graph = random_graph(seed, 40).graph
    try:
        write(graph, random_params(graph), "c99", tmp_path)
    except LegaliseError:
        pytest.skip("this one has an op that C99 lacks")
    done = made(tmp_path, "test", f"CFLAGS={SAFE}")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.endswith("as recorded\n")


@needs_compiler
def test_loops_and_branches_within_one_another_under_sanitizers(tmp_path: Path) -> None:
    """Carries that trade places, slices from the last to the first, views over what is around, a gather that may fail inside."""
    b = Builder("loops")
    n = sym("N", 1, 7)
    xs, start, at = b.input("xs", (n, 3, 4)), b.input("start", (4, 3)), b.input("at", (2,), "i64")

    def step(carry: Any, x: Any) -> Any:
        a, c = carry
        flipped = cond((x.sum(axes=(0, 1)) > 0.0), lambda y: y.reverse(axes=(1,)), lambda y: while_loop(lambda z: (z.abs().max(axes=(0, 1)) > 0.5), lambda z: z * 0.5, y), x)
        return (c, a + flipped.T), (flipped.gather(at, axis=1), a[1:])

    (a, c), (rows, kept) = scan(step, (start, start * 2.0), xs, reverse=True)
    graph = b.finish(a, c, rows, kept)
    rng = np.random.default_rng(0)
    runs = [{"xs": rng.normal(size=(k, 3, 4)).astype(np.float32), "start": np.ones((4, 3), np.float32), "at": np.array([-1, 2])} for k in (7, 1, 4)]
    write(graph, {}, "c99", tmp_path, record(graph, {}, runs))
    done = made(tmp_path, "test", f"CFLAGS={SAFE}")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-2000:] + done.stderr[-2000:]


def made(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    assert not isinstance(reason, str)
    return subprocess.run(["make", "--no-print-directory", f"CC={' '.join(reason.argv)}", *args], cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)


def counter() -> Graph:
    """States that trade places, one that grows, and rows written into a cache."""
    b = Builder("counter")
    n = sym("N", 1, 6)
    x = b.input("x", (n, 3))
    a, c, cache, at = b.state("a", (2,)), b.state("c", (2,)), b.state("cache", (8, 3)), b.state("at", (), "i64")
    kept = cache.kv_append(x, at, axis=0)
    b.update(a, c + 1.0)
    b.update(c, a)
    b.update(cache, kept)
    b.update(at, at + b.emit("size", dim=n))
    return b.finish(kept * 2.0, a - c, names=("kept", "apart"))


@needs_compiler
def test_states_live_from_run_to_run_and_an_index_outside_is_an_error(tmp_path: Path) -> None:
    graph = counter()
    c, reference = project(graph, tmp_path), compile(graph, device="reference")
    for _ in range(2):
        for n in (3, 1, 4):
            x = np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32)
            for got, want in zip(c.run(x, sizes={"N": n}), reference.run(x), strict=True):
                np.testing.assert_array_equal(got, want)
        with pytest.raises(AssertionError, match=r"kv_append: .*outside its axis, at .*test_target_c99.py"):
            c.run(np.ones((1, 3), np.float32), sizes={"N": 1})
        c.reset()
        reference.reset()
    with pytest.raises(AssertionError, match=r"dim_N is outside 1..6"):
        c.run(np.ones((7, 3), np.float32), sizes={"N": 7})


@needs_compiler
def test_two_states_trade_places(tmp_path: Path) -> None:
    b = Builder("swap")
    x, a, c = b.input("x", (2,)), b.state("a", (2,)), b.state("c", (2,))
    b.update(a, c)
    b.update(c, a)
    graph = b.finish(a + x)
    c99, reference = project(graph, tmp_path), compile(graph, device="reference")
    for k in range(3):
        given = np.full(2, k, np.float32)
        np.testing.assert_array_equal(c99.run(given)[0], reference.run(given))


@needs_compiler
def test_names_of_any_kind_become_identifiers(tmp_path: Path) -> None:
    """Keywords, our own types, signs, other alphabets, and names that only differ in what C cannot spell."""
    b, t, alpha = Builder("3 für int"), sym("t", 1, 4), sym("α", 1, 4)
    names = ("int", "f32", "a-b", "a b", "x", "m", "größe", "*/")
    xs = [b.input(name, (t, alpha)) for name in names]
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    graph = b.finish(total, xs[0], xs[0], names=("int", "a+b", "a*b"))
    got = project(graph, tmp_path).run(*(np.full((2, 3), k, np.float32) for k in range(8)), sizes={"t": 2, "α": 3})
    assert [float(a.reshape(-1)[-1]) for a in got] == [28.0, 0.0, 0.0]
    for name in ("NAN", "y", "float"):  # a header's own names must not change what others mean
        b = Builder(name)
        assert np.isnan(project(b.finish(b.input("y", (2,)) * float("nan")), tmp_path / name).run(np.ones(2, np.float32))[0]).all()
    assert all(line.isascii() for p in tmp_path.glob("*.[ch]") for line in p.read_text("utf-8").splitlines())


@needs_compiler
def test_an_extension_is_written_through_its_lowering(tmp_path: Path) -> None:
    with registry():
        cube = register_op(OpExtension("acme.cube", OpRow(1, lambda x: x.shape, lambda x: x.dtype, ref=lambda x: x ** 3, lower=lambda x: x * x * x, attrs=Attrs)))
        b = Builder("cubes")
        graph = b.finish(cube(b.input("x", (3, 5))) + 1.0)
        x = np.arange(15, dtype=np.float32).reshape(3, 5)
        np.testing.assert_array_equal(project(graph, tmp_path).run(x)[0], x ** 3 + 1)
        assert "mul_mul_add" in (tmp_path / "cubes.c").read_text()


CUBE = """
#include <stddef.h>
/* NAME_shape, parameters of every kind, and a type by its operand's name. */
static double twice(double x) { return 2*x; }
void rlx_custom(const x_type *x, const i64 *x_shape, i64 x_rank, const double *weights, i64 weights_count, i64 up, const char *label, x_type *out, i64 out_numel) {
  double sum = label[0] == 'k' && x_rank == 2 ? (double)x_shape[1] : 0;
  for (i64 k = 0; k < weights_count; k++) sum += twice(weights[k]);
  for (i64 i = 0; i < out_numel; i++) out[i] = (x_type)(x[i]*x[i]*x[i] + (up ? (x_type)sum : 0));
}"""


@dataclass(frozen=True)
class Given(Attrs):
    weights: tuple[float, ...]
    up: bool
    label: str = 'k"\\\n'


@needs_compiler
def test_an_extension_with_a_c_kernel_brings_its_source(tmp_path: Path) -> None:
    """Of a view, in two types, with a symbolic size."""
    with registry():
        cube = register_op(OpExtension("acme.cube", OpRow(1, lambda x, weights, up, label: x.shape, lambda x, weights, up, label: x.dtype, attrs=Given), ("x",)))
        cube = register_cpu_kernel(cube, CUBE)
        b = Builder("cubes")
        x = b.input("x", (5, sym("N", 1, 9)))
        graph = b.finish(cube(x, weights=(1.0, 0.5), up=True), cube(x.T.cast(to="f64"), weights=(), up=False), cube(x.T, weights=(2.0,), up=True))
        given = np.arange(35, dtype=np.float32).reshape(5, 7) / 8
        first, second, third = project(graph, tmp_path).run(given, sizes={"N": 7})
    np.testing.assert_array_equal(first, given ** 3 + (7 + 3))
    np.testing.assert_array_equal(second, given.T.astype(np.float64) ** 3)
    np.testing.assert_array_equal(third, given.T ** 3 + (5 + 4))


CLASHING = """
#define COUNT {0}
#define SUM(a, b) \\
  ((a) + (b))
enum {{ FIRST, SECOND = {0} }};
struct pair {{ float a, b[COUNT]; }};
typedef struct pair kind;
static const float table[] = {{ {0}.0f, SECOND }}; float *volatile last, unread;
extern float nobody(float);
float helper(float v) {{ const kind p = {{ v, {{ FIRST }} }}; return SUM(p.a, table[0]); }}
void rlx_custom(const float *x, float *out, i64 out_numel) {{
  for (i64 i = 0; i < out_numel; i++) out[i] = helper(x[i]) * COUNT;
  last = out;
}}"""


@needs_compiler
def test_c_kernels_may_have_names_of_one_another(tmp_path: Path) -> None:
    """Of everything that C has at file scope; in one project, and in two of one program; in loops too, where a lowering would serve elsewhere."""
    with registry():
        first, second = (register_cpu_kernel(declare_op(f"acme.k{k}")(lambda x: x), CLASHING.format(k)) for k in (2, 3))
        b = Builder("one")
        x, n = b.input("x", (3,)), b.input("n", (), "i64")
        graph = b.finish(first(x), second(x), while_loop(lambda c: c[0] > 0, lambda c: (c[0] - 1, first(c[1])), (n, x))[1])
        v = np.arange(3, dtype=np.float32)
        runs = record(graph, {}, [{"x": v, "n": np.int64(2)}])
        for k, got in enumerate(((v + 2) * 2, (v + 3) * 3, ((v + 2) * 2 + 2) * 2)):
            np.testing.assert_array_equal(runs[0].outputs[k], got)
        write(graph, {}, "c99", tmp_path / "one", runs)
        write(replace(graph, name="two"), {}, "c99", tmp_path / "two", runs)
    for name in ("one", "two"):
        assert made(tmp_path / name, "test", f"CFLAGS=-Werror {SAFE}").returncode == 0
    (tmp_path / "main.c").write_text("int main(void) { return 0; }")
    compiled(tmp_path, "main", out="both", sources=("main.c", "one/one.c", "two/two.c"))


@pytest.mark.parametrize(("source", "names", "macros"), [
    (CLASHING.format(2), "SECOND FIRST pair kind table last unread helper rlx_custom", "COUNT SUM"),
    ("float sinf(float); int a(void), b(void); extern int c, d;", "", ""),
    ("static int f(int (*g)(int), int h) { int k = 3; enum { L }; return k; } int m;", "f m", ""),
    ("typedef float v4 __attribute__((vector_size(16))); __attribute__((noinline)) void w(void) {}", "v4 w", ""),
    ('const char *s = "int z; {", t = \'{\'; /* int u; */ // int v;\nunion un { int q; } r;', "s t un r", ""),
    ("#if defined(A) || \\\n  B\n#  define C int d;\n#endif\nint e;", "e", "C"), ("", "", ""), ("int", "", ""), ("void f(", "", "")])
def test_what_a_c_text_declares_is_known(source: str, names: str, macros: str) -> None:
    found = declared(source)
    assert (set(found.names), set(found.macros)) == (set(names.split()), set(macros.split()))


@needs_compiler
@pytest.mark.parametrize("inputs", [True, False])
def test_a_graph_that_gives_nothing_keeps_its_state(tmp_path: Path, inputs: bool) -> None:
    b = Builder("Makefile")
    seen = b.state("seen", (2,), "f32")
    b.update(seen, seen + (b.input("x", (2,)) if inputs else 1.0))
    write(b.finish(), {}, "c99", tmp_path)
    assert made(tmp_path, "test", f"CFLAGS=-Werror {SAFE}").returncode == 0
    write(b.finish(), {}, "c99", tmp_path, ())
    assert made(tmp_path, "test", f"CFLAGS=-Werror {SAFE}").returncode == 0


def test_a_c_kernel_that_is_no_c99_is_refused_with_the_reason() -> None:
    with registry():
        op = register_op(OpExtension("acme.e", OpRow(1, lambda x: x.shape, lambda x: x.dtype), ("x",)))
        op = register_cpu_kernel(op, "void rlx_custom(const float *x, float *out) { out[0] = rlx_exp(x[0]); }")
        b = Builder("m")
        with pytest.raises(LegaliseError, match=r"calls rlx_exp, which choose by type"):
            write(b.finish(op(b.input("x", (1,)))), {}, "c99", "nowhere", ())


@needs_compiler
def test_integers_wrap_and_numbers_at_the_edge_are_as_in_numpy(tmp_path: Path) -> None:
    b = Builder("edges")
    i, h, f = b.input("i", (4,), "i32"), b.input("h", (3,), "u16"), b.input("f", (5,))
    graph = b.finish(i * i, i + i, -i, i // -1, i // 0, h * h, f.cast(to="i8"), f.cast(to="u64"), f.maximum(1.0), i.sum(axes=(0,)))
    given = (np.array([2 ** 31 - 1, -2 ** 31, -7, 65536], np.int32), np.array([65535, 2, 300], np.uint16), np.array([np.nan, np.inf, -np.inf, -1.5, 200], np.float32))
    write(graph, {}, "c99", tmp_path, record(graph, {}, [dict(zip("ihf", given, strict=True))]))
    done = made(tmp_path, "test", f"CFLAGS={SAFE}")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@needs_compiler
def test_the_generated_test_sees_a_wrong_result_and_files_that_are_missing(tmp_path: Path) -> None:
    b = Builder("seen")
    graph = b.finish(b.input("x", (5, 7)) @ b.param("w", (7, 3)))
    write(graph, {"w": np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)}, "c99", tmp_path)
    assert made(tmp_path, "test").returncode == 0
    weights = tmp_path / "seen.weights"
    raw = bytearray(weights.read_bytes())
    raw[3] ^= 0x40  # an exponent
    weights.write_bytes(raw)
    assert "DIFFERENT" in made(tmp_path, "test").stdout
    weights.write_bytes(raw[:-1])
    done = made(tmp_path, "test")
    assert (done.returncode != 0, "cannot be read, or is too short" in done.stdout) == (True, True)


@needs_compiler
def test_nothing_is_allocated_after_opening(tmp_path: Path) -> None:
    graph = counter()
    write(graph, {}, "c99", tmp_path, ())
    source = (tmp_path / "counter.c").read_text()
    run, rest = source.partition("counter_run(")[2].partition("\n}\n")[0], source.partition("counter_open(")[0]
    assert not {word for word in ("malloc", "calloc", "realloc", "alloca") if word in run or word in rest}
    compiled(tmp_path, "counter", "-c", "-O2", out="counter.o")
    assert "-pedantic" in STRICT


def test_unknown_targets_and_folders_are_errors(tmp_path: Path) -> None:
    graph = counter()
    with pytest.raises(InputError, match=r"no target 'c98'[\s\S]*c99"):
        write(graph, {}, "c98", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        write(graph, {}, "c99", tmp_path / "file", ())
