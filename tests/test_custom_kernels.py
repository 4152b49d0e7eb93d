"""Kernels for extension ops, in NumPy and in C: one op three ways gives one result on every device; what a C function may ask for; refusals."""
from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from rlxpy import Builder, CompileOptions, DType, Graph, Session, compile, parse, show, sym
from rlxpy.backends.cpu.backend import Cpu
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.backends.custom import extension_row
from rlxpy.backends.host import LIBRARY
from rlxpy.backends.reference import HostGraph, Reference
from rlxpy.errors import CompileError, HookMismatch, LegaliseError, NotRegistered, RlxError
from rlxpy.extend import (
    BackendSpec,
    Case,
    Device,
    KernelSearchPath,
    Plan,
    TensorType,
    backend_registry,
    check_op,
    declare_op,
    op,
    register_backend,
    register_cpu_kernel,
    registry,
)
from rlxpy.fusion.pipeline import run as passes, standard
from rlxpy.ir.dims import Dim, Shape
from rlxpy.ir.dtypes import Array
from rlxpy.ir.extension import extension
from rlxpy.ir.trace import scan

reason = find_compiler()
compiles = pytest.mark.skipif(isinstance(reason, str), reason=f"C kernels did not run: {reason}")


class Foreign:
    """A device with kernels of its own for nothing: everything is staged, but what it lowers."""

    spec = BackendSpec(Device("foreign"), KernelSearchPath(()), host=KernelSearchPath((LIBRARY,)), staged=extension_row)

    def missing(self) -> None: return None

    def load(self, plan: Plan, params: Mapping[str, Array], *, debug: bool = False) -> HostGraph: return Reference().load(plan, params, debug=debug)


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with registry(), backend_registry():
        register_backend(Device("foreign"), Foreign)
        yield


DEVICES = ("reference", "cpu", "foreign")
X = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32) * 9


def one(f: Callable[..., Any], shape: tuple[Dim, ...] = (3, 5), dtype: str = "f32") -> Graph:
    b = Builder()
    made = f(b.input("x", shape, dtype))
    return b.finish(*(made if isinstance(made, tuple) else (made,)))


def run(g: Graph, *xs: Any, device: str) -> Any:
    """Twice on poisoned memory."""
    f = compile(g, device=device, options=CompileOptions(debug=True), wait=True)
    first, second = f(*xs), f(*xs)
    for a, b in zip(*((v if isinstance(v, tuple) else (v,)) for v in (first, second)), strict=True):
        assert_array_equal(a, b)
    return first


def kernels(g: Graph, device: str = "cpu") -> list[object]:
    return [row["kernel"] for row in compile(g, device=device).dispatch()]


def softcap() -> Any:
    @op("acme.softcap")
    def composed(x: Any, cap: float = 30.0) -> Any: return (x / cap).tanh() * cap
    return composed


def in_numpy(x: Any, cap: float) -> Any: return np.tanh(x / x.dtype.type(cap)) * x.dtype.type(cap)


IN_C = """
/* also: void rlx_custom(int nobody) */
static x_type capped(x_type v, x_type cap) { return rlx_tanh(v / cap) * cap; }
void rlx_custom(const x_type *x, out_type *out, i64 out_numel, double cap) {
  for (i64 i = 0; i < out_numel; i++) out[i] = capped(x[i], (x_type)cap);
}
"""
ROUTES: tuple[tuple[str, Any], ...] = (("lowering", None), ("numpy", in_numpy), ("c", IN_C))


# ---- one op, three routes, every device ----------------------------------------------------------------------------
@compiles
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("route", "kernel"), ROUTES, ids=[r for r, _ in ROUTES])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_one_op_gives_one_result(device: str, route: str, kernel: Any, dtype: str) -> None:
    ext = softcap()
    if kernel is not None:
        register_cpu_kernel(ext, kernel)
    g = one(lambda x: ext(x.transpose(perm=(1, 0)) * 2.0, 3.0) + 1.0, dtype=dtype)
    want = np.tanh(X.astype(np.float64).T * 2 / 3) * 3 + 1
    assert_allclose(run(g, X.astype(dtype.replace("f", "float")), device=device), want, rtol=1e-5 if dtype == "f32" else 1e-12, atol=1e-6 if dtype == "f32" else 1e-12)


@compiles
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kernel", [in_numpy, IN_C], ids=["numpy", "c"])
def test_an_op_without_a_lowering_is_staged_everywhere(device: str, kernel: Any) -> None:
    ext = declare_op("acme.softcap")(_typed_as_x)
    register_cpu_kernel(ext, kernel)
    g = one(lambda x: ext(x * 2.0, 3.0) + 1.0)
    assert parse(show(g)) == g
    assert_allclose(run(g, X, device=device), np.tanh(X * 2 / 3) * 3 + 1, rtol=1e-5, atol=1e-6)


def _typed_as_x(x: Any, cap: float = 30.0) -> Any: return x


@compiles
def test_a_kernel_takes_precedence_where_the_backend_has_one_and_the_lowering_fuses_elsewhere() -> None:
    ext = softcap()
    g = one(lambda x: ext(x * 2.0) + 1.0)
    assert kernels(g) == ["cpu/fused.elementwise"]
    assert [hit.text for hit in compile(g, device="cpu").fusion.hits] == ["mul div tanh mul add : f32[3,5]"]
    for kernel, name in ((in_numpy, "numpy"), (IN_C, "c")):
        register_cpu_kernel(ext, kernel)
        assert kernels(g) == ["cpu/mul", f"host/acme.softcap.{name}", "cpu/add"]
        assert compile(g, device="cpu").fusion.hits == ()
        for device in ("reference", "foreign"):
            assert [hit.text for hit in compile(g, device=device).fusion.hits] == (["mul div tanh mul add : f32[3,5]"] if device == "reference" else [])
            assert not [k for k in kernels(g, device) if "softcap" in str(k)]


@compiles
@pytest.mark.parametrize("kernel", [in_numpy, IN_C], ids=["numpy", "c"])
def test_loops_call_the_lowering_and_without_one_the_kernel(kernel: Any) -> None:
    composed = softcap()
    declared = declare_op("acme.opaque")(_typed_as_x)
    for ext, staged in ((composed, False), (declared, True)):
        register_cpu_kernel(ext, kernel)
        g = one(lambda x, ext=ext: scan(lambda c, row: (ext(c + row, 3.0), c), x[0], x)[0])
        want = X[0].astype(np.float64)
        for x in X:
            want = np.tanh((want + x) / 3) * 3
        for device in DEVICES:
            assert_allclose(run(g, X, device=device), want, rtol=1e-4, atol=1e-5)
        assert [r["tier"] for r in compile(g, device="cpu").dispatch() if r["op"] == "scan"] == ["host" if staged else "native"]


@compiles
def test_constants_fold_through_a_kernel_that_is_the_only_meaning() -> None:
    ext = declare_op("acme.softcap")(_typed_as_x)
    register_cpu_kernel(ext, IN_C)
    b = Builder()
    f = compile(b.finish(ext(b.const(X), 3.0)), device="reference")
    assert f.dispatch() == []
    assert_allclose(f(), np.tanh(X / 3) * 3, rtol=1e-5, atol=1e-6)


# ---- a change is seen ----------------------------------------------------------------------------------------------
ADD = "void rlx_custom(const float *x, float *out, i64 out_numel) { for (i64 i = 0; i < out_numel; i++) out[i] = x[i] + 1; }"


@compiles
def test_one_character_of_a_source_changed_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE", str(tmp_path))
    ext = declare_op("acme.add")(lambda x: x)
    g = one(ext)
    session = Session("cpu")
    for source, plus in ((ADD, 1), (ADD.replace("+ 1", "+ 2"), 2), (ADD, 1)):
        register_cpu_kernel(ext, source)
        assert_array_equal(session.compile(g, wait=True)(X), X + plus)
    assert len([f for f in tmp_path.rglob("*") if f.is_file() and f.suffix in (".so", ".dll") and b"rlx_call" in f.read_bytes()]) == 2
    register_cpu_kernel(ext, lambda x: x + np.float32(3))
    assert_array_equal(session.compile(g, wait=True)(X), X + 3)


def test_a_kernel_is_forgotten_with_its_scope() -> None:
    ext = softcap()
    with registry():
        register_cpu_kernel(ext, in_numpy)
        assert kernels(one(ext)) == ["host/acme.softcap.numpy"]
    assert kernels(one(ext)) == ["cpu/fused.elementwise"]
    assert extension("acme.softcap") is ext


@pytest.mark.parametrize("wait", [True, False])
def test_a_compiled_graph_keeps_the_ops_it_was_compiled_with(wait: bool) -> None:
    """Also those that only the graphs of its loops name."""
    def build() -> Graph:
        ext = declare_op("acme.scale")(lambda x: x)
        register_cpu_kernel(ext, lambda x: x * np.float32(2))
        return one(lambda x: (ext(x), scan(lambda c, row: (ext(c) + row, None), x[0], x)[0]))

    with registry():
        compiled = [compile(build(), device=device, wait=wait) for device in DEVICES]
    loop = X[0]
    for row in X:
        loop = loop * 2 + row
    for other in (False, True):
        if other:
            register_cpu_kernel(declare_op("acme.scale")(lambda x: x), lambda x: x * np.float32(3))
        for f in compiled:
            if other:
                f.wait()
            scaled, looped = f(X)
            assert_array_equal(scaled, X * 2)
            assert_allclose(looped, loop, rtol=1e-6)


# ---- what a C function may ask for ---------------------------------------------------------------------------------
@compiles
def test_shapes_ranks_and_every_kind_of_parameter() -> None:
    @declare_op("acme.ask")
    def ask(x: Any, y: Any = None, *, n: int, r: float, flag: bool, axes: tuple[int, ...], reals: tuple[float, ...], word: str, to: DType, size: Dim, sizes: Shape) -> Any:
        return TensorType((16,), DType.F64)

    register_cpu_kernel(ask, """
    #include <string.h>
    void ask(const void *x, const i64 *x_shape, i64 x_numel, i64 x_rank, const void *y, i64 y_numel, double *out, const i64 *out_shape, i64 n, double r, int flag,
             const i64 *axes, i64 axes_count, const double *reals, i64 reals_count, const char *word, const char *to, i64 size, const i64 *sizes, i64 sizes_count,
             const void *const *inputs, i64 inputs_count) {
      const double all[16] = {x_shape[0], x_shape[1], x_numel, x_rank, y == 0 ? -1 : y_numel, out_shape[0], n, r, flag, axes[axes_count - 1], reals[reals_count - 1],
                              strcmp(word, "a \\"quote\\" \\\\ ?"), strcmp(to, "bf16"), size, sizes[sizes_count - 1], inputs[0] == x ? inputs_count : -1};
      for (int i = 0; i < 16; i++) out[i] = all[i];
    }""", entry_point="ask")
    S = sym("S", 0, 9)
    given: dict[str, Any] = {"n": -(2**40), "r": 0.25, "flag": True, "axes": (7, 8), "reals": (1.5, float("-inf")), "word": 'a "quote" \\ ?', "to": "bf16", "size": S * 2, "sizes": (1, S + 1)}
    for two in (False, True):
        g = one(lambda x, two=two: ask(x, *((x,) if two else ()), **given), (S, 5))
        for device in DEVICES:
            for s in (3, 0, 4):
                got = run(g, np.zeros((s, 5), np.float32), device=device)
                assert_array_equal(got, [s, 5, 5 * s, 2, 5 * s if two else -1, 16, -(2**40), 0.25, 1, 8, -np.inf, 0, 0, 2 * s, s + 1, 1 + two])


@compiles
@pytest.mark.parametrize("device", DEVICES)
def test_several_outputs_any_number_of_inputs_and_narrow_types(device: str) -> None:
    @declare_op("acme.stats")
    def stats(*xs: Any) -> Any: return TensorType((len(xs),), DType.I64), TensorType((), DType.BOOL), xs[0]

    register_cpu_kernel(stats, """void rlx_custom(const void *const *inputs, i64 inputs_count, const u16 *x0, i64 x0_numel, i64 *out0, unsigned char *out1, u16 *out2) {
      for (i64 k = 0; k < inputs_count; k++) out0[k] = ((const u16 *)inputs[k])[0];
      *out1 = inputs_count > 1;
      for (i64 i = 0; i < x0_numel; i++) out2[i] = x0[x0_numel - 1 - i];
    }""")
    b = Builder()
    x, y = (b.input(n, (3, 5), "f16") for n in "xy")
    got = run(b.finish(*stats(x, y.reverse(axes=(0, 1)), x)), X.astype(np.float16), 2 * X.astype(np.float16), device=device)
    bits = X.astype(np.float16).view(np.uint16), (2 * X.astype(np.float16)).view(np.uint16)
    assert_array_equal(got[0], [bits[0][0, 0], bits[1][-1, -1], bits[0][0, 0]])
    assert got[1]
    assert_array_equal(got[2], X.astype(np.float16)[::-1, ::-1])


@compiles
def test_threads_share_a_kernel() -> None:
    ext = softcap()
    register_cpu_kernel(ext, IN_C)
    f = compile(one(lambda x: ext(x, 3.0)), device="cpu", wait=True)
    faults: list[Any] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((3, 5)).astype(np.float32)
        for _ in range(20):
            if not np.allclose(f(x), np.tanh(x / 3) * 3, rtol=1e-5, atol=1e-6):
                faults.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults


# ---- refusals ------------------------------------------------------------------------------------------------------
REFUSED: list[tuple[str, Any, str]] = [
    ("no such function", "void other(const float *x) {}", r"has no function 'rlx_custom'\n(.*\n)*.*begins 'void other"),
    ("a name that nobody knows", "void rlx_custom(const float *x, float *y) {}", r"asks for y\n(.*\n)*.*its parameters are x, y\n.*names are x, out, cap"),
    ("swapped names", lambda cap, x: x, r"ref of acme.softcap is ref\(cap, x\)\n(.*\n)*.*multiple values for argument 'cap'"),
    ("without its parameter", lambda x: x, r"ref\(x\)"),
    ("nothing of use", 3, r"cpu kernel of acme.softcap is int"),
]


@pytest.mark.parametrize(("kernel", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_a_kernel_that_does_not_fit_is_refused_when_it_is_registered(kernel: Any, words: str) -> None:
    ext = softcap()
    with pytest.raises(HookMismatch, match=words) as e:
        register_cpu_kernel(ext, kernel)
    assert __file__ in e.value.where
    assert extension("acme.softcap") is ext


def test_a_kernel_for_an_op_that_nobody_registered() -> None:
    with pytest.raises(NotRegistered, match=r"acme\.softcab"):
        register_cpu_kernel("acme.softcab", in_numpy)
    with pytest.raises(HookMismatch, match="named out"):
        register_cpu_kernel(declare_op("acme.named")(lambda out: out), ADD)
    with pytest.raises(HookMismatch, match=r"asks for x_numel\n(.*\n)*.*two things"):
        register_cpu_kernel(declare_op("acme.named")(lambda x, x_numel: x), "void rlx_custom(float *out, i64 x_numel) {}")


BROKEN: list[tuple[str, str, str]] = [  # C that a compiler refuses, and a word of what it says
    ("another type", ADD.replace("const float *x", "const double *x"), "pointer"),
    ("a write to an input", ADD.replace("const float *x", "float *x"), "const|discard"),
    ("a function that nobody declared", ADD.replace("x[i] + 1", "tanhf(x[i])"), "tanhf"),
    ("a function that nobody has", "float nowhere(float);" + ADD.replace("x[i] + 1", "nowhere(x[i])"), "nowhere"),
    ("no C", ADD.replace("for", "four"), "four|error|expected"),
]


@compiles
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("source", "word"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_what_the_compiler_refuses_is_told_before_anything_runs(device: str, source: str, word: str) -> None:
    ext = declare_op("acme.add")(lambda x: x)
    register_cpu_kernel(ext, source)
    with pytest.raises(CompileError, match=r"the C kernel of acme.add does not compile\n  at: .*test_custom_kernels.py:\d+") as e:
        compile(one(ext), device=device)
    assert re.search(word, e.value.log)


STRAY = [  # a faulty text of ADD, and what is said
    ("behind its result", ("i < out_numel", "i < out_numel + 3"), "12 bytes are changed, the first 0 bytes behind the end of out, which is float32"),
    ("far behind it", ("out[i]", "out[i + 60]"), "bytes behind the end of out"),
    ("before its result", ("i = 0", "i = -1"), "4 bytes are changed, the first 4 bytes before out"),
    ("into its input", ("x[i] + 1", "((float *)x)[i] = 7"), "the first byte 0 of x, which is float32"),
]


@compiles
@pytest.mark.parametrize(("change", "words"), [s[1:] for s in STRAY], ids=[s[0] for s in STRAY])
def test_a_function_that_writes_where_it_must_not_is_named(change: tuple[str, str], words: str) -> None:
    """By check_op, and by every device under debug: it would spoil memory of others, or end the process."""
    ext = declare_op("acme.add", dtypes=(frozenset({DType.F32}),))(lambda x: x)
    register_cpu_kernel(ext, ADD.replace(*change))
    for device in DEVICES:
        with pytest.raises(RlxError, match=rf"the C kernel of acme.add writes where it must not\n  at: .*test_custom_kernels.py:\d+\n  because: .*{words}"):
            compile(one(ext), device=device, options=CompileOptions(debug=True), wait=True)(X + 0)
    assert not (told := check_op("acme.add", devices=("reference",), cases=[Case(((3, 5),))])).ok
    assert words in str(told)


@compiles
def test_what_a_function_leaves_unwritten_or_reads_outside_shows_as_nan() -> None:
    for change, at in ((("i < out_numel", "i + 1 < out_numel"), -1), (("x[i] + 1", "x[i + 1]"), -1), (("x[i] + 1", "x[i - 1]"), 0)):
        ext = declare_op("acme.add")(lambda x: x)
        register_cpu_kernel(ext, ADD.replace(*change))
        for device in DEVICES:
            got = compile(one(ext), device=device, options=CompileOptions(debug=True), wait=True)(X)
            assert np.flatnonzero(np.isnan(got)).tolist() == [at % X.size], change


@compiles
def test_a_result_that_the_op_does_not_give_is_the_kernel_s_fault_not_a_pass_s() -> None:
    ext = declare_op("acme.add")(lambda x: x)
    register_cpu_kernel(ext, ADD.replace("out", "out0"))
    with pytest.raises(HookMismatch, match="asks for out0, out0_numel"):
        compile(one(ext), device="cpu")


def test_what_a_kernel_raises_or_gives_names_the_user_s_line() -> None:
    for kernel, words in ((lambda x, cap: 1 / 0, "ZeroDivisionError"), (lambda x, cap: x.astype(np.float64), r"it gave float64\[3, 5\], its rules promise float32\[3, 5\]"),
                          (lambda x, cap: x[0], r"it gave float32\[5\]"), (lambda x, cap: (x, x), "it gave 2 results, its rules promise 1"),
                          (lambda x, cap: None, "it gave None"), (lambda x, cap: x.sort() or x, "read-only")):
        ext = declare_op("acme.softcap")(_typed_as_x)
        register_cpu_kernel(ext, kernel)
        g = one(ext)
        for device in DEVICES:
            with pytest.raises(RlxError, match=words) as e:
                compile(g, device=device, wait=True)(X)
            assert "acme.softcap" in e.value.what
            assert __file__ in e.value.where


def test_without_a_compiler_the_lowering_serves_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    ext = softcap()
    register_cpu_kernel(ext, IN_C)
    monkeypatch.setenv("RLX_CC", "/nonexistent")
    after, report = passes(one(lambda x: ext(x) + 1.0), standard(Cpu().spec))
    (note,) = report.of("lowered")
    assert "its c kernel: RLX_CC='/nonexistent' is of no use" in note.text
    assert [n.kind for n in after if n.inputs] == ["elementwise"]


def test_an_op_with_nothing_is_refused_by_name_on_every_device() -> None:
    ext = declare_op("acme.empty")(lambda x: x)
    for device in DEVICES:
        with pytest.raises(LegaliseError, match=r"cannot run 1 node\n(.*\n)*.*acme.empty.*\n.*register_cpu_kernel gives acme.empty a kernel"):
            compile(one(ext), device=device)


def test_the_decorator_gives_the_op() -> None:
    ext = declare_op("acme.median")(lambda x: TensorType(x.shape[:-1], x.dtype))

    @register_cpu_kernel(ext)
    def median(x: Any) -> Any: return np.median(x, axis=-1).astype(x.dtype)

    assert median is extension("acme.median")
    for device in DEVICES:
        assert_array_equal(run(one(lambda x: median(x * 2.0)), X, device=device), np.median(X * 2, -1))
