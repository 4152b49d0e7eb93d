"""Products by a vendor's library against sums in float64: hipBLASLt as ours simulates it, cuBLASLt where there is a card and the library."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CDLL, c_float, create_string_buffer
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_device import fact
from sim_device import lacking, needs_clang
from test_cpu_products import CASES, EPS, arrays_of, error_bound, product_graph, viewed

from rlxpy import Builder, CompileOptions, DType, compile, scan, sym, while_loop
from rlxpy.backends.gpu import blaslt, gemm
from rlxpy.backends.gpu.backend import spec_of
from rlxpy.backends.gpu.blaslt import CUBLASLT, HIPBLASLT, BlasLt, Dialect
from rlxpy.backends.gpu.hip import HipApi, api
from rlxpy.backends.gpu.places import Scope
from rlxpy.backends.gpu.sim import simulated
from rlxpy.backends.gpu.sim.build import library
from rlxpy.backends.gpu.vendor import CUDA, missing
from rlxpy.errors import DeviceError, InputError

Array = np.ndarray[Any, Any]
DEBUG = CompileOptions(debug=True)
TYPES = [d for d in EPS if d.text in blaslt.TYPES]
types = pytest.mark.parametrize("d", TYPES, ids=lambda d: d.text)


@contextmanager
def simulation(arch: str = "gfx942", **how: Any) -> Iterator[str]:
    if why := lacking():
        pytest.skip(f"not run, because {why}")
    with simulated(arch, blaslt=True, **how):
        yield "rocm"


@pytest.fixture(params=["rocm", "cuda"])
def lt(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a device that has its vendor's library."""
    if request.param == "rocm":
        with simulation() as name:
            yield name
        return
    if why := missing(CUDA):
        pytest.skip(f"not run, because {why}")
    if fact("cuda", "gemm") != CUBLASLT.name:
        pytest.skip(f"not run, because cuBLASLt is not here: {CUBLASLT.install}")
    yield "cuda"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products of every size are the library's."""
    monkeypatch.setattr(gemm, "LEAST", 0)
    spec_of.cache_clear()
    yield
    spec_of.cache_clear()


def name_of(device: str) -> str:
    return {"rocm": HIPBLASLT, "cuda": CUBLASLT}[device].name


def kernels_of(f: Any) -> set[str]:
    """At any size, in loops too."""
    return {v.choice.name for s in f.plan.every_step for v in s.variants}


def normal(shape: tuple[int, ...], d: DType = DType.F32, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).normal(size=shape), np.float32).astype(d.numpy)


# ---- values
@types
def test_products_of_every_layout(lt: str, d: DType, small: None) -> None:
    """What the library cannot be asked for, as steps along rows and columns, is left to kernels of ours."""
    graph, weights, given = product_graph(CASES, d)
    f = compile(graph, weights, device=lt, options=DEBUG)
    assert f"{name_of(lt)}/matmul.{d.text}" in kernels_of(f)
    for _ in range(2):
        for (name, case), got, k in zip(CASES.items(), f.run(*given), range(len(CASES)), strict=True):
            want_of = viewed(case, *arrays_of(case, d, k))
            assert got.dtype == d.numpy
            assert np.all(np.abs(got.astype(np.float64) - np.matmul(*want_of)) <= error_bound(*want_of, d)), name


@types
def test_what_is_added_is_the_librarys_too(lt: str, d: DType) -> None:
    """A bias, a value of the product's shape, and both, on whichever side and in whichever order."""
    arrays = {k: normal(s, d, i) for i, (k, s) in enumerate({"x": (2, 130, 37), "w": (37, 131), "deep": (131, 37), "bias": (131,), "more": (2, 130, 131)}.items())}
    b = Builder("added")
    x, w, deep, bias, more = (b.input(k, a.shape, d) for k, a in arrays.items())
    f = compile(b.finish(x @ w + bias, bias + (-x) @ deep.T, (x * 2.0) @ w + more, bias + (more + (x * 3.0) @ w)), device=lt, options=DEBUG)
    assert {k for k in kernels_of(f) if "matmul" in k} == {f"{name_of(lt)}/fused.matmul.{d.text}"}
    y, right, other, shift, added = (a.astype(np.float64) for a in arrays.values())
    want = (y @ right + shift, shift - y @ other.T, 2 * y @ right + added, shift + added + 3 * y @ right)
    for _ in range(3):
        for k, (got, exact) in enumerate(zip(f.run(*arrays.values()), want, strict=True)):
            np.testing.assert_allclose(got.astype(np.float64), exact, rtol=0, atol=4 * EPS[d] * np.abs(exact).max() + 1e-5, err_msg=str(k))


def test_what_it_cannot_add_is_added_by_kernels_of_ours(lt: str) -> None:
    """Rows that a batch shares, a second product; and no activation is asked of it."""
    x, w, bias, rows = normal((2, 130, 37)), normal((37, 131), seed=1), normal((131,), seed=2), normal((2, 1, 131), seed=3)
    b = Builder("ours")
    left, right, shift, each = (b.input(k, a.shape) for k, a in (("x", x), ("w", w), ("bias", bias), ("rows", rows)))
    f = compile(b.finish(left @ right + each, (left * 2.0) @ right + shift + (left * 3.0) @ right, ((left * 4.0) @ right + shift).relu()), device=lt, options=DEBUG)
    assert "gpu/fused.matmul" in kernels_of(f)
    p = x.astype(np.float64) @ w
    for _ in range(2):
        for got, exact in zip(f.run(x, w, bias, rows), (p + rows, 5 * p + bias, np.maximum(4 * p + bias, 0)), strict=True):
            np.testing.assert_allclose(got, exact, rtol=0, atol=1e-4)


def test_sizes_known_at_run_time(lt: str) -> None:
    """Few rows are ours, many the library's, of one compile; again with other weights; and outputs twice over have the same bits."""
    m = sym("M", 0, 300)
    b = Builder("sizes")
    w = normal((40, 129))
    f = compile(b.finish(b.input("x", (m, 40)) @ b.param("w", w.shape) + b.param("bias", (129,))), {"w": w, "bias": w[0]}, device=lt)
    assert {f"{name_of(lt)}/fused.matmul.f32", "gpu/fused.matmul", "gpu/fused.matmul.one"} <= kernels_of(f)
    for scale in (1, 2):
        f.set_param("w", scale * w)
        for rows in (200, 128, 127, 1, 0, 300, 200):
            x = normal((rows, 40), seed=rows)
            runs = [f(x) for _ in range(3)]
            np.testing.assert_allclose(runs[0], x.astype(np.float64) @ (scale * w) + w[0], rtol=0, atol=1e-4)
            assert all(np.array_equal(runs[0], again) for again in runs)


def test_f32_is_exact_unless_numerics_permits_less(lt: str) -> None:
    b = Builder("exact")
    graph, x, w = b.finish(b.input("x", (160, 200)) @ b.input("w", (200, 144))), normal((160, 200)), normal((200, 144), seed=1)
    want, errors = x.astype(np.float64) @ w, {}
    for numerics, form in (("highest", "f32"), ("high", "f32"), ("medium", "tf32"), ("low", "tf32")):
        f = compile(graph, device=lt, options=CompileOptions(numerics=numerics))
        assert kernels_of(f) == {f"{name_of(lt)}/matmul.{form}"}
        errors[numerics] = np.abs(f(x, w) - want).max()
    assert max(errors["highest"], errors["high"]) <= np.max(error_bound(x.astype(np.float64), w.astype(np.float64), DType.F32))
    assert errors["medium"] <= 2.0**-10 * np.max(np.abs(x).astype(np.float64) @ np.abs(w))
    if lt == "rocm":  # a library may, and need not, round where it is permitted to
        assert 20 * errors["highest"] < errors["medium"]


def test_nan_and_infinity_come_through(lt: str) -> None:
    b = Builder("nan")
    f = compile(b.finish(b.input("x", (128, 16)) @ b.input("w", (16, 128))), device=lt)
    x, w = normal((128, 16)), normal((16, 128), seed=1)
    x[3, 4], x[5, 6] = np.nan, np.inf
    got = f(x, w)
    assert np.isnan(got[3]).all()
    assert np.isinf(got[5]).all()
    assert np.isfinite(np.delete(got, (3, 5), 0)).all()


def test_products_between_kernels_of_ours_share_their_memory(lt: str) -> None:
    """Five layers whose values take one another's place in the arena, the workspace among them."""
    b = Builder("layers")
    weights = {f"w{k}": normal((144, 144), seed=k) / 12 for k in range(5)}
    value = b.input("x", (2, 130, 144))
    for name in weights:
        value = (value @ b.param(name, (144, 144))).softmax(axis=-1) + value
    f = compile(b.finish(value), weights, device=lt)
    x = normal((2, 130, 144), seed=9)
    want = x.astype(np.float64)
    for w in weights.values():
        made = want @ w
        e = np.exp(made - made.max(-1, keepdims=True))
        want = e / e.sum(-1, keepdims=True) + want
    for _ in range(3):
        np.testing.assert_allclose(f(x), want, rtol=0, atol=1e-4)


def test_products_in_loops(lt: str) -> None:
    """Rounds that are recorded, and rounds as long as a condition holds: each has its own operands, and one workspace."""
    w, x = normal((128, 128)) / 8, normal((128, 128), seed=1)
    b = Builder("rounds")
    right, start = b.param("w", w.shape), b.input("x", x.shape)
    last, each = scan(lambda c, k: (c @ right, (c @ right.T)[0] + k), start, b.const(np.zeros(3, np.float32)))
    f = compile(b.finish(last, each, while_loop(lambda c: c.abs().max(axes=(0, 1)) < 50.0, lambda c: c @ right, start)), {"w": w}, device=lt)
    assert f"{name_of(lt)}/matmul.f32" in kernels_of(f)
    want, seen = x.astype(np.float64), []
    for _ in range(3):
        seen.append((want @ w.T)[0])
        want = want @ w
    held = x.astype(np.float64)
    while np.abs(held).max() < 50:
        held = held @ w
    for _ in range(3):
        for got, exact in zip(f.run(x), (want, np.stack(seen), held), strict=True):
            np.testing.assert_allclose(got, exact, rtol=0, atol=1e-4 * np.abs(exact).max())


@needs_clang
def test_a_product_beside_machine_code() -> None:
    with simulation("gfx1100", by="isa") as device:
        b = Builder("machine")
        f = compile(b.finish(b.input("x", (128, 8)).exp() @ b.input("w", (8, 128))), device=device, options=DEBUG)
        assert f"{HIPBLASLT.name}/matmul.f32" in kernels_of(f)
        x, w = normal((128, 8)) / 8, normal((8, 128), seed=1)
        np.testing.assert_allclose(f(x, w), np.exp(x.astype(np.float64)) @ w, rtol=0, atol=1e-5)


# ---- who is chosen
def plain() -> Any:
    b = Builder("chosen")
    return b.finish(b.input("x", (128, 8)) @ b.input("w", (8, 128)))


def test_a_library_is_left_out_by_name(lt: str) -> None:
    own, row = {"gpu/matmul"}, f"{name_of(lt)}/matmul.f32"
    for options, names in ((CompileOptions(), {row}), (CompileOptions(kernels=("builtin",)), own), (CompileOptions(kernels=("gpu",)), own), (CompileOptions(kernels=(name_of(lt), "gpu")), {row}),
                           (CompileOptions(force_row=("gpu/matmul",)), own), (CompileOptions(kernels=("builtin",), force_row=(row,)), {row})):
        f = compile(plain(), device=lt, options=options)
        assert kernels_of(f) == names, options
        x, w = normal((128, 8)), normal((8, 128), seed=1)
        np.testing.assert_allclose(f(x, w), x.astype(np.float64) @ w, rtol=0, atol=1e-5)


def test_a_machine_without_the_library_says_so() -> None:
    if why := lacking():
        pytest.skip(f"not run, because {why}")
    with simulated("gfx942"):
        f = compile(plain(), device="rocm")
        assert kernels_of(f) == {"gpu/matmul"}
        assert "hipblaslt/matmul.tf32, hipblaslt/matmul.f16, hipblaslt/matmul.bf16: device.gemm EQ hipblaslt: device.gemm = none" in str(f.selection())
        with pytest.raises(InputError, match="cublaslt"):
            compile(plain(), device="rocm", options=CompileOptions(kernels=("cublaslt",)))


def test_a_chip_that_loses_subnormal_numbers_keeps_narrow_products() -> None:
    with simulation("gfx90a") as device:
        for d, numerics, name in ((DType.F32, "highest", "hipblaslt/matmul.f32"), (DType.F32, "medium", "gpu/matmul.mfma2"), (DType.F16, "highest", "gpu/matmul"),
                                  (DType.BF16, "low", "gpu/matmul.mfma2_bf16")):
            b = Builder("narrow")
            f = compile(b.finish(b.input("x", (128, 8), d) @ b.input("w", (8, 128), d)), device=device, options=CompileOptions(numerics=numerics))
            assert kernels_of(f) == {name}


def test_a_report_says_who_computes_what(lt: str) -> None:
    f = compile(plain(), device=lt)
    title = {"rocm": HIPBLASLT, "cuda": CUBLASLT}[lt].title
    assert f"by {title}, or by tiles of ours where it has no algorithm" in str(f.selection())
    spans = f.profile(normal((128, 8)), normal((8, 128)))
    assert [s.kernel for s in spans] == [f"{title[:-2].replace('BLAS', 'blas')}LtMatmul"]


# ---- faults
def test_what_the_library_has_nothing_for_is_told_once_and_done(lt: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    b = Builder("steps")
    f = compile(b.finish(b.input("x", (128, 16))[:, ::2] @ b.input("w", (8, 128))), device=lt)
    x, w = normal((128, 16)), normal((8, 128), seed=1)
    for _ in range(2):
        np.testing.assert_allclose(f(x, w), x[:, ::2].astype(np.float64) @ w, rtol=0, atol=1e-5)
    assert "to kernels of our own: an operand has steps along its rows and along its columns" in capsys.readouterr().err


def planted(device: str) -> Callable[[], None]:
    """A look at whether what a graph gives is right, three times over."""
    b = Builder("planted")
    given = normal((2, 130, 24)), normal((2, 24, 140), seed=1), normal((2, 130, 140), seed=2)
    x, w, more = (b.input(f"x{k}", a.shape) for k, a in enumerate(given))
    f = compile(b.finish(x @ w + more), device=device)

    def look() -> None:
        for _ in range(3):
            np.testing.assert_allclose(f(*given), given[0].astype(np.float64) @ given[1] + given[2], rtol=0, atol=1e-4)

    return look


@pytest.mark.parametrize(("step", "found"), [(-1, "status 3: invalid value"), (1, "not inside one allocation|Mismatched")], ids=["less than a row", "more than a row"])
def test_a_wrong_leading_dimension_is_seen(step: int, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = gemm.Walked.matrix

    def wrong(self: gemm.Walked, *args: Any) -> Any:
        m = right(self, *args)
        return m and replace(m, step=m.step + step)

    with simulation() as device:
        planted(device)()
        monkeypatch.setattr(gemm.Walked, "matrix", wrong)
        look = planted(device)
        with pytest.raises((DeviceError, AssertionError), match=found):
            look()


def test_a_workspace_that_is_missing_or_small_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulation() as device:
        look = planted(device)
        monkeypatch.setattr(Scope, "scratch", lambda self, step: 0)
        with pytest.raises(DeviceError, match=r"hipBLASLt refuses hipblasLtMatmul(?s:.*)invalid value"):
            look()


def test_a_workspace_that_another_uses_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that lies over an operand."""
    prepare = HipApi.prepare
    monkeypatch.setattr(HipApi, "prepare", lambda self, p, workspace, nbytes: prepare(self, p, p.a.address, nbytes))
    with simulation() as device, pytest.raises(AssertionError, match="Mismatched"):
        planted(device)()


def test_a_call_that_nobody_waits_for_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One on another stream than what reads it."""
    monkeypatch.setattr(HipApi, "multiply", lambda self, prepared: prepared(0))
    with simulation() as device, pytest.raises(AssertionError, match="nan"):
        planted(device)()


def test_a_library_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"cuBLASLt cannot be loaded(?s:.*)rlxpy\[cublas\]"):
        BlasLt(CUBLASLT, str(tmp_path / "nothing.so"))
    if why := lacking():
        pytest.skip(f"not run, because {why}")
    with simulation(), pytest.raises(DeviceError, match="is not the cuBLASLt it is named for"):
        BlasLt(CUBLASLT, simulated_library())


def test_a_handle_that_is_refused_leaves_products_to_us(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As on a chip that the library does not know."""
    with simulation() as device:
        b = Builder("refused")
        f = compile(b.finish(b.input("x", (129, 8)) @ b.input("w", (8, 133))), device=device)
        call = BlasLt.call

        def refuse(self: BlasLt, name: str, *arguments: Any) -> None:
            if name == "Create":
                raise self._refusal(name, 8)
            call(self, name, *arguments)

        monkeypatch.setattr(BlasLt, "call", refuse)
        monkeypatch.setattr(api(), "_blaslt", BlasLt(HIPBLASLT, simulated_library()))
        x, w = normal((129, 8)), normal((8, 133), seed=1)
        np.testing.assert_allclose(f(x, w), x.astype(np.float64) @ w, rtol=0, atol=1e-5)
        assert "kernels of our own: hipBLASLt refuses hipblasLtCreate: status 8: not for this chip" in capsys.readouterr().err


# ---- numbers of the vendors' own
def simulated_library() -> str:
    return str(library("libhipblaslt.so"))


def attributes(d: Dialect) -> dict[str, int]:
    """Numbers by what AMD's and NVIDIA's enumerations call them, after their prefix."""
    where = {"a": "TRANSA", "b": "TRANSB", "epilogue": "EPILOGUE", "bias": "BIAS_POINTER"}
    named = {f"LT_MATMUL_DESC_{where[k]}": v for k, v in d.desc.items()}
    named |= {f"LT_MATRIX_LAYOUT_{ {'count': 'BATCH_COUNT', 'stride': 'STRIDED_BATCH_OFFSET'}[k] }": v for k, v in d.layout.items()}
    named |= {"LT_MATMUL_PREF_MAX_WORKSPACE_BYTES" if k == "workspace" else f"LT_MATMUL_PREF_MIN_ALIGNMENT_{k.upper()}_BYTES": v for k, v in d.wanted.items()}
    named |= {"_COMPUTE_32F": d.computes["f32"], "_COMPUTE_32F_FAST_TF32": d.computes["tf32"], "_OP_N": d.operations[0], "_OP_T": d.operations[1]}
    return named | {"LT_EPILOGUE_DEFAULT": blaslt.PLAIN, "LT_EPILOGUE_BIAS": blaslt.BIAS, "_STATUS_NOT_SUPPORTED": d.unsupported}


def bindings() -> Any:
    """AMD's own, over the simulated library."""
    if why := lacking():
        pytest.skip(f"not run, because {why}")
    if find_spec("rocm.bindings.hipblaslt") is None:
        pytest.skip("not run, because AMD's bindings are not installed: pip install rocm-bindings-libraries")
    CDLL(simulated_library())  # the loader then gives it to whoever asks for its name
    return import_module("rocm.bindings.hipblaslt")


def test_numbers_are_those_of_amds_bindings() -> None:
    modules = [bindings(), import_module("rocm.bindings.hipblas"), import_module("rocm.bindings.hip")]
    enums = {k: int(v) for m in modules for e in vars(m).values() if isinstance(e, type) and hasattr(e, "__members__") for k, v in e.__members__.items()}
    known = attributes(HIPBLASLT)
    assert {k: enums[f"HIPBLAS{k}"] for k in known} == known
    assert {k: enums[f"HIP_R_{n}"] for k, n in (("f32", "32F"), ("f16", "16F"), ("bf16", "16BF"))} == blaslt.TYPES
    assert {n: enums[f"HIPBLAS_STATUS_{s}"] for n, s in ((1, "NOT_INITIALIZED"), (3, "INVALID_VALUE"), (7, "NOT_SUPPORTED"), (8, "ARCH_MISMATCH"))} == {n: n for n in (1, 3, 7, 8)}


def test_amds_bindings_compute_what_ours_do() -> None:
    """The simulated library is held to the interface that AMD's own bindings know."""
    lt = bindings()
    with simulation():
        hip: Any = import_module("rocm.bindings.hip")
        one = api()
        x, y, out = normal((5, 3)), normal((4, 5), seed=1), np.zeros((4, 3), np.float32)  # by columns: 3x5, 5x4, 3x4
        at = [one.alloc(4096) for _ in range(4)]
        for address, a in zip(at, (x, y), strict=False):
            one.write(address, a)
        said: list[Any] = []

        def ask(answer: Any) -> Any:
            said.append(int(answer[0]))
            return answer[1] if len(answer) > 1 else None

        handle, desc = ask(lt.hipblasLtCreate()), ask(lt.hipblasLtMatmulDescCreate(import_module("rocm.bindings.hipblas").hipblasComputeType_t.HIPBLAS_COMPUTE_32F, hip.hipDataType.HIP_R_32F))
        layouts = [ask(lt.hipblasLtMatrixLayoutCreate(hip.hipDataType.HIP_R_32F, *size)) for size in ((3, 5, 3), (5, 4, 5), (3, 4, 3))]
        wanted, result = ask(lt.hipblasLtMatmulPreferenceCreate()), lt.hipblasLtMatmulHeuristicResult_t()
        count = ask(lt.hipblasLtMatmulAlgoGetHeuristic(handle, desc, *layouts, layouts[2], wanted, 1, result))
        one_, zero = (create_string_buffer(bytes(c_float(v))) for v in (1, 0))
        ask(lt.hipblasLtMatmul(handle, desc, one_, at[0], layouts[0], at[1], layouts[1], zero, at[2], layouts[2], at[2], layouts[2], result.algo, at[3], 0, one._stream))
        one.read(at[2], out)
        assert (set(said), int(count)) == ({0}, 1)
        np.testing.assert_allclose(out, y @ x, rtol=0, atol=1e-5)
        for address in at:
            one.free(address)


def test_numbers_are_those_of_the_cuda_header() -> None:
    at = blaslt.found(CUBLASLT)
    folder = Path(at).parent.parent / "include"
    if not (folder / "cublasLt.h").is_file():
        pytest.skip(f"not run, because there is no header beside {at or 'cuBLASLt'}: {CUBLASLT.install}")
    text = (folder / "cublasLt.h").read_text() + (folder / "cublas_api.h").read_text()
    enums = {k: int(v) for k, v in re.findall(r"^\s*(CUBLAS\w+)\s*=\s*(\d+)\b", text, re.MULTILINE)}
    known = attributes(CUBLASLT)
    assert {k: enums[f"CUBLAS{k}"] for k in known} == known
    assert CUBLASLT.fixed == {enums["CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK"]: enums["CUBLASLT_REDUCTION_SCHEME_NONE"]}
