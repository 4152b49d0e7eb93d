"""Raw kernels of downstream packages in a HIP project: which it can carry, and their launches as C."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product as combinations
from math import prod
from typing import Any

from rlxpy.backends.cpu import ctext
from rlxpy.backends.gpu.assembly import RocmAsmKernel
from rlxpy.backends.gpu.kernel import quotient
from rlxpy.backends.gpu.launch import ABI1_NBYTES, Geometry, GpuLaunch, KernArg
from rlxpy.backends.gpu.raw import GpuKernel, own_gpu_kernel
from rlxpy.backends.gpu.vendor import ROCM
from rlxpy.extend.kernels import Choice, Refusal
from rlxpy.ir.attrs import Custom
from rlxpy.ir.dims import Sizes, Symbol, product, symbols
from rlxpy.ir.extension import extension
from rlxpy.ir.graph import Graph, Node

MOST_SIZES = 4096  # at which a kernel's own functions are asked for its grid: what they answer is a table in the project
HOOKS = ("grid", "shared_nbytes")
MOST_ABI1_NBYTES = ABI1_NBYTES << 32  # that its offsets reach


def carried(facts: Mapping[str, Any], graph: Graph, node: Node) -> Choice | Refusal | None:
    """An extension's kernel for AMD's devices as a row, where source and launch can be written down; else why not, by the kernel's name."""
    kernel = extension(node.kind).kernels.get(ROCM.device) if isinstance(node.attrs, Custom) else None
    if not isinstance(kernel, GpuKernel):
        return None
    row = f"{node.label}.{ROCM.device} ({kernel.where})"
    if isinstance(kernel, RocmAsmKernel):
        return Refusal((f"{row}: a project is compiled for the card that it finds, and does not carry kernels in assembly, as this one for {', '.join(kernel.archs)}",))
    found = own_gpu_kernel(ROCM.device, facts, graph, node)
    made = found.row.launch if isinstance(found, Choice) and found.row else None
    if isinstance(made, GpuLaunch) and (asked := _asked(made)) and _count(made) > MOST_SIZES:
        return Refusal((f"{row}: its {' and '.join(asked)} of {_count(made):,} sizes would be a table in the project, which has at most {MOST_SIZES:,}",))
    return found


def launched(made: GpuLaunch, function: int, words: Sequence[str]) -> str:
    """A launch of the project's function of that number, at any size."""
    given = ", ".join(words)

    def call(x: str, y: str, z: str, shared_nbytes: str) -> str:
        return f"LAUNCH({function}, {x}, {y}, {z}, {made.kernel.block_size}, {shared_nbytes}, {given});"

    if _symbols(made) and not _asked(made) and made.kernel.grid is None:
        first = made.operands[made.inputs][1]
        return call(ctext.dim(quotient(product(first.shape), made.kernel.block_size)), "1", "1", f"{made.kernel.at('shared_nbytes', {}) or 0}u")
    table = [_row(made.geometry(s)) for s in (_every(made) if _asked(made) else [{s.name: s.hi for s in _symbols(made)}])]
    if len(set(table)) == 1:
        x, y, z, nbytes = map(str, table[0])
        return call(x, y, z, f"{nbytes}u")
    rows = ", ".join("{" + ", ".join(map(str, r)) + "}" for r in table)
    return (f"{{ static const int64_t shapes[][4] = {{{rows}}}; const int64_t *const of = shapes[{_place(_symbols(made))}]; "
            f"{call('of[0]', 'of[1]', 'of[2]', '(unsigned)of[3]')} }}")


def word(a: KernArg, made: GpuLaunch, arena: str, offsets: Mapping[str, str]) -> str:
    """An argument as C, in 64 bits of which the kernel takes the low ones that it has a type for.  offsets: of operands from the arena's start, in bytes."""
    match a.what:
        case "arena":
            return arena
        case "offset":
            return f"(uint64_t)({offsets[a.of]})" + (f"/{ABI1_NBYTES}" if made.kernel.abi == 1 else "")
        case "len":
            return f"(uint64_t){ctext.dim(product(dict(made.operands)[a.of].shape))}"
        case "count":
            return str(made.inputs)
        case "size":
            return f"(uint64_t){ctext.size_name(a.of)}"
    return "0"


# ---- what a kernel's own functions say, size by size
def _asked(made: GpuLaunch) -> list[str]:
    return [hook for hook in HOOKS if callable(getattr(made.kernel, hook))] if _symbols(made) else []


def _symbols(made: GpuLaunch) -> list[Symbol]:
    return [s for _, s in sorted(symbols([d for _, t in made.operands for d in t.shape]).items())]


def _sizes(s: Symbol) -> range:
    return range(-(-s.lo // s.step) * s.step, s.hi + 1, s.step)


def _count(made: GpuLaunch) -> int:
    return prod(len(_sizes(s)) for s in _symbols(made))


def _every(made: GpuLaunch) -> Iterator[Sizes]:
    known = _symbols(made)
    return (dict(zip((s.name for s in known), at, strict=True)) for at in combinations(*map(_sizes, known)))


def _place(known: Sequence[Symbol]) -> str:
    """Where sizes are among all, as C: the last symbol's change fastest."""
    place = "0"
    for s in known:
        own = _sizes(s)
        place = f"({place})*{len(own)} + ({ctext.size_name(s.name)} - {own.start})/{s.step}"
    return place


def _row(g: Geometry) -> tuple[int, int, int, int]:
    return (*g.grid, g.shared_nbytes)
