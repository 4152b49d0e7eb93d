"""Kernels in AMD's assembly: declared, chosen by chip, assembled, held to their metadata, and packed as it says."""
from __future__ import annotations

import ctypes
import os
import re
import runpy
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_objects import needs_llvm
from sim_device import needs_clang, needs_simulation

from rlxpy import Builder, CompileOptions, Graph, Op, RlxError, compile, sym
from rlxpy.backends.gpu.api import GpuTarget
from rlxpy.backends.gpu.arch import FAMILIES
from rlxpy.backends.gpu.assembly import RocmAsmKernel
from rlxpy.backends.gpu.backend import Gpu
from rlxpy.backends.gpu.codeobject import Kernel, read
from rlxpy.backends.gpu.contract import contract_of, hold
from rlxpy.backends.gpu.launch import GpuLaunch, largest
from rlxpy.backends.gpu.offline import assemble
from rlxpy.backends.gpu.raw import own_gpu_kernel, register_gpu_kernel
from rlxpy.backends.gpu.sim import simulated
from rlxpy.backends.gpu.sim.isa import load
from rlxpy.backends.gpu.vendor import VENDORS
from rlxpy.compiler.session import lower
from rlxpy.errors import CodeObjectError, CompileError, HookMismatch, InputError
from rlxpy.extend import declare_op, registry
from rlxpy.extend.backend import KernelLaunch
from rlxpy.extend.contract import contract_of as call_contract
from rlxpy.extend.kernels import Choice, Refusal
from rlxpy.ir.dims import upper
from rlxpy.ir.dtypes import Array
from rlxpy.ir.extension import extension

EXAMPLE = Path(__file__).parents[1] / "examples" / "asm_kernels.py"
CHIPS = {"asm.softmax": ("gfx1100", "gfx1103", "gfx1151"), "asm.rms_norm": ("gfx90a", "gfx942")}
N = sym("N", 1, 4000)


@pytest.fixture(autouse=True)
def _ops() -> Iterator[None]:
    with registry():
        runpy.run_path(str(EXAMPLE))

        @declare_op("asm.many")
        def many(x, y=None, *, n: int = 1, eps: float = 0.5, big: float = 0.1, flag: bool = False, word: str = ""): return x  # type: ignore[no-untyped-def]
        yield


def graph(name: str, *inputs: tuple[tuple[Any, ...], str], **params: Any) -> Graph:
    b = Builder()
    return b.finish(b.custom_op(name, *(b.input(f"i{k}", shape, dtype) for k, (shape, dtype) in enumerate(inputs)), **params))


GRAPHS: dict[str, Callable[[], Graph]] = {
    "asm.softmax": lambda: graph("asm.softmax", ((N, 3, 67), "f32")),
    "asm.rms_norm": lambda: graph("asm.rms_norm", ((N, 3, 67), "f32"), ((67,), "f32"), eps=1e-5),
}
both = pytest.mark.parametrize("name", GRAPHS)
everywhere = pytest.mark.parametrize(("name", "chip"), [(name, chip) for name, chips in CHIPS.items() for chip in chips])


def answer(g: Graph, chip: str) -> Choice | Refusal | None:
    return own_gpu_kernel("rocm", {"arch": chip}, g, next(n for n in g if n.op is Op.CUSTOM))


def launch_of(g: Graph, chip: str) -> GpuLaunch:
    choice = answer(g, chip)
    assert isinstance(choice, Choice), choice
    assert choice.row is not None
    assert isinstance(choice.row.launch, GpuLaunch)
    return choice.row.launch


def kernel_of(name: str) -> RocmAsmKernel:
    found = extension(name).kernels["rocm"]
    assert isinstance(found, RocmAsmKernel)
    return found


def held(made: GpuLaunch, chip: str) -> Kernel:
    return hold(read(assemble(made.source, chip)), made.symbol, contract_of(made, largest(made.operands, made.attrs)))


# ---- who runs it ---------------------------------------------------------------------------------------------------
def plan_of(g: Graph, chip: str, wave: int) -> tuple[list[str], list[str]]:
    plan, _, report = lower(g, Gpu(VENDORS["rocm"], GpuTarget("amd", chip, wave)).spec, CompileOptions())
    return [s.choice.name for s in plan.steps], [n.text for n in report.of("lowered")]


@everywhere
def test_its_chips_run_it(name: str, chip: str) -> None:
    assert plan_of(GRAPHS[name](), chip, 32 if chip.startswith("gfx1") else 64) == ([f"extension/{name}.rocm"], [])


def test_its_contract_has_the_shape_of_its_launch_and_both_kinds_of_shared_memory() -> None:
    register_gpu_kernel(replace(kernel_of("asm.softmax"), name="asm.many", lds_nbytes=128, shared_nbytes=lambda shapes: 4 * shapes["x"][-1]))
    spec = Gpu(VENDORS["rocm"], GpuTarget("amd", "gfx1100", 32)).spec
    plan, _, _ = lower(graph("asm.many", ((N, 3, 67), "f32")), spec, CompileOptions())
    made = call_contract(plan, plan.steps[0], spec)
    most = 3 * upper(N)
    assert made.launches == (KernelLaunch((str(most), "1", "1"), 32, 128, "268"),)
    assert made.capture


@both
def test_other_chips_lower_it_and_say_why(name: str) -> None:
    for chip in ("gfx906", "gfx1030", "gfx1201"):
        names, notes = plan_of(GRAPHS[name](), chip, 64)
        assert f"extension/{name}.rocm" not in names
        assert any("device.arch IN" in n and f"device.arch = {chip}" in n for n in notes)


def test_a_family_is_all_of_its_chips() -> None:
    assert kernel_of("asm.softmax").chips == FAMILIES["gfx11-generic"]


@pytest.mark.parametrize(("inputs", "says"), [
    ((((3, 67), "f64"),), "x is f64, its signature takes f32"), ((((3, 2**30), "f32"),), "x.shape[-1] LE 1073741823: x.shape[-1] = 1073741824"), ((((), "f32"),), "x.shape[-1] is unknown")])
def test_what_it_does_not_do_is_refused_and_not_tried(inputs: Any, says: str) -> None:
    refused = own_gpu_kernel("rocm", {"arch": "gfx1100"}, g := graph("asm.many", *inputs), g[1])
    assert refused is None
    register_gpu_kernel(replace(kernel_of("asm.softmax"), name="asm.many"))
    refused = answer(g, "gfx1100")
    assert isinstance(refused, Refusal)
    assert says in refused.reasons[0]


# ---- assembled -----------------------------------------------------------------------------------------------------
@needs_llvm
@everywhere
def test_it_is_assembled_for_its_chips_and_keeps_its_contract(name: str, chip: str) -> None:
    made = launch_of(GRAPHS[name](), chip)
    found = held(made, chip)
    assert found.wave == made.kernel.contract.wave
    assert [(a.name, a.offset, a.nbytes) for a in found.explicit] == [(a.name, a.offset, a.nbytes) for a in made.args]


@needs_llvm
def test_the_same_text_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = kernel_of("asm.softmax").source
    first = assemble(source, "gfx1151")
    monkeypatch.setenv("RLX_CACHE", str(tmp_path))
    assert assemble(source, "gfx1151") == first
    assert read(assemble(source, "gfx1100")).sha256 != read(first).sha256


PLANTED: dict[str, tuple[str, str, str, str]] = {  # op, what stands in its text, what somebody wrote instead, what is told
    "arguments change places": ("asm.softmax", "{ .name: out, .size: 8, .offset: 8,", "{ .name: x, .size: 8, .offset: 8,", "its argument 1 is called x, handed over there is out"),
    "a wider number": ("asm.softmax", ".size: 4, .offset: 16", ".size: 8, .offset: 16", "handed over is 4 bytes at 16"),
    "an argument left out": ("asm.softmax", "      - { .name: x_last, .size: 4, .offset: 16, .value_kind: by_value }\n", "", "it takes 2 arguments, 3 are handed over"),
    "fewer bytes of arguments": ("asm.softmax", ".amdhsa_kernarg_size 20", ".amdhsa_kernarg_size 16", "its metadata and its descriptor differ: arguments 20 and 16"),
    "the other wave": ("asm.softmax", ".wavefront_size: 32", ".wavefront_size: 64", "its wave has 64 lanes, 32 are relied on; its metadata and its descriptor differ: wave 64 and 32"),
    "fewer threads": ("asm.rms_norm", ".max_flat_workgroup_size: 256", ".max_flat_workgroup_size: 128", "launched with 256 threads in a block, it was compiled for up to 128"),
    "LDS forgotten by the descriptor": ("asm.rms_norm", ".amdhsa_group_segment_fixed_size 16", ".amdhsa_group_segment_fixed_size 0", "LDS 16 and 0"),
    "LDS forgotten by the metadata": ("asm.rms_norm", ".group_segment_fixed_size: 16", ".group_segment_fixed_size: 0", "it has 0 bytes of LDS by itself, its row says 16"),
    "more registers than were asked for": ("asm.rms_norm", ".vgpr_count: 12", ".vgpr_count: 40", "vector registers 40 and 16"),
}


@needs_llvm
@pytest.mark.parametrize("what", PLANTED)
def test_a_slip_in_descriptor_or_metadata_is_told_before_anything_runs(what: str) -> None:
    name, there, instead, says = PLANTED[what]
    kernel = kernel_of(name)
    assert kernel.source.count(there) == 1
    register_gpu_kernel(replace(kernel, source=kernel.source.replace(there, instead)))
    chip = CHIPS[name][0]
    with pytest.raises(CodeObjectError, match="cannot be launched as it should be") as caught:
        held(launch_of(GRAPHS[name](), chip), chip)
    assert says in caught.value.why


@needs_simulation
@needs_clang
def test_a_graph_with_a_slip_is_not_loaded_and_says_whose_it_is() -> None:
    name, there, instead, says = PLANTED["arguments change places"]
    kernel = kernel_of(name)
    register_gpu_kernel(replace(kernel, source=kernel.source.replace(there, instead)))
    with simulated("gfx1151", by="isa") as device:
        with pytest.raises(CodeObjectError, match=rf"asm.softmax \({re.escape(str(kernel.where))}\) cannot be launched(?s:.*){says}"):
            compile(GRAPHS[name](), device="rocm")
        assert device.alive().modules == 0


@needs_llvm
def test_what_the_assembler_refuses_is_told_with_the_line() -> None:
    source = kernel_of("asm.softmax").source.replace("v_mov_b32\tv8, v1", "v_move_b32\tv8, v1")
    with pytest.raises(CompileError, match="invalid instruction") as caught:
        assemble(source, "gfx1100")
    assert "v_move_b32" in caught.value.where
    assert "gfx1100" in caught.value.what


@needs_llvm
def test_what_it_refuses_inside_a_macro_is_told_with_the_line_that_calls_it() -> None:
    source = kernel_of("asm.softmax").source.replace("v_exp_f32\tv5, v5", "v_exp_f33\tv5, v5")
    at = next(k for k, line in enumerate(source.splitlines(), 1) if line.strip() == "EXP")
    with pytest.raises(CompileError, match="invalid instruction") as caught:
        assemble(source, "gfx1100")
    assert f"line {at} of" in caught.value.where
    assert "v_exp_f33" in caught.value.log


# ---- executed in simulation ----------------------------------------------------------------------------------------
GUARD = 64  # elements around every operand that nobody may touch


def ran(made: GpuLaunch, code: bytes, inputs: dict[str, Array], sizes: dict[str, int]) -> Array:
    """The output of a launch, as machine code in simulation, on poisoned memory where it may touch its operands alone."""
    shapes = made.shapes(sizes)
    blocks = {name: np.full(prod(shape) + 2 * GUARD, np.nan, np.float32) for name, shape in shapes.items()}
    inside = {name: block[GUARD:len(block) - GUARD].reshape(shapes[name]) for name, block in blocks.items()}
    for name, a in inputs.items():
        inside[name][...] = a
    arena = min(a.ctypes.data for a in inside.values())
    geometry, packed = made(arena, {name: a.ctypes.data - arena for name, a in inside.items()}, sizes)
    if prod(geometry.grid):
        load(code).launch(made.symbol, geometry.grid, (geometry.block, 1, 1), packed, geometry.shared_nbytes, ranges=[(a.ctypes.data, a.nbytes) for a in inside.values()])
    for name, block in blocks.items():
        assert np.isnan(block[:GUARD]).all()
        assert np.isnan(block[len(block) - GUARD:]).all()
        assert name not in inputs or np.array_equal(inside[name], inputs[name], equal_nan=True)
    return inside["out"].copy()


def softmax_in_f64(x: Array) -> Array:
    with np.errstate(invalid="ignore"):
        e = np.exp((d := x.astype(np.float64)) - d.max(-1, keepdims=True))
        return np.asarray(e / e.sum(-1, keepdims=True))


def rms_norm_in_f64(x: Array, scale: Array) -> Array:
    d = x.astype(np.float64)
    return np.asarray(d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * scale)


def operands(name: str, *shape: int, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * 6).astype(np.float32)
    return {"x": x} if name == "asm.softmax" else {"x": x, "scale": rng.standard_normal(shape[-1:]).astype(np.float32)}


ORACLE: dict[str, Callable[..., Array]] = {"asm.softmax": softmax_in_f64, "asm.rms_norm": rms_norm_in_f64}


def result(name: str, chip: str, inputs: dict[str, Array], source: str | None = None) -> Array:
    made = launch_of(graph(name, *((a.shape, "f32") for a in inputs.values()), **({"eps": 1e-5} if name == "asm.rms_norm" else {})), chip)
    return ran(made, assemble(made.source if source is None else source, chip), inputs, {})


@needs_clang
@everywhere
@pytest.mark.parametrize("shape", [(1,), (3, 31), (2, 32), (2, 3, 67), (1, 255), (2, 256), (2, 1001), (0, 5), (3, 0)])
def test_machine_code_executed_in_simulation_gives_what_numpy_gives(name: str, chip: str, shape: tuple[int, ...]) -> None:
    inputs = operands(name, *shape)
    first = result(name, chip, inputs)
    if first.size:
        np.testing.assert_allclose(first, ORACLE[name](*inputs.values()), rtol=4e-6, atol=1e-7)
    np.testing.assert_array_equal(result(name, chip, inputs), first)


@needs_clang
@everywhere
def test_one_launch_serves_every_size(name: str, chip: str) -> None:
    made = launch_of(GRAPHS[name](), chip)
    code = assemble(made.source, chip)
    for n in (1, 4):
        inputs = operands(name, n, 3, 67, seed=n)
        np.testing.assert_allclose(ran(made, code, inputs, {"N": n}), ORACLE[name](*inputs.values()), rtol=4e-6, atol=1e-7)


@needs_clang
@pytest.mark.parametrize("row", [[1, np.nan, 2], [np.inf, 0, 1], [-np.inf, -np.inf, -np.inf], [-np.inf, 0, 1], [0, -200, -95], [3e38, -3e38, 3e38], [0, 0, 0], [-1e-40, 1e-40, 0]])
def test_softmax_of_what_is_not_usual(row: list[float]) -> None:
    x = np.array([row, [1, 2, 3]], np.float32)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(result("asm.softmax", "gfx1100", {"x": x}), softmax_in_f64(x), rtol=4e-6, atol=1e-44)


OUTSIDE = "reaches memory that it was not given"
BUGS: dict[str, tuple[str, str, str, str]] = {  # op, what stands there, what somebody wrote, what is said: "" for a wrong result
    "no barrier": ("asm.rms_norm", "\ts_barrier\n", "", "reads shared memory that nobody has written"),
    "all lanes or none": ("asm.softmax", "\ts_and_b32\texec_lo, exec_lo, vcc_lo\n", "\ts_mov_b32\texec_lo, vcc_lo\n\ts_cmp_eq_u32\tvcc_lo, 0\n\ts_cselect_b32\texec_lo, 0, -1\n", OUTSIDE),
    "one lane too many": ("asm.rms_norm", "v_cmp_gt_u32\tvcc, s10, v2", "v_cmp_ge_u32\tvcc, s10, v2", OUTSIDE),
    "half of the lanes": ("asm.softmax", "\tv_permlanex16_b32\tv5, v1, s12, s13\n\t\\op\tv1, v1, v5\n", "", ""),
    "two waves of four": ("asm.rms_norm", "\tADD_LANE row_bcast:31 row_mask:0xc\n", "", ""),
    "a sum of one wave": ("asm.rms_norm", "\tv_add_f32\tv8, v8, v11\n", "", ""),
}


@needs_clang
@pytest.mark.parametrize("what", BUGS)
def test_a_planted_bug_shows(what: str) -> None:
    name, there, instead, says = BUGS[what]
    source = kernel_of(name).source
    assert source.count(there) == 1
    inputs = operands(name, 2, 300)
    source = source.replace(there, instead)
    if says:
        with pytest.raises(RlxError, match=says):
            result(name, CHIPS[name][0], inputs, source)
    else:
        assert not np.allclose(result(name, CHIPS[name][0], inputs, source), ORACLE[name](*inputs.values()), rtol=1e-4)


# ---- what is handed over -------------------------------------------------------------------------------------------
class Packed(ctypes.Structure):
    """The signature below as the C compiler of this machine lays it out."""

    _fields_ = [("x", ctypes.c_uint64), ("n", ctypes.c_int32), ("y", ctypes.c_uint64), ("eps", ctypes.c_float), ("big", ctypes.c_double), ("x_numel", ctypes.c_int64),
                ("x_dim1", ctypes.c_uint32), ("out", ctypes.c_uint64), ("flag", ctypes.c_int32), ("x_rank", ctypes.c_uint64), ("scratch", ctypes.c_uint64), ("y_last", ctypes.c_uint32)]


MANY = "\n.amdhsa_kernel k\n.name: k\n"
SIGNATURE = ("const float *x, int n, const void *y, float eps, f64 big, i64 x_numel, unsigned int x_dim1, float *__restrict__ out, i32 flag, u64 x_rank, char *scratch, u32 y_last")


def many(signature: str = SIGNATURE, **more: Any) -> RocmAsmKernel:
    return RocmAsmKernel("asm.many", MANY, signature=signature, **{"entry_point": "k", "archs": ("gfx90a",), "wave": 64, "scratch_nbytes": 64, **more})


def test_arguments_lie_as_c_has_them() -> None:
    register_gpu_kernel(many())
    made = launch_of(graph("asm.many", ((N, 7), "f32"), ((5,), "i8"), n=-3, eps=0.1, flag=True), "gfx90a")
    assert {a.name: a.offset for a in made.args} == {a.name: getattr(Packed, a.name).offset for a in made.args}
    _, data = made(1 << 40, {"x": 256, "y": 512, "out": 1024, "scratch": 4096}, {"N": 6})
    seen = Packed.from_buffer_copy(data.ljust(ctypes.sizeof(Packed), b"\0"))
    base = 1 << 40
    assert (seen.x, seen.y, seen.out, seen.scratch) == (base + 256, base + 512, base + 1024, base + 4096)
    assert (seen.n, seen.x_numel, seen.x_dim1, seen.flag, seen.x_rank, seen.y_last) == (-3, 42, 7, 1, 2, 5)
    assert seen.eps == ctypes.c_float(0.1).value
    assert seen.big == 0.1


def test_an_optional_input_that_is_left_out_is_address_0() -> None:
    register_gpu_kernel(many("const float *x, const float *y, float *out"))
    _, data = launch_of(graph("asm.many", ((3,), "f32")), "gfx90a")(4096, {"x": 0, "out": 512, "scratch": 0}, {})
    assert data == b"".join(v.to_bytes(8, "little") for v in (4096, 0, 4608))


def test_a_size_may_be_handed_over_as_a_real() -> None:
    register_gpu_kernel(many("float *out, float x_last, double x_dim0, double n, float flag"))
    _, data = launch_of(graph("asm.many", ((N, 2 * N + 1), "f32"), n=7, flag=True), "gfx90a")(0, {"x": 0, "out": 8, "scratch": 0}, {"N": 5})
    assert struct.unpack("<Qf4xddf", data) == (8, 11.0, 5.0, 7.0, 1.0)


def test_a_number_that_its_type_cannot_hold_is_told() -> None:
    register_gpu_kernel(many("float *out, int n"))
    made = launch_of(graph("asm.many", ((3,), "f32"), n=2**31), "gfx90a")
    with pytest.raises(InputError, match=r"n of asm.many is 2147483648\n(?s:.*)its signature has 32 bits for it, as i32\n(?s:.*)wider"):
        made(0, {"x": 0, "out": 0, "scratch": 0}, {})


# ---- registration --------------------------------------------------------------------------------------------------
WRONG: dict[str, tuple[Callable[[], RocmAsmKernel], str]] = {
    "no chip": (lambda: many(archs=()), "is for no chip"),
    "a chip that nobody knows": (lambda: many(archs=("gfx9999",)), "no AMD target 'gfx9999'"),
    "a wave that its chip has not": (lambda: many(wave=32), "has a wave of 32 lanes(?s:.*)gfx90a has 64"),
    "no wave": (lambda: many(archs=("gfx1100",), wave=0), "has a wave of 0 lanes(?s:.*)gfx1100 has 32 or 64"),
    "no descriptor": (lambda: many(entry_point="other"), "has no descriptor of 'other'"),
    "no metadata": (lambda: replace(many(), source="\n.amdhsa_kernel k\n"), "has no metadata of 'k'"),
    "no signature": (lambda: many(""), "has no signature"),
    "no type": (lambda: many("x"), "has a parameter 'x'"),
    "a type that nobody packs": (lambda: many("float *out, long n"), "has a parameter 'long n'"),
    "two stars": (lambda: many("float **x"), r"has a parameter 'float \*\*x'"),
    "an operand as a number": (lambda: many("unsigned x"), "it takes x as a number, which is memory"),
    "a number as an address": (lambda: many("float *x_numel"), "it takes x_numel as an address, which is a number"),
    "a parameter of the op as an address": (lambda: many("float *eps"), "it takes eps as an address, which is a number"),
    "a real as a whole number": (lambda: many("float *out, int eps"), "it takes eps as i32, which is float"),
    "text": (lambda: many("float *out, int word"), "it takes word as i32, which is str"),
    "an unknown name": (lambda: many("float *z, float *out"), "it asks for z; names are x, y, out, n, eps, big, flag, word, and of an operand NAME_numel, NAME_rank, NAME_last"),
    "a shape, which is no number": (lambda: many("float *out, u64 x_shape"), "it asks for x_shape"),
    "scratch of no size": (lambda: many("char *scratch", scratch_nbytes=None), "asks for scratch and sets no scratch_nbytes"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_could_never_run_is_refused_at_registration_and_changes_nothing(what: str) -> None:
    make, says = WRONG[what]
    before = extension("asm.many")
    with pytest.raises(RlxError, match=says) as caught:
        register_gpu_kernel(make())
    assert isinstance(caught.value, (HookMismatch, InputError))
    assert extension("asm.many") == before


def test_an_axis_that_is_not_there_is_a_refusal() -> None:
    register_gpu_kernel(many("float *out, unsigned x_dim2"))
    refused = answer(graph("asm.many", ((3, 4), "f32")), "gfx90a")
    assert isinstance(refused, Refusal)
    assert "asks for x_dim2: numbers are x_numel, x_rank, x_dim0, x_dim1, x_last" in refused.reasons[0]


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_the_example_runs_where_there_is_no_card(device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RLX_DEVICE", device)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    with registry():
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert capsys.readouterr().out == f"on {device}, by hand: nothing\n"
    assert len(EXAMPLE.read_text("utf-8").splitlines()) < 60


@needs_simulation
@needs_clang
@pytest.mark.parametrize(("chip", "by_hand"), [("gfx1151", "asm.softmax"), ("gfx90a", "asm.rms_norm"), ("gfx1030", "nothing")])
def test_the_example_runs_on_a_simulated_card_and_ends_well(chip: str, by_hand: str) -> None:
    """Through the real hip-python, in a process of its own: what is left in the runtime at its end must harm nobody."""
    environment = {**os.environ, "RLX_DEVICE": "rocm", "RLX_ROCM_SIM": f"isa:{chip}", "PYTHONPATH": str(EXAMPLE.parents[1])}
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, f"on rocm, by hand: {by_hand}\n"), done.stderr
