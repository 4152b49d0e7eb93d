"""What a GPU kernel's emitter gives: the text of one __global__ function, what it is given, and the shape of its launch."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

from rlxpy.backends.cpu.kernel import Operand, Site as Site, symbols_used as symbols_used
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Dim, upper
from rlxpy.ir.graph import Ref

if TYPE_CHECKING:
    from rlxpy.backends.gpu.gemm import Gemm

THREADS = 256  # of a block, where a kernel has no reason for another number: whole waves of 32 and of 64


class Room(Enum):
    """Memory that a kernel is given beside its operands."""

    SCRATCH = "scratch"  # what the row's scratch_nbytes asked for, shared by all stages of the step
    FAULT = "fault"      # u64[4]: where rlx_fault notes the first index out of range
    NODE = "node"        # no memory: the node's number, for rlx_fault
    UNDO = "undo"        # of a kv_append: room for the rows that it overwrites
    NOTE = "note"        # of a kv_append: u64, the row from which on it wrote, plus one; 0 until it did


Argument = Ref | Room
FAULT_NBYTES, FAULT_PLACE_BITS, NOTE_NBYTES = 32, 40, 8
FAULT: Mapping[str, Room] = {"u64 *fault": Room.FAULT, "i64 node": Room.NODE}  # parameters of a kernel that checks indices, and what they are given
WAVE = 64  # lanes of the widest wave: a block is a multiple of it


@dataclass(frozen=True)
class Kernel:
    """`body` is the inside of a __global__ function whose parameters are `params` and, after them, the sizes that it mentions; equal ones are one function.

    call: what each of `params` is given.  blocks: of the grid, one to three numbers; none at all where one of them is 0.
    threads: of a block.  sizes: symbols that the body mentions.  needs: text that must stand before it, each once in a module."""

    params: tuple[str, ...]
    body: str
    call: tuple[Argument, ...]
    blocks: tuple[Dim, ...]
    threads: int = THREADS
    shared_nbytes: Dim = 0
    sizes: frozenset[str] = frozenset()
    needs: tuple[str, ...] = ()


Emitter = Callable[[Site], "Kernel | tuple[Kernel, ...] | Gemm"]  # several: stages, each begun when the one before is done


def quotient(n: Dim, by: int) -> Dim:
    """Rounded up: blocks of `by` that hold n."""
    return (n + (by - 1)) // by


def threads_for(n: Dim) -> int:
    """Of a block that deals n elements to its threads."""
    return min(THREADS, max(1, -(-upper(n) // WAVE)) * WAVE)


def params(ins: tuple[Operand, ...], *outs: Operand) -> tuple[str, ...]:
    """x0, x1, .. are read and y (or y0, y1, ..) written."""
    names = ["y"] if len(outs) == 1 else [f"y{k}" for k in range(len(outs))]
    return (*(f"const {o.c} *__restrict__ x{k}" for k, o in enumerate(ins)), *(f"{o.c} *__restrict__ {n}" for o, n in zip(outs, names, strict=True)))


def arguments(ins: tuple[Operand, ...], *outs: Operand) -> tuple[Argument, ...]:
    return tuple(o.ref for o in (*ins, *outs))
