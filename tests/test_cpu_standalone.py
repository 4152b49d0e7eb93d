"""Generated C as programs: under AddressSanitizer and UndefinedBehaviorSanitizer, and for aarch64 under an emulator."""
from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import ISAS as HERE, OPS, Sample, assert_close, samples
from standalone import SECONDS, standalone

from rlxpy import Builder, CompileOptions, DType, Graph, Op, compile, settings
from rlxpy.backends.cpu.backend import Cpu
from rlxpy.backends.cpu.compilers import Compiler, find_compiler, probe, run
from rlxpy.backends.cpu.isa import ISAS, named
from rlxpy.compiler.session import lower
from rlxpy.ir.dtypes import Array
from rlxpy.ir.encoding import encoding
from rlxpy.ir.op import ELEMENTWISE
from rlxpy.ir.quantize import quantize

TYPES = (DType.F32, DType.F16, DType.I32, DType.BOOL)
SOME = (Op.EXP, Op.ERF, Op.SIN, Op.CAST, Op.WHERE, Op.MOD, Op.SHIFT_LEFT)
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O0")


def in_c(s: Sample) -> bool:
    """Whether a sample needs no NumPy."""
    spec = replace(Cpu().spec, facts={**Cpu().spec.facts, "numerics": "highest"})
    return all(step.choice.tier == "kernel" for step in lower(s.graph(), spec, CompileOptions())[0].steps)


def together(dtype: DType) -> tuple[Graph, list[Sample]]:
    """Every op that calculates in a type, but only some elementwise ones, as one graph; all cases in f32."""
    ops = [op for op in OPS if op not in (Op.IOTA, Op.SIZE) and (op not in ELEMENTWISE or op in SOME)]
    every = [s for op in ops for s in islice(samples(op, frozenset({dtype})), None if dtype is DType.F32 else 3) if in_c(s)]
    b, outputs = Builder(dtype.text), list[Any]()
    for k, s in enumerate(every):
        outputs += s.call(b, s.inputs(b, f"s{k}x"))
    return b.finish(*outputs), every


def views() -> tuple[Graph, list[Array]]:
    """Operands that are views, at sizes with tails on every vector width."""
    b, rng = Builder("views"), np.random.default_rng(1)
    x, y, i = b.input("x", (37, 70)), b.input("y", (3, 35, 19)), b.input("i", (5,), "i64")
    outputs = [x.T.softmax(axis=-1), x.T.reshape(shape=(37 * 70,)), x[1:, ::3].sum(axes=(0,)), x.reverse(axes=(1,)).cumsum(axis=1), *x.T.sort(axis=0), *x.top_k(k=3, axis=0),
               y.transpose(perm=(2, 0, 1)) @ x[:35, :13], y.max(axes=(1,)), y.argmax(axis=1), x.T.gather(i, axis=1), x.scatter_add(i, x[:5], axis=0),
               x.apply("concat", (x.T, x.T), {"axis": 1}), y.pad(low=(1, 0, 2), high=(0, 3, 1), value=1.0), (x * 2.0).exp().mean(axes=(1,)), x.layer_norm(eps=1e-5)]
    return b.finish(*outputs), [rng.normal(size=(37, 70)).astype(np.float32), rng.normal(size=(3, 35, 19)).astype(np.float32), np.array([0, 3, -1, 3, 36])]


def attentions() -> tuple[Graph, list[Array]]:
    """Tiles and parts of keys, read where they lie and decoded, at sizes that end within a vector, a tile and a block of rows."""
    b, rng, arrays, outputs = Builder("attentions"), np.random.default_rng(2), list[Array](), list[Any]()

    def given(array: Array) -> Any:
        arrays.append(array)
        return b.input(f"x{len(arrays)}", array.shape, str(DType.U8 if array.dtype == np.uint8 else DType.F16 if array.dtype == np.float16 else DType.F32))

    for t, s in ((21, 101), (1, 401)):
        for d, stored in ((32, "f32"), (36, "f32"), (32, "f16"), (32, "q8_0")):
            q, k, v = (rng.normal(size=n).astype(np.float32) for n in ((1, 4, t, d), (1, 2, s, d), (1, 2, s, d)))
            x, kept = given(q), [given(quantize(a, stored)[0] if stored == "q8_0" else a.astype(stored.replace("f", "float"))) for a in (k, v)]
            wide = [y.dequantize(encoding=stored, shape=(1, 2, s, d)) if stored == "q8_0" else y.cast(to="f32") if stored == "f16" else y for y in kept]
            outputs.append(x.apply("attention", (x, *wide), {"scale": 0.2, "mask": "causal"}))
    return b.finish(*outputs), arrays


@dataclass(frozen=True)
class Case:
    graph: Graph
    arrays: list[Array]
    want: list[Array]     # what the reference gives
    dtypes: list[DType]   # in which type that is close enough


def cases() -> Iterator[tuple[str, Case]]:
    for dtype in TYPES:
        graph, every = together(dtype)
        given = [s.arrays() for s in every]
        want = [w for s, arrays in zip(every, given, strict=True) for w in s.reference(arrays)]
        yield dtype.text, Case(graph, [a for arrays in given for a in arrays], want, [s.dtype for s in every for _ in s.graph().outputs])
    for name, (graph, arrays) in (("views", views()), ("attentions", attentions())):
        yield name, Case(graph, arrays, list(compile(graph, device="reference").run(*arrays)), [t.dtype for t in graph.output_types])


CASES = dict(cases())
GIVEN = {name: [a.tobytes() for a in case.arrays] for name, case in CASES.items()}


def sanitizing() -> Compiler | str:
    """A compiler whose programs run under the sanitizers, or why there is none."""
    found = find_compiler()
    if isinstance(found, str):
        return found
    with tempfile.TemporaryDirectory() as name:
        unit = Path(name) / "unit.c"
        unit.write_text("int main(void) { return 0; }")
        for command in ((*found.argv, *SANITIZE, "-o", f"{name}/unit", str(unit)), (f"{name}/unit",)):
            status, _, said = run(command, 60.0)
            if status != 0:
                return f"{found.text} has no sanitizers here: {said.strip()[-200:]}"
    return found


def emulated() -> tuple[Compiler, str] | str:
    """A cross compiler to aarch64 and an emulator, or what is missing."""
    gcc, qemu = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if not (gcc and qemu):
        return "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
    found = probe((gcc,))
    return (found, qemu) if isinstance(found, Compiler) else found


def check(name: str, cpu: Cpu, compiler: Compiler, folder: Path, options: tuple[str, ...], runner: tuple[str, ...] = ()) -> None:
    case = CASES[name]
    changed = [k for k, (a, was) in enumerate(zip(case.arrays, GIVEN[name], strict=True)) if a.tobytes() != was]
    assert not changed, f"inputs {changed} of {name} are not what they were: something in this process wrote past its memory"
    made = standalone(case.graph, cpu)
    program = made.compile(compiler, folder, *options)
    for k, (got, want, dtype) in enumerate(zip(made.run([*runner, str(program)], case.arrays, folder), case.want, case.dtypes, strict=True)):
        assert_close(got, want, dtype, f"{name} output {k}")


@pytest.mark.parametrize(("isa", "case"), [(isa, case) for isa in HERE[1:] for case in ("views", {"sse4": "f32", "sse2": "f16"}.get(isa, "i32"))])
@pytest.mark.skipif(isinstance(find_compiler(), str), reason=f"the cpu backend did not run: {find_compiler()}")
def test_every_lower_instruction_set_that_this_cpu_has(isa: str, case: str) -> None:
    chosen = CASES[case]
    with settings.override(isa=isa):
        f = compile(chosen.graph, device="cpu", options=CompileOptions(debug=True))
        for _ in range(2):
            for k, (got, want, dtype) in enumerate(zip(f.run(*chosen.arrays), chosen.want, chosen.dtypes, strict=True)):
                assert_close(got, want, dtype, f"{isa} {case} output {k}")


@pytest.mark.parametrize("case", CASES)
def test_no_sanitizer_complains(case: str, tmp_path: Path) -> None:
    compiler = sanitizing()
    if isinstance(compiler, str):
        pytest.skip(f"not run: {compiler}")
    check(case, Cpu(), compiler, tmp_path, SANITIZE)


@pytest.mark.parametrize(("numerics", "rows", "kernels"), [("low", 37, {"qmatmul.amx_int8", "matmul.amx_bf16"}), ("highest", 133, {"qmatmul.amx_x6", "matmul.amx_x6"})])
def test_no_sanitizer_complains_of_products_on_emulated_tiles(numerics: str, rows: int, kernels: set[str], tmp_path: Path) -> None:
    """Sizes with rests in every direction, more than one step of depth."""
    compiler = sanitizing()
    if isinstance(compiler, str):
        pytest.skip(f"not run: {compiler}")
    rng = np.random.default_rng(3)
    x, y, z = (rng.normal(size=n).astype(np.float32) for n in ((rows, 320), (2, 35, 170), (2, 170, 33)))
    packed = [quantize(rng.normal(size=(21, 320)).astype(np.float32), e)[0] for e in ("q8_0", "q4_1")]
    b = Builder("tiles")
    left = b.input("x", x.shape)
    outputs = [left.qmatmul(b.input(e, w.shape, "u8"), encoding=e, shape=(21, 320)) for e, w in zip(("q8_0", "q4_1"), packed, strict=True)]
    graph = b.finish(*outputs, b.input("y", y.shape) @ b.input("z", z.shape))
    made = standalone(graph, Cpu(named(f"{HERE[0]}+amx_emulated")), CompileOptions(debug=True, numerics=numerics, weights="packed"))
    assert {s.choice.name for s in made.plan.steps} == {f"cpu/{k}" for k in kernels}
    program = made.compile(compiler, tmp_path, *SANITIZE)
    dense = [encoding(e).decode((w,), 320).T for e, w in zip(("q8_0", "q4_1"), packed, strict=True)]
    for got, (p, q) in zip(made.run([str(program)], [x, *packed, y, z], tmp_path), ((x, dense[0]), (x, dense[1]), (y, z)), strict=True):
        assert (np.abs(got - p.astype(np.float64) @ q) <= 0.02 * (np.abs(p) @ np.abs(q))).all()


@pytest.mark.parametrize("feature", ["vnni_emulated", "amx_emulated"])
def test_no_sanitizer_complains_of_sums_of_whole_numbers(feature: str, tmp_path: Path) -> None:
    """int8 with a scale a row, of codes that are laid out in the run: rests of tiles, of fours and of rows."""
    compiler = sanitizing()
    if isinstance(compiler, str):
        pytest.skip(f"not run: {compiler}")
    rng, b = np.random.default_rng(4), Builder("whole")
    x, (codes, scales) = rng.normal(size=(37, 130)).astype(np.float32), quantize(rng.normal(size=(21, 130)).astype(np.float32), "int8_rows")
    y = b.input("x", x.shape).qmatmul(b.input("codes", codes.shape, "i8"), b.input("scales", scales.shape), encoding="int8_rows", shape=codes.shape)
    made = standalone(b.finish(y.relu()), Cpu(named(f"{HERE[0]}+{feature}")), CompileOptions(debug=True, numerics="low", weights="packed"))
    assert {s.choice.name for s in made.plan.steps} == {"cpu/fused.qmatmul.int8_rows"}
    program, dense = made.compile(compiler, tmp_path, *SANITIZE), encoding("int8_rows").decode((codes, scales), 130).astype(np.float64)
    (got,) = made.run([str(program)], [x, codes, scales], tmp_path)
    promised = np.abs(x).max(-1, keepdims=True)/254 @ np.abs(dense).sum(-1)[None]
    assert (np.abs(got - np.maximum(x @ dense.T, 0)) <= promised*1.001).all()


@pytest.mark.parametrize("case", CASES)
def test_neon_under_an_emulator(case: str, tmp_path: Path) -> None:
    tools = emulated()
    if isinstance(tools, str):
        pytest.skip(f"aarch64 did not run: {tools}")
    compiler, qemu = tools
    neon = next(isa for isa in ISAS if isa.name == "neon")
    check(case, Cpu(neon), compiler, tmp_path, ("-static", "-O1"), (qemu,))


def test_a_sanitizer_would_complain(tmp_path: Path) -> None:
    """The programs of these tests do catch a write behind a result."""
    compiler = sanitizing()
    if isinstance(compiler, str):
        pytest.skip(f"not run: {compiler}")
    b = Builder("beyond")
    made = standalone(b.finish(b.input("x", (5,)) + 1.0), Cpu())
    broken = made.source().replace("j < 5", "j < 6").replace("j1 = 5", "j1 = 6")
    assert broken != made.source()
    (tmp_path / "unit.c").write_text(broken)
    flags = [*compiler.argv, "-std=gnu11", *SANITIZE, *Cpu().isa.flags, "-o", str(tmp_path / "unit"), str(tmp_path / "unit.c")]
    status, _, said = run(tuple(flags), SECONDS)
    assert status == 0, said
    with pytest.raises(AssertionError, match="AddressSanitizer: heap-buffer-overflow"):
        made.run([str(tmp_path / "unit")], [np.ones(5, np.float32)], tmp_path)
