"""Bundles, contracts of launches, CUDA objects, and `rlx inspect` of them all."""
from __future__ import annotations

import hashlib
import json
import random
import re
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_objects import STORED, bundled, compiled, needs_llvm, tool
from gpu_shims import assembly
from typer.testing import CliRunner, Result

from rlxpy.backends.gpu.arch import Target, target
from rlxpy.backends.gpu.bundle import read_bundle
from rlxpy.backends.gpu.codeobject import Arg, Kernel, read
from rlxpy.backends.gpu.contract import (
    MOST_KERNARG_NBYTES,
    RULES,
    SERVICES,
    KernelContract,
    allotted,
    breaches,
    contract_of,
    hold,
    hold_cuda,
)
from rlxpy.backends.gpu.cudaobject import read_cuda
from rlxpy.backends.gpu.launch import KernArg, laid_out, launch
from rlxpy.backends.gpu.raw import RocmGpuKernel
from rlxpy.cli import inspect as inspect  # the command registers itself
from rlxpy.cli.app import app
from rlxpy.errors import BackendMissing, CodeObjectError
from rlxpy.ir.attrs import Attrs
from rlxpy.ir.dims import sym
from rlxpy.ir.dtypes import DType
from rlxpy.ir.types import TensorType

HOST, HIP = "host-x86_64-unknown-linux-gnu-", "hipv4-amdgcn-amd-amdhsa--"
CUBIN = (Path(__file__).parent / "golden" / "tiled_sm_90a.cubin").read_bytes()  # by NVRTC 13.5: tiled(float *, short, double), 600 shared floats, 128 threads
VADD = read(STORED).kernel("vadd_asm")


def labelled(arch: str) -> bytes:
    """The stored object, said to be for another chip."""
    numbers = {"gfx1151": 0x4a, "gfx1100": 0x41, "gfx11-generic": 0x1000054, "gfx90a": 0x53f, "gfx90a:xnack+": 0x73f, "gfx942": 0x54c}
    return STORED[:48] + struct.pack("<I", numbers[arch]) + STORED[52:]


def many(*chips: str) -> bytes:
    return bundled({HOST: b"", **{HIP + c: labelled(c) for c in chips}})


# ---- bundles -------------------------------------------------------------------------------------------------------
def test_a_bundle_holds_what_was_put_into_it() -> None:
    found = read_bundle(many("gfx90a", "gfx1151"), "k.hipfb")
    assert [(e.id, e.nbytes) for e in found.entries] == [(HOST, 0), (f"{HIP}gfx90a", len(STORED)), (f"{HIP}gfx1151", len(STORED))]
    assert found.entries[0].code is None
    assert [str(c.target) for c in found.codes] == ["gfx90a", "gfx1151"]
    assert found.codes[1].sha256 == hashlib.sha256(STORED).hexdigest()
    assert [str(c.target) for c in read_bundle(STORED).codes] == ["gfx1151"]


@needs_llvm
def test_llvm_takes_the_same_parts_out(tmp_path: Path) -> None:
    parts = {HOST: b"h" * 9, f"{HIP}gfx90a": compiled("gfx90a"), f"{HIP}gfx1100": compiled("gfx1100")}
    (tmp_path / "k.hipfb").write_bytes(data := bundled(parts))
    (tmp_path / "h.c").write_text("int x;")
    tool("clang-22", "-c", tmp_path / "h.c", "-o", tmp_path / "h.o")
    tool("llvm-objcopy-22", f"--add-section=.hip_fatbin={tmp_path}/k.hipfb", tmp_path / "h.o", tmp_path / "fat.o")
    subprocess.run(["llvm-objdump-22", "--offloading", "fat.o"], cwd=tmp_path, check=True, capture_output=True)
    for e in read_bundle(data).entries:
        if e.code:
            assert (tmp_path / f"fat.o.0.{e.id}").read_bytes() == e.code.elf.b.data == parts[e.id]


@pytest.mark.parametrize(("card", "gets"), [("gfx1151", "gfx1151"), ("gfx1103", "gfx11-generic"), ("gfx90a:sramecc+:xnack-", "gfx90a"), ("gfx90a:sramecc+:xnack+", "gfx90a:xnack+")])
def test_a_card_gets_the_best_of_a_bundle(card: str, gets: str) -> None:
    found = read_bundle(many("gfx11-generic", "gfx90a", "gfx1151", "gfx90a:xnack+"))
    assert str(found.code_for(target(card)).target) == gets


def test_a_card_that_gets_nothing_is_told_both_sides() -> None:
    with pytest.raises(BackendMissing, match=re.escape("it carries [gfx90a, gfx942], this card runs [gfx1201, gfx12-generic]")):
        read_bundle(many("gfx90a", "gfx942")).code_for(target("gfx1201"))
    with pytest.raises(BackendMissing, match=re.escape("of gfx90a:xnack+, it is for xnack+, the card has xnack-")):
        read_bundle(many("gfx90a:xnack+")).code_for(target("gfx90a:sramecc+:xnack-"))


def test_damaged_bundles_are_refused_with_the_place() -> None:
    data = many("gfx90a", "gfx1151")
    rng = random.Random(7)
    seen = set()
    cut = [data[:n] for n in (*range(24, 200), *range(200, len(data), 97))]
    for piece in (*cut, *(_struck(data, rng) for _ in range(400))):
        try:
            seen.add(str(len(read_bundle(piece, "k.hipfb").entries)))
        except CodeObjectError as error:
            seen.add(re.sub(r"\W.*", "", error.where))
    assert seen >= {"byte", "3"}


def _struck(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    changed[rng.randrange(24, 250)] = rng.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize(("data", "says"), [
    (b"CCOB\3\0\1\0" + bytes(40), "is a compressed bundle(?s:.*)--no-offload-compress"),
    (b"__CLANG_OFFLOAD_BUNDLE__" + b"\xff" * 8, "at most 256 are read"),
    (bundled({f"{HIP}gfx942": labelled("gfx90a")}), "names? says gfx942, its ELF header gfx90a"),
    (bundled({f"{HIP}gfx9999": labelled("gfx90a")}), "names no chip(?s:.*)no AMD target 'gfx9999'"),
    (bundled({f"{HIP}gfx90a": b"text"}), f"part {HIP}gfx90a: "),
    (bundled({f"{HIP}gfx90a": CUBIN}), "its machine is 190")])
def test_bundles_that_are_not_read_have_their_reason(data: bytes, says: str) -> None:
    with pytest.raises(CodeObjectError, match=says):
        read_bundle(data)


def test_old_names_of_parts_are_read() -> None:
    assert str(read_bundle(bundled({"hip-amdgcn-amd-amdhsa-gfx90a": labelled("gfx90a")})).codes[0].target) == "gfx90a"


# ---- contracts -----------------------------------------------------------------------------------------------------
FITS = KernelContract(((0, 8), (8, 8), (16, 8), (24, 4)), threads=256, wave=32)
RDNA = target("gfx1151")


def against(k: Kernel, c: KernelContract, chip: Target = RDNA) -> list[str]:
    return list(breaches(k, chip, c))


def test_what_keeps_to_the_contract_is_taken() -> None:
    assert against(VADD, FITS) == []
    assert hold(read(STORED), "vadd_asm", FITS) == VADD


def hidden(kind: str) -> Kernel:
    return replace(VADD, args=(*VADD.args, Arg("", "", 32, 8, kind)), kernarg_nbytes=40, descriptor=replace(VADD.descriptor, kernarg_nbytes=40))


BREACHES: dict[str, tuple[Kernel, KernelContract, str]] = {
    "printf": (hidden("hidden_hostcall_buffer"), FITS, "it needs the host while it runs, for printf or assert (hidden_hostcall_buffer at 32)"),
    "a stack without a size": (replace(VADD, dynamic_stack=True), FITS, "its stack has no fixed size"),
    "arguments without an end": (replace(VADD, kernarg_nbytes=769, descriptor=replace(VADD.descriptor, kernarg_nbytes=769)), FITS, "its arguments take 769 bytes, at most 768"),
    "LDS": (VADD, replace(FITS, shared_nbytes=65_792), "a block needs 0 + 65792 bytes of LDS, it has 65536"),
    "LDS of a smaller card": (VADD, replace(FITS, shared_nbytes=40_000, lds_nbytes=32_768), "a block needs 0 + 40000 bytes of LDS, it has 32768"),
    "spills": (replace(VADD, vgpr_spills=3, sgpr_spills=2), FITS, "it spills 5 registers and takes 0 bytes of scratch, its row says none"),
    "scratch": (replace(VADD, scratch_nbytes=16, descriptor=replace(VADD.descriptor, scratch_nbytes=16)), FITS, "takes 16 bytes of scratch, its row says none"),
    "other LDS than its row says": (VADD, replace(FITS, own_lds_nbytes=16), "it has 0 bytes of LDS by itself, its row says 16"),
    "arguments that change places": (VADD, replace(FITS, names=("a", "c", "b", "n")), "its argument 1 is called b, handed over there is c"),
    "another wave": (VADD, replace(FITS, wave=64), "its wave has 32 lanes, 64 are relied on"),
    "too many threads": (VADD, replace(FITS, threads=257), "launched with 257 threads in a block, it was compiled for up to 256"),
    "one argument less": (VADD, replace(FITS, args=((0, 8), (8, 8), (16, 8))), "it takes 4 arguments, 3 are handed over"),
    "an argument elsewhere": (VADD, replace(FITS, args=((0, 8), (8, 8), (16, 8), (32, 4))), "its argument 3 (n) lies at 24 with 4 bytes, handed over is 4 bytes at 32"),
    "a wider argument": (VADD, replace(FITS, args=((0, 8), (8, 8), (16, 8), (24, 8))), "its argument 3 (n) lies at 24 with 4 bytes, handed over is 8 bytes at 24"),
    "arguments over one another": (replace(VADD, args=(*VADD.args[:3], replace(VADD.args[3], offset=20))), replace(FITS, args=None), "argument n lies at 20 with 4 bytes: before it are 24, in all 28"),
    "arguments past the end": (replace(VADD, args=(*VADD.args[:3], replace(VADD.args[3], nbytes=8))), replace(FITS, args=None), "argument n lies at 24 with 8 bytes: before it are 24, in all 28"),
    "LDS that only the metadata has": (replace(VADD, lds_nbytes=64), FITS, "its metadata and its descriptor differ: LDS 64 and 0"),
    "a wave that only the metadata has": (replace(VADD, wave=64), replace(FITS, wave=None), "its metadata and its descriptor differ: wave 64 and 32"),
    "registers that nobody allots": (replace(VADD, vgprs=9), FITS, "its metadata and its descriptor differ: vector registers 9 and 8"),
}


@pytest.mark.parametrize("what", BREACHES)
def test_each_breach_is_told_and_nothing_else(what: str) -> None:
    kernel, contract, says = BREACHES[what]
    (why,) = against(kernel, contract)
    assert says in why


def test_every_rule_has_a_breach() -> None:
    broken = {rule for kernel, contract, _ in BREACHES.values() for rule in RULES if rule(kernel, RDNA, contract)}
    assert broken == set(RULES)
    assert {kind for kind in SERVICES if against(hidden(kind), FITS)} == set(SERVICES)


def test_all_breaches_are_told_together() -> None:
    with pytest.raises(CodeObjectError, match=r"(?s)kernel vadd_asm of code object cannot be launched .*gfx1151.*64 are relied on; .*300 threads.*; it takes 4 arguments, 0 are"):
        hold(read(STORED), "vadd_asm", KernelContract((), threads=300, wave=64))


LDS = '#define X __builtin_amdgcn_workitem_id_x()\nextern "C" __attribute__((global)) void k(float *out) { __attribute__((shared)) static float t[%d]; t[X] = out[X]; out[X] = t[X ^ 1] + t[%d]; }'


@needs_llvm
@pytest.mark.parametrize(("floats", "dynamic", "arch", "fits"), [
    (16_384, 0, "gfx1100", True), (16_384, 256, "gfx1100", False), (8_192, 32_768, "gfx90a", True), (8_192, 33_024, "gfx90a", False), (40_960, 0, "gfx950", True), (16_448, 0, "gfx950", True)])
def test_lds_of_code_and_launch_are_counted_together(floats: int, dynamic: int, arch: str, fits: bool) -> None:
    """65,536 bytes in all fit, 65,792 do not, before anything is launched; gfx950 has more."""
    code = read(compiled(arch, LDS % (floats, floats - 1)))
    contract = KernelContract(((0, 8),), threads=64, shared_nbytes=dynamic)
    assert code.kernel("k").lds_nbytes == 4 * floats
    if fits:
        assert hold(code, "k", contract)
    else:
        with pytest.raises(CodeObjectError, match=rf"a block needs {4 * floats} \+ {dynamic} bytes of LDS, it has 65536"):
            hold(code, "k", contract)


UNFIT = {  # real code that no launch may have
    "its arguments take 888 bytes": "struct M { float v[220]; }; GLOBAL void k(M m, float *out) { out[0] = m.v[(int)out[1]]; }",
    "its stack has no fixed size": "typedef void (*F)(float *); GLOBAL void k(F f, float *out) { f(out); }",
    "it needs the host while it runs, for printf or assert": "GLOBAL void k(int *out) { out[0] = ((const int *)__builtin_amdgcn_implicitarg_ptr())[20]; }",
}


@needs_llvm
@pytest.mark.parametrize("says", UNFIT)
@pytest.mark.parametrize("arch", ["gfx90a", "gfx1151"])
def test_limits_are_seen_in_what_clang_makes(says: str, arch: str) -> None:
    code = read(compiled(arch, f'#define GLOBAL extern "C" __attribute__((global))\n{UNFIT[says]}'))
    why = "; ".join(against(code.kernel("k"), KernelContract(scratch=True), code.target))
    assert says in why
    with pytest.raises(CodeObjectError, match=says):
        hold(code, "k", KernelContract(scratch=True))


@needs_llvm
@pytest.mark.parametrize("arch", ["gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1151", "gfx1201"])
def test_usual_kernels_of_every_chip_are_taken(arch: str) -> None:
    code = read(compiled(arch))
    for k in code.kernels:
        most = KernelContract(threads=k.max_threads, wave=code.target.wave, scratch=k.name == "scratch")
        assert against(k, most, code.target) == [f"its arguments take {k.kernarg_nbytes} bytes, at most {MOST_KERNARG_NBYTES} are handed over"] * (k.name == "many")
        assert k.vgprs <= allotted(k, code.target)
    assert against(code.kernel("scratch"), KernelContract(), code.target)


SEED = """extern "C" __global__ void rlx_custom(float* arena, unsigned out_off, unsigned out_len, unsigned n_inputs,
    unsigned in0_off, unsigned in0_len, unsigned in1_off, unsigned in1_len, unsigned in2_off, unsigned in2_len, unsigned in3_off, unsigned in3_len) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x; if (i < out_len) arena[out_off + i] = arena[in0_off + i] * 2; }"""
TWICE = "__device__ void rlx_custom(const float *x, float *out, i64 out_numel) { i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; if (i < out_numel) out[i] = x[i] * 2; }"


@needs_llvm
@pytest.mark.parametrize("source", [SEED, TWICE], ids=["abi 1", "abi 2"])
def test_a_launch_of_a_raw_kernel_is_held_against_its_code(source: str, tmp_path: Path) -> None:
    kernel = RocmGpuKernel("acme.twice", source, block_size=128)
    made = launch(kernel, ("x",), [TensorType((sym("N", 1, 99), 3), DType.F32)], [TensorType((sym("N", 1, 99), 3), DType.F32)], Attrs())
    (tmp_path / "k.s").write_text(assembly(made.source, "hip", "gfx1100", tmp_path))
    tool("clang-22", "-x", "assembler", "-target", "amdgcn-amd-amdhsa", "-mcpu=gfx1100", tmp_path / "k.s", "-o", tmp_path / "k.hsaco")
    code = read((tmp_path / "k.hsaco").read_bytes())
    contract = contract_of(made, {"N": 99})
    assert hold(code, made.symbol, contract).explicit[0].nbytes == 8
    with pytest.raises(CodeObjectError, match=f"it takes {len(made.args)} arguments, {len(made.args) - 1} are handed over"):
        hold(code, made.symbol, contract_of(replace(made, args=made.args[:-1]), {"N": 99}))


@needs_llvm
def test_arguments_are_laid_out_as_the_compiler_lays_them_out() -> None:
    """`laid_out` is what a launch packs by: mixed sizes, any order."""
    types = {"float*": "p", "unsigned": "n", "u64": "w", "i64": "s"}
    rng = random.Random(8)
    for round in range(4):
        picked = [rng.choice([*types]) for _ in range(3 + round)]
        args = laid_out(iter([KernArg(f"{types[c]}{k}", c, "size") for k, c in enumerate(picked)]))
        signature, total = ", ".join(f"{a.c} {a.name}" for a in args), " + ".join(f"(u64){a.name}" for a in args)
        source = f'typedef unsigned long long u64; typedef long long i64; extern "C" __attribute__((global)) void k({signature}, u64 *out) {{ *out = {total}; }}'
        has = read(compiled("gfx1100", source)).kernel("k").explicit
        assert [(a.offset, a.nbytes) for a in has[:-1]] == [(a.offset, a.nbytes) for a in args]


# ---- CUDA ----------------------------------------------------------------------------------------------------------
def test_a_cubin_says_what_its_compiler_said() -> None:
    found = read_cuda(CUBIN)
    assert (found.kind, found.arch) == ("cubin", "sm_90a")
    (k,) = found.kernels
    assert (k.name, k.args, k.max_threads, k.registers, k.shared_nbytes, k.local_nbytes) == ("tiled", ((0, 8), (8, 2), (16, 8)), 128, 11, 2400, 0)


TILED = KernelContract(((0, 8), (8, 2), (16, 8)), threads=128, lds_nbytes=48 << 10)


@pytest.mark.parametrize(("contract", "says"), [
    (replace(TILED, args=TILED.args[:2] if TILED.args else None), "it takes 3 arguments, 2 are handed over"),
    (replace(TILED, args=((0, 8), (8, 4), (16, 8))), "its argument 1 lies at 8 with 2 bytes, handed over is 4 bytes at 8"),
    (replace(TILED, threads=129), "launched with 129 threads in a block, it was compiled for up to 128"),
    (replace(TILED, shared_nbytes=(48 << 10) - 2399), "a block needs 49153 bytes of shared memory, it has 49152")])
def test_launches_of_cuda_code_are_held_against_it_too(contract: KernelContract, says: str) -> None:
    code = read_cuda(CUBIN)
    assert hold_cuda(code, "tiled", TILED) == hold_cuda(code, "tiled", replace(TILED, shared_nbytes=(48 << 10) - 2400)) == code.kernels[0]
    with pytest.raises(CodeObjectError, match=re.escape(says)):
        hold_cuda(code, "tiled", contract)
    with pytest.raises(CodeObjectError, match=r"no kernel 'tile'(?s:.*)there are tiled"):
        hold_cuda(code, "tile", TILED)


PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry tiled(
    .param .u64 .ptr .global .align 4 tiled_param_0,
    .param .u16 tiled_param_1,
    .param .align 16 .b8 tiled_param_2[40],
    .param .f64 tiled_param_3
)
.maxntid 64, 2, 1
{ ret; }
.visible .entry bare() { ret; }
"""


def test_ptx_says_arguments_and_no_registers() -> None:
    found = read_cuda(PTX.encode())
    assert (found.kind, found.arch) == ("PTX", "sm_80")
    tiled, bare = found.kernels
    assert (tiled.args, tiled.max_threads, tiled.registers, tiled.shared_nbytes) == (((0, 8), (8, 2), (16, 40), (56, 8)), 128, None, None)
    assert (bare.name, bare.args, bare.max_threads) == ("bare", (), None)


def test_damaged_cuda_code_is_refused_or_read() -> None:
    rng = random.Random(9)
    seen = set()
    for data in (CUBIN, PTX.encode()):
        pieces = [data[:n] for n in range(0, len(data), 3)]
        for _ in range(600):
            changed = bytearray(data)
            for _ in range(rng.choice((1, 3))):
                changed[rng.randrange(len(data))] = rng.choice((0, 255, rng.randrange(256)))
            pieces.append(bytes(changed))
        for piece in pieces:
            try:
                seen.add(read_cuda(piece, "k").kind)
            except CodeObjectError as error:
                seen.add(re.sub(r"\W.*", "", error.what[3:]))
    assert {"cubin", "PTX"} <= seen
    assert len(seen) > 5


def test_amd_code_is_no_cuda_code() -> None:
    with pytest.raises(CodeObjectError, match="its machine is 224, NVIDIA's is 190"):
        read_cuda(STORED)


# ---- rlx inspect ---------------------------------------------------------------------------------------------------
def rlx(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(w) for w in words])


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    unfit = STORED.replace(b".kernarg_segment_size\x1c", b".kernarg_segment_size\x18")
    contents = {"k.hsaco": STORED, "k.hipfb": many("gfx11-generic", "gfx1151"), "k.cubin": CUBIN, "k.ptx": PTX.encode(), "no-suffix": STORED, "unfit.co": unfit, "cut.hsaco": STORED[:900]}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    return {name: tmp_path / name for name in contents}


def told(*words: str | Path) -> Any:
    done = rlx("inspect", *words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["k.hsaco", "no-suffix"])
def test_inspect_shows_a_code_object(name: str, files: dict[str, Path]) -> None:
    data = told(files[name])
    (part,) = data["parts"]
    (k,) = part["kernels"]
    assert (part["target"], part["version"], data["nbytes"], data["sha256"]) == ("gfx1151", 5, len(STORED), hashlib.sha256(STORED).hexdigest())
    assert (k["name"], k["wave"], k["vgprs"], k["agprs"], k["sgprs"], k["lds_nbytes"], k["scratch_nbytes"], k["kernarg_nbytes"], k["max_threads"], k["breaches"]) == \
        ("vadd_asm", 32, 4, 0, 10, 0, 0, 28, 256, [])
    assert k["args"][3] == {"name": "n", "type": "", "offset": 24, "nbytes": 4, "kind": "by_value", "hidden": False}
    text = rlx("inspect", files[name]).stdout
    assert "code object V5 for gfx1151" in text
    assert re.search(r"vadd_asm +32 +256 +4 +0 +10 +0 B +0 B +0 +28 B", text)
    assert re.search(r"vadd_asm +n +24 +4 +by_value", text)


def test_inspect_says_what_would_not_be_launched(files: dict[str, Path]) -> None:
    says = "argument n lies at 24 with 4 bytes: before it are 24, in all 24"
    assert says in told(files["unfit.co"])["parts"][0]["kernels"][0]["breaches"]
    assert f"vadd_asm will not be launched: {says}" in rlx("inspect", files["unfit.co"]).stdout


def test_inspect_of_a_bundle_shows_each_part_or_what_a_card_runs(files: dict[str, Path]) -> None:
    assert [p.get("target") for p in told(files["k.hipfb"])["parts"]] == [None, "gfx11-generic", "gfx1151"]
    assert [p["target"] for p in told(files["k.hipfb"], "--card", "gfx1151")["parts"]] == ["gfx1151"]
    assert [p["target"] for p in told(files["k.hipfb"], "--card", "gfx1100")["parts"]] == ["gfx11-generic"]
    assert f"part {HOST}, 0 B: not for AMD's GPUs" in rlx("inspect", files["k.hipfb"]).stdout
    assert "this card runs [gfx90a]" in rlx("inspect", files["k.hipfb"], "--card", "gfx90a").output


@needs_llvm
def test_inspect_shows_instructions(files: dict[str, Path]) -> None:
    (kernel,) = told(files["k.hsaco"], "--asm")["parts"][0]["kernels"]
    lines = kernel["instructions"]
    assert lines[0]["pc"] == kernel["descriptor"]["entry"]
    assert [line["text"].split()[0] for line in lines] == [  # as its source has them
        "s_load_b128", "s_load_b64", "s_load_b32", "s_lshl_b32", "v_add_nc_u32_e32", "s_waitcnt", "v_cmpx_gt_u32_e64", "s_cbranch_execz", "v_lshlrev_b32_e32",
        "global_load_b32", "global_load_b32", "s_waitcnt", "v_add_f32_e32", "global_store_b32", "s_endpgm"]
    assert f"vadd_asm:\n  {lines[0]['pc']:#07x}  s_load_b128 s[4:7], s[0:1]" in rlx("inspect", files["k.hsaco"], "--asm").stdout
    assert "instructions" not in told(files["k.hsaco"])["parts"][0]["kernels"][0]


def test_inspect_shows_cuda_code(files: dict[str, Path]) -> None:
    data = told(files["k.cubin"])
    assert (data["arch"], data["kernels"][0]["registers"]) == ("sm_90a", 11)
    assert re.search(r"tiled +128 +11 +2400 B +0 B +8 at 0, 2 at 8, 8 at 16", rlx("inspect", files["k.cubin"]).stdout)
    done = rlx("inspect", files["k.ptx"])
    assert re.search(r"tiled +128 +\? +\? +\? +8 at 0", done.stdout)
    assert "are not read" in done.stderr


@pytest.mark.parametrize(("words", "says"), [
    (("cut.hsaco",), "a segment of notes lies outside of the file"), (("k.hsaco", "--card", "gfx9999"), "no AMD target 'gfx9999'"), (("k.cubin", "--card", "gfx90a"), "for CUDA code"),
    (("missing.hsaco", "--card", "gfx90a"), "--card gfx90a for "), (("missing.hsaco", "--asm"), "--asm for "), (("k.cubin", "--asm"), "--asm for CUDA code")])
def test_inspect_tells_what_went_wrong(words: tuple[str, ...], says: str, files: dict[str, Path]) -> None:
    done = rlx("inspect", files["k.hsaco"].parent / words[0], *words[1:], "--json")
    assert done.exit_code == 1
    assert says in json.loads(done.stdout)["what"]
    assert "error: " in done.stderr
