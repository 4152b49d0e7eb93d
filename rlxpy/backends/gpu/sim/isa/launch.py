"""Running a kernel: what the hardware sets up before its first instruction, and what is said of a fault."""
from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from rlxpy.backends.gpu.codeobject import Arg, Kernel
from rlxpy.backends.gpu.sim.isa.faults import fault
from rlxpy.backends.gpu.sim.isa.image import Image
from rlxpy.backends.gpu.sim.isa.machine import machine
from rlxpy.backends.gpu.sim.isa.records import NO_REG, Launch, Shadow, Wave, names
from rlxpy.errors import InputError
from rlxpy.frozen import dataclass

Dim3 = tuple[int, int, int]
Ranges = Iterable[tuple[int, int]]
SCRATCH_MARK = 1 << 47  # the private segment's address in a buffer resource: no host memory is there
STACK_NBYTES = 16 << 10  # of a lane, where the compiler could not tell
BUDGET = 1 << 30  # instructions of waves
SCRATCH_RESOURCE = (SCRATCH_MARK & 0xffffffff, SCRATCH_MARK >> 32, 0xffffffff, 0x00e00000)
MOST_THREADS = 1024


@dataclass(frozen=True)
class Report:
    """What one launch did, as real machine code executed in simulation.  instructions: of waves; barriers: of blocks."""

    kernel: str
    target: str
    wave: int
    blocks: int
    waves: int
    instructions: int
    barriers: int


@dataclass(frozen=True)
class Shape:
    grid: Dim3
    block: Dim3
    shared_nbytes: int

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


def execute(image: Image, kernel: Kernel, shape: Shape, kernargs: bytes, ranges: Ranges, budget: int = BUDGET) -> Report:
    """Raises InputError for a launch that the driver would refuse, KernelFault for what the kernel does wrong."""
    _check(kernel, shape, kernargs, image.object.target.lds_nbytes)
    wave, lds = image.model.wave, kernel.lds_nbytes + shape.shared_nbytes
    scratch = -(-kernel.scratch_nbytes // 4) * 4 + (STACK_NBYTES if kernel.dynamic_stack else 0)
    waves = -(-shape.threads // wave)
    arguments = _aligned(kernarg_segment(kernel, shape, kernargs))
    packet = _aligned(_dispatch_packet(shape, kernel))
    allowed = _merged([image.range, (arguments.address, arguments.address + len(arguments.data)), (packet.address, packet.address + len(packet.data)),
                       *((a, a + n) for a, n in ranges)])
    spans = (ctypes.c_uint64 * (2 * len(allowed)))(*[end for span in allowed for end in span])
    user = _user_registers(kernel, arguments, packet, scratch)
    memory: dict[str, ctypes.Array[Any]] = {"waves": (Wave * waves)(), "lds": ctypes.create_string_buffer(lds + 4), "shadow": (Shadow * (lds + 1))(),
                                            "scratch": ctypes.create_string_buffer(max(waves * wave * scratch, 4))}
    code, words, tables = image.code, image.index_of_word, image.tables
    state = Launch(
        code=ctypes.addressof(code), ncode=len(code), perms=ctypes.addressof(tables), ranges=ctypes.addressof(spans), nranges=len(allowed),
        first_pc=image.base + image.program.lines[0].pc, index_of_word=ctypes.addressof(words), nwords=len(words), entry=image.program.index_of[image.entry(kernel)],
        budget=budget, grid=shape.grid, block=shape.block, lanes=wave, lds_nbytes=lds, scratch_nbytes=scratch, mode=kernel.descriptor.rsrc1 >> 12 & 0xff,
        nuser=len(user), ids_in_ttmp=image.model.ids_in_ttmp, packed_ids=image.model.packed_ids, id_count=kernel.descriptor.bits("system_vgpr_workitem_id"),
        scratch_base=SCRATCH_MARK, **{name: ctypes.addressof(array) for name, array in memory.items()})
    state.user[:len(user)] = user
    state.system[:] = _system_registers(kernel, image)
    if machine().rlx_launch(ctypes.byref(state)):
        raise fault(image, kernel.name, state, allowed)
    return Report(kernel.name, str(image.object.target), wave, shape.blocks, shape.blocks * waves, state.executed, state.barriers)


def _check(kernel: Kernel, shape: Shape, kernargs: bytes, most_lds: int) -> None:
    most = min(kernel.max_threads, MOST_THREADS)
    if min(*shape.grid, *shape.block) < 1 or shape.threads > most:
        raise InputError(f"{kernel.name} cannot be launched as grid {shape.grid}, block {shape.block}", why=f"a block has 1 to {most} threads, this one {shape.threads}; no size may be 0",
                         fix="a smaller block")
    if (asked := kernel.lds_nbytes + shape.shared_nbytes) > most_lds:
        raise InputError(f"{kernel.name} cannot have so much shared memory", why=f"a block asks for {asked} bytes, this chip has {most_lds}", fix="smaller shared arrays")
    needed = max((a.offset + a.nbytes for a in kernel.explicit), default=0)
    if len(kernargs) < needed:
        raise InputError(f"{kernel.name} has too few arguments", why=f"its arguments take {needed} bytes, {len(kernargs)} are given", fix="one value for each parameter, at its offset")


def kernarg_segment(kernel: Kernel, shape: Shape, kernargs: bytes) -> bytes:
    """Explicit arguments as given, hidden ones as a driver fills them in.  In whole packets: the compiler loads up to 64 bytes where it needs a few."""
    segment = bytearray(-(-max(kernel.kernarg_nbytes, len(kernargs)) // 64) * 64)
    segment[:len(kernargs)] = kernargs
    known = _hidden_values(shape)
    for arg in kernel.args:
        if arg.hidden:
            segment[arg.offset:arg.offset + arg.nbytes] = _number(arg, known.get(arg.kind, 0))
    return bytes(segment)


def _hidden_values(shape: Shape) -> dict[str, int]:
    by_axis = {"block_count": shape.grid, "group_size": shape.block, "remainder": (0, 0, 0), "global_offset": (0, 0, 0)}
    dims = 3 if shape.grid[2] * shape.block[2] > 1 else 2 if shape.grid[1] * shape.block[1] > 1 else 1
    return {**{f"hidden_{name}_{axis}": values[k] for name, values in by_axis.items() for k, axis in enumerate("xyz")}, "hidden_grid_dims": dims,
            "hidden_dynamic_lds_size": shape.shared_nbytes, "hidden_private_base": names()["PRIVATE_APERTURE"], "hidden_shared_base": names()["SHARED_APERTURE"]}


def _number(arg: Arg, value: int) -> bytes:
    return value.to_bytes(arg.nbytes, "little")


def _dispatch_packet(shape: Shape, kernel: Kernel) -> bytes:
    items = [g * b for g, b in zip(shape.grid, shape.block, strict=True)]
    return struct.pack("<6H5I", 0, 3, *shape.block, 0, *items, kernel.scratch_nbytes, kernel.lds_nbytes + shape.shared_nbytes).ljust(64, b"\0")


@dataclass(frozen=True)
class Aligned:
    data: ctypes.Array[ctypes.c_char]
    address: int


def _aligned(content: bytes, to: int = 64) -> Aligned:
    """A copy at an address that is a multiple of `to`; data: exactly the copy."""
    room = ctypes.create_string_buffer(len(content) + to)
    skip = -ctypes.addressof(room) % to
    data = (ctypes.c_char * len(content)).from_buffer(room, skip)
    data.raw = content
    return Aligned(data, ctypes.addressof(room) + skip)


def _user_registers(kernel: Kernel, arguments: Aligned, packet: Aligned, scratch: int) -> list[int]:
    """In the order of the descriptor's bits, then preloaded arguments."""
    wanted: Sequence[tuple[str, Sequence[int]]] = (
        ("private_segment_buffer", SCRATCH_RESOURCE), ("dispatch_ptr", _pair(packet.address)), ("queue_ptr", (0, 0)), ("kernarg_segment_ptr", _pair(arguments.address)),
        ("dispatch_id", (0, 0)), ("flat_scratch_init", (0, 0)), ("private_segment_size", (scratch,)))
    found = [word for name, words in wanted if kernel.descriptor.bits(f"user_sgpr_{name}") for word in words]
    first, count = kernel.descriptor.bits("user_sgpr_kernarg_preload_offset"), kernel.descriptor.bits("user_sgpr_kernarg_preload_length")
    data = bytes(arguments.data)[4 * first:4 * (first + count)]
    return found + list(struct.unpack(f"<{len(data) // 4}I", data))


def _pair(address: int) -> tuple[int, int]:
    return address & 0xffffffff, address >> 32


def _system_registers(kernel: Kernel, image: Image) -> list[int]:
    """Where the block's x, y and z, its packed facts and its scratch offset go, after the user's."""
    at, found = kernel.descriptor.bits("user_sgpr_count"), []
    wanted = ("system_sgpr_workgroup_id_x", "system_sgpr_workgroup_id_y", "system_sgpr_workgroup_id_z", "system_sgpr_workgroup_info", "enable_private_segment")
    for name in wanted:
        here = bool(kernel.descriptor.bits(name)) and not image.model.ids_in_ttmp
        found.append(at if here else NO_REG)
        at += here
    return found


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending; those that overlap as one, those that touch apart, so that no access runs from one into the next."""
    found = sorted(span for span in spans if span[1] > span[0])
    for k in range(len(found) - 1):
        if found[k + 1][0] < found[k][1]:
            found[k + 1] = (found[k][0], max(found[k][1], found[k + 1][1]))
            found[k] = (0, 0)
    kept = [span for span in found if span[1]]
    assert all(a[1] <= b[0] for a, b in pairwise(kept))
    return kept
