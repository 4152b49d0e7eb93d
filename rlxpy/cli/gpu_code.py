"""What `rlx inspect` shows of compiled GPU code."""
from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlxpy.cli.report import note, printable, show, size, table
from rlxpy.errors import InputError

if TYPE_CHECKING:
    from rlxpy.backends.gpu.bundle import Entry
    from rlxpy.backends.gpu.codeobject import Kernel
    from rlxpy.backends.gpu.cudaobject import CudaKernel

SUFFIXES = (".hsaco", ".co", ".hipfb", ".cubin", ".ptx")
HEADS = (b"\x7fELF", b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB")
AMD_COLUMNS = ("kernel", "wave", "threads", "VGPRs", "AGPRs", "SGPRs", "LDS", "scratch", "spills", "arguments")
CUDA_COLUMNS = ("kernel", "threads", "registers", "shared", "local", "arguments")


def is_gpu_code(path: Path) -> bool:
    """Whether a file begins as compiled code does, or is named so."""
    try:
        with path.open("rb") as f:
            return f.read(max(map(len, HEADS))).startswith(HEADS) or path.suffix in SUFFIXES
    except OSError:
        return False


def show_gpu_code(path: Path, card: str | None, asm: bool, as_json: bool) -> None:
    """card: show only what it runs; asm: instructions too.  Raises CodeObjectError; BackendMissing where nothing is for the card, or nobody disassembles."""
    from rlxpy.backends.gpu.cudaobject import is_cubin

    data = path.read_bytes()
    head = {"path": str(path), "nbytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    cuda = path.suffix == ".ptx" or is_cubin(data)
    title = f"{printable(str(path))}\n{size(len(data))}, sha256 {head['sha256']}"
    report, text = _cuda(data, path.name, card, asm) if cuda else _amd(data, path.name, card, asm)
    show(head | report, "\n\n".join((title, *text)), as_json)


def _cuda(data: bytes, name: str, card: str | None, asm: bool) -> tuple[dict[str, Any], list[str]]:
    from rlxpy.backends.gpu.cudaobject import read_cuda

    if card is not None or asm:
        raise InputError(f"{'--asm' if card is None else f'--card {card}'} for CUDA code", why="it is for AMD's code alone", fix="leave it out")
    found = read_cuda(data, name)
    if found.kind == "PTX":
        note("registers and memory of PTX are not read: the driver allots them when it compiles it")
    rows = [_cuda_row(k) for k in found.kernels]
    return asdict(found), [f"{found.kind} for {found.arch}", table(CUDA_COLUMNS, rows)]


def _cuda_row(k: CudaKernel) -> tuple[object, ...]:
    args = ", ".join(f"{nbytes} at {offset}" for offset, nbytes in k.args) or "none"
    return k.name, *("?" if v is None else v for v in (k.max_threads, k.registers)), *("?" if n is None else f"{n} B" for n in (k.shared_nbytes, k.local_nbytes)), args


def _amd(data: bytes, name: str, card: str | None, asm: bool) -> tuple[dict[str, Any], list[str]]:
    from rlxpy.backends.gpu.arch import target
    from rlxpy.backends.gpu.bundle import read_bundle

    bundle = read_bundle(data, name)
    wanted = None if card is None else bundle.code_for(target(card))
    shown = [e for e in bundle.entries if wanted is None or e.code is wanted]
    parts = [(e, _instructions(e) if asm else {}) for e in shown]
    return {"parts": [_part(e, lines) for e, lines in parts]}, [text for e, lines in parts for text in _part_text(e, lines)]


def _instructions(e: Entry) -> dict[str, list[tuple[int, str]]]:
    """(pc, text) of each kernel, by name."""
    from rlxpy.backends.gpu.sim.isa.text import disassemble

    if e.code is None:
        return {}
    lines, symbols = disassemble(e.code.elf.b.data), e.code.elf.symbols
    ends = {k.name: k.descriptor.entry + (symbols[k.name].nbytes if k.name in symbols else 0) for k in e.code.kernels}
    return {k.name: [(at.pc, at.text) for at in lines if k.descriptor.entry <= at.pc < ends[k.name]] for k in e.code.kernels}


def _part(e: Entry, lines: Mapping[str, list[tuple[int, str]]]) -> dict[str, Any]:
    part = {"id": e.id, "nbytes": e.nbytes}
    return part if e.code is None else part | {"target": str(e.code.target), "version": e.code.version, "sha256": e.code.sha256, "kernels": [_kernel(k, e, lines) for k in e.code.kernels]}


def _kernel(k: Kernel, e: Entry, lines: Mapping[str, list[tuple[int, str]]]) -> dict[str, Any]:
    asm = {"instructions": [{"pc": pc, "text": text} for pc, text in lines[k.name]]} if k.name in lines else {}
    return asdict(k) | {"args": [asdict(a) | {"hidden": a.hidden} for a in k.args], "breaches": _breaches(k, e)} | asm


def _breaches(k: Kernel, e: Entry) -> list[str]:
    """What would keep it from any launch."""
    from rlxpy.backends.gpu.contract import KernelContract, breaches

    return list(breaches(k, e.code.target, KernelContract(scratch=True))) if e.code else []


def _part_text(e: Entry, lines: Mapping[str, list[tuple[int, str]]]) -> Iterator[str]:
    if e.code is None:
        yield f"part {printable(e.id)}, {size(e.nbytes)}: not for AMD's GPUs, and not read"
        return
    yield f"{f'part {printable(e.id)}, {size(e.nbytes)}: ' if e.id else ''}code object V{e.code.version} for {e.code.target}"
    yield table(AMD_COLUMNS, map(_amd_row, e.code.kernels))
    args = [(k.name, a.name or f"#{at}", a.offset, a.nbytes, a.kind, a.type or "?") for k in e.code.kernels for at, a in enumerate(k.explicit)]
    yield table(("of kernel", "argument", "offset", "bytes", "kind", "type"), args)
    if stopped := [f"{k.name} will not be launched: {why}" for k in e.code.kernels for why in _breaches(k, e)]:
        yield "\n".join(map(printable, stopped))
    for name, instructions in lines.items():
        yield "\n".join((f"{printable(name)}:", *(f"  {pc:#07x}  {text}" for pc, text in instructions)))


def _amd_row(k: Kernel) -> tuple[object, ...]:
    stack = " and more" if k.dynamic_stack else ""
    return k.name, k.wave, k.max_threads, k.vgprs, k.agprs, k.sgprs, f"{k.lds_nbytes} B", f"{k.scratch_nbytes} B{stack}", k.vgpr_spills + k.sgpr_spills, f"{k.kernarg_nbytes} B"
