"""What is said of a fault: the kernel, the instruction, the block, wave and lane, and what it touched."""
from __future__ import annotations

from collections.abc import Callable

from rlxpy.backends.gpu.sim.isa.image import Image
from rlxpy.backends.gpu.sim.isa.records import Fault, Launch, names
from rlxpy.errors import KernelFault
from rlxpy.frozen import dataclass


@dataclass(frozen=True)
class _Scene:
    """f: what the executor wrote down; allowed: memory that the kernel may touch, first and past the last address."""

    f: Fault
    g: Launch
    image: Image
    allowed: list[tuple[int, int]]


@dataclass(frozen=True)
class _Kind:
    name: str
    what: str
    why: Callable[[_Scene], str]
    fix: str


def _outside(s: _Scene) -> str:
    """Relative to the nearest memory that the kernel may touch."""
    f = s.f

    def distance(span: tuple[int, int]) -> int:
        return max(span[0] - int(f.address), int(f.address + f.nbytes) - span[1])

    begin, end = min(s.allowed, key=distance)
    where = f"{f.address + f.nbytes - end} bytes past the end" if f.address + f.nbytes > end else f"{begin - f.address} bytes before the beginning"
    near = f"it ends {where} of {end - begin} bytes at {begin:#x}" if distance((begin, end)) < 1 << 20 else "nothing that the kernel was given is near"
    return f"{f.nbytes} bytes at {f.address:#x}; {near}"


def _wave(number: int) -> str:
    return "several waves" if number == names()["MANY"] else f"wave {number}"


_KINDS = {
    "GLOBAL_RANGE": _Kind("out of range", "reaches memory that it was not given", _outside, "compare indices with sizes before they are used"),
    "LDS_RANGE": _Kind("shared memory out of range", "reaches beyond its shared memory",
        lambda s: f"{s.f.nbytes} bytes at {s.f.address}, a block has {s.g.lds_nbytes}", "a larger shared array, or smaller indices"),
    "LDS_RACE": _Kind("race", "races for shared memory",
        lambda s: f"{s.f.nbytes} bytes at {s.f.address} were touched by {_wave(s.f.other)} since the last barrier, and one of the two writes", "__syncthreads() between the two"),
    "LDS_UNINITIALISED": _Kind("uninitialised", "reads shared memory that nobody has written",
        lambda s: f"{s.f.nbytes} bytes at {s.f.address}, of which byte {s.f.other} is not written", "write it first, by all threads that own a part"),
    "UNALIGNED": _Kind("unaligned", "is unaligned where the hardware asks for alignment",
        lambda s: f"{s.f.nbytes} bytes at {s.f.address:#x}, which is no multiple of {min(s.f.nbytes, 8)}", "align atomics and scalar loads to their size"),
    "SCRATCH_RANGE": _Kind("scratch out of range", "reaches beyond its private memory",
        lambda s: f"{s.f.nbytes} bytes at {s.f.address}, a lane has {s.g.scratch_nbytes}", "smaller indices into local arrays"),
    "DIVERGENT_BARRIER": _Kind("divergent barrier", "waits at two barriers at once",
        lambda s: f"this wave is here, an earlier one at pc {s.f.other - s.image.base:#x}", "move __syncthreads() out of the branch"),
    "DEADLOCK": _Kind("deadlock", "waits for a barrier that cannot open",
        lambda s: "no wave can go on", "every wave signals a barrier that another waits for"),
    "ENDLESS": _Kind("endless", "does not end",
        lambda s: f"{s.g.executed} instructions were executed, {s.g.budget} are allowed", "look at the loop's condition"),
    "UNKNOWN": _Kind("unknown instruction", "has an instruction that is not simulated",
        lambda s: s.image.program.unknown.get(s.f.pc - s.image.base, "the code ends here"), "run it on a card, or compile it otherwise"),
    "TRAP": _Kind("trap", "traps",
        lambda s: f"s_trap {s.f.address}: an assertion failed or code was reached that must not be", "the condition before it"),
    "JUMP": _Kind("wild jump", "jumps to no instruction",
        lambda s: f"to {s.f.address:#x}", "look at the function pointer"),
    "INDEX": _Kind("register out of range", "names a register that is not there",
        lambda s: f"M0 is {s.f.address}", "smaller indices into what the compiler keeps in registers"),
    "MODE": _Kind("rounding mode", "asks for a rounding that is not simulated",
        lambda s: f"MODE is {s.f.address:#x}, only rounding to nearest is", "leave the rounding mode alone"),
}


def fault(image: Image, kernel: str, g: Launch, allowed: list[tuple[int, int]]) -> KernelFault:
    f = g.report
    name = next(n for n, value in names().items() if value == f.kind and n in _KINDS)
    kind, pc, block = _KINDS[name], f.pc - image.base, (f.block[0], f.block[1], f.block[2])
    where = f"pc {pc:#x} `{image.text_at(pc)}`, block {block}, wave {f.wave}, lane {f.lane} ({image.object.target}, simulated)"
    error = KernelFault(f"{kernel} {kind.what}", where=where, why=kind.why(_Scene(f, g, image, allowed)), fix=kind.fix)
    error.kind, error.kernel, error.pc, error.block, error.wave, error.lane = kind.name, kernel, pc, block, f.wave, f.lane
    return error
