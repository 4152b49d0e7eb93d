"""A launch of a downstream package's GPU kernel as data: the source to compile, its arguments one by one, its geometry, its cache key."""
from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.custom import input_names, named
from rlxpy.backends.templates import read
from rlxpy.errors import HookMismatch, InputError
from rlxpy.frozen import dataclass
from rlxpy.ir.attrs import field_types
from rlxpy.ir.dims import Dim, Sizes, SymDim, at, product, shape_text, symbols
from rlxpy.ir.dtypes import DType
from rlxpy.ir.types import TensorType, bind

if TYPE_CHECKING:
    from rlxpy.backends.gpu.raw import GpuKernel
    from rlxpy.ir.attrs import Attrs

ABI1_INPUTS, ABI1_NBYTES = 4, 4  # how many inputs, and the size of an element
ENTRY = "rlx_launch"  # of ABI 2's wrapper
FORMATS = {"float*": "Q", "char*": "Q", "unsigned": "I", "u64": "Q", "i64": "q", "i32": "i", "f32": "f", "f64": "d"}  # how struct packs each C type


MOST_BLOCKS = (2**31 - 1, 65535, 65535)  # of a grid, on both vendors' devices
MOST_THREADS = 2**32 - 1  # along x, on AMD's


@dataclass(frozen=True)
class KernArg:
    """One argument in the order of the signature.  what: "arena" (its address), "offset" of an operand, its "address", "len" in elements, "count" of inputs, the
    "size" of a symbol, a "value", or "absent".  of: which operand or symbol.  offset: where it lies among the packed arguments, in bytes."""

    name: str
    c: str
    what: str
    of: str = ""
    offset: int = 0
    value: Dim | float = 0

    @property
    def nbytes(self) -> int:
        return struct.calcsize(FORMATS[self.c])


@dataclass(frozen=True)
class Geometry:
    """grid and block in blocks and threads; shared memory of a block in bytes."""

    grid: tuple[int, int, int]
    block: int
    shared_nbytes: int


def grid_refusal(grid: tuple[int, int, int], threads: int) -> str:
    """Why nobody launches a grid of blocks of so many threads; "" where it can be launched."""
    most = min(MOST_BLOCKS[0], MOST_THREADS // threads), *MOST_BLOCKS[1:]
    many = any(n > limit for n, limit in zip(grid, most, strict=True))
    return f"it needs a grid of {' x '.join(map(str, grid))} blocks, a grid has at most {' x '.join(map(str, most))}" if many else ""


def grid_of(name: str, blocks: tuple[int, ...], threads: int) -> tuple[int, int, int]:
    """Raises InputError for more blocks than a grid has."""
    x, y, z = (*blocks, 1, 1)[:3]
    if why := grid_refusal((x, y, z), threads):
        raise InputError(f"{name} cannot be launched", why=why, fix="run it in parts")
    return x, y, z


@dataclass(frozen=True)
class GpuLaunch:
    """What a device needs to run one node by a kernel: `launch` of its kernel row.

    Called with the arena's address, where operands lie in it, and sizes, it gives what to hand to the driver beside the compiled `symbol`.
    operands: by name, inputs first, then outputs; "scratch" is memory of its own, scratch_nbytes(sizes) of it."""

    kernel: GpuKernel
    source: str
    symbol: str
    args: tuple[KernArg, ...]
    operands: tuple[tuple[str, TensorType], ...]
    inputs: int
    attrs: Attrs

    def __call__(self, arena: int, offsets: Mapping[str, int], sizes: Sizes) -> tuple[Geometry, bytes]:
        return self.geometry(sizes), self.pack(arena, offsets, sizes)

    @property
    def code(self) -> tuple[str, str]:
        """What is loaded for it: a text, and which of its functions."""
        return self.source, self.symbol

    @property
    def args_nbytes(self) -> int:
        return self.args[-1].offset + self.args[-1].nbytes

    def pack(self, arena: int, offsets: Mapping[str, int], sizes: Sizes) -> bytes:
        """The arguments of one launch.  offsets: bytes from the start of the arena, by operand; row-major operands.

        Raises InputError for an offset that the signature cannot hold."""
        out = bytearray(self.args_nbytes)
        for a in self.args:
            value = self._value(a, arena, offsets, sizes)
            try:
                struct.pack_into(f"<{FORMATS[a.c]}", out, a.offset, value)
            except (struct.error, OverflowError):
                fix = "write the kernel for ABI 2: a __device__ function" if self.kernel.abi == 1 else "give it a wider type"
                raise InputError(f"{a.name} of {self.kernel.name} is {value}", why=f"its signature has {8 * a.nbytes} bits for it, as {a.c}", fix=fix) from None
        return bytes(out)

    def _value(self, a: KernArg, arena: int, offsets: Mapping[str, int], sizes: Sizes) -> float:
        match a.what:
            case "arena":
                return arena
            case "address":
                return arena + offsets[a.of]
            case "value":
                return a.value if isinstance(a.value, float) else at(a.value, sizes)
            case "offset" if self.kernel.abi == 2:
                return offsets[a.of]
            case "offset":
                if offsets[a.of] % ABI1_NBYTES:
                    raise InputError(f"{a.of} of {self.kernel.name} lies at byte {offsets[a.of]}", why=f"ABI 1 counts elements of {ABI1_NBYTES} bytes", fix="align the arena's buffers")
                return offsets[a.of] // ABI1_NBYTES
            case "len":
                return prod(bind(dict(self.operands)[a.of].shape, sizes))
            case "count":
                return self.inputs
            case "size":
                return sizes[a.of]
        return 0

    def geometry(self, sizes: Sizes) -> Geometry:
        """A thread for each element of the first output, or what the kernel's `grid` says; where that is no block at all, nothing is to be launched.

        Raises HookMismatch for no block where there are elements to write."""
        shapes = self.shapes(sizes)
        first = shapes[self.operands[self.inputs][0]]
        said = self.kernel.at("grid", shapes)
        grid = -(-prod(first) // self.kernel.block_size) if said is None else said
        x, y, z = (*(grid if isinstance(grid, tuple) else (grid,)), 1, 1)[:3]
        unwritten = next((name for name, _ in self.operands[self.inputs:] if prod(shapes[name])), None)
        if unwritten and not x * y * z:
            raise HookMismatch(f"grid of the {self.kernel.device} kernel of {self.kernel.name} is {said!r}", where=str(self.kernel.where),
                               why=f"nobody would write {unwritten}, which is {shape_text(shapes[unwritten])}; shapes are {shapes}", fix="as in grid=lambda shapes: ..")
        return Geometry((x, y, z), self.kernel.block_size, self.kernel.at("shared_nbytes", shapes) or 0)

    def scratch_nbytes(self, sizes: Sizes) -> int:
        return self.kernel.at("scratch_nbytes", self.shapes(sizes)) or 0

    def shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        return {name: bind(t.shape, sizes) for name, t in self.operands}

    def key(self, arch: str, options: Sequence[str], compiler: str) -> str:
        """Names compiled code in a cache: what is compiled, for what, by what; never what the kernel or its op is called."""
        return hashlib.sha256(json.dumps([self.source, self.kernel.device, arch, list(options), compiler]).encode()).hexdigest()


def launch(kernel: GpuKernel, inputs: Sequence[str], ins: Sequence[TensorType], outs: Sequence[TensorType], attrs: Attrs) -> GpuLaunch:
    """inputs: the op's names of its inputs."""
    names = input_names(inputs, len(ins))
    operands = (*zip(names, ins, strict=True), *named(outs))
    if kernel.abi == 1:
        return GpuLaunch(kernel, kernel.source, kernel.entry_point, laid_out(_abi1(names)), operands, len(ins), attrs)
    args = laid_out(_abi2(kernel, operands, attrs))
    return GpuLaunch(kernel, _abi2_source(kernel, inputs, operands, len(ins), attrs, args), ENTRY, args, operands, len(ins), attrs)


def laid_out(args: Iterator[KernArg]) -> tuple[KernArg, ...]:
    """Each at the next multiple of its own size, as a C struct has it."""
    placed, end = list[KernArg](), 0
    for a in args:
        end += -end % a.nbytes
        placed.append(replace(a, offset=end))
        end += a.nbytes
    return tuple(placed)


def _abi1(names: Sequence[str]) -> Iterator[KernArg]:
    """Thirteen less one: arena, output, how many inputs, and four inputs, present or not.  Offsets and lengths in elements."""
    yield KernArg("arena", "float*", "arena")
    yield KernArg("out_off", "unsigned", "offset", "out")
    yield KernArg("out_len", "unsigned", "len", "out")
    yield KernArg("n_inputs", "unsigned", "count")
    for k in range(ABI1_INPUTS):
        off, length = ("offset", "len") if k < len(names) else ("absent", "absent")
        of = names[k] if k < len(names) else ""
        yield KernArg(f"in{k}_off", "unsigned", off, of)
        yield KernArg(f"in{k}_len", "unsigned", length, of)


def _abi2(kernel: GpuKernel, operands: Sequence[tuple[str, TensorType]], attrs: Attrs) -> Iterator[KernArg]:
    """The arena, where each operand lies in it, in bytes, and the sizes that are known only when it runs."""
    yield KernArg("arena", "char*", "arena")
    for name in (*(name for name, _ in operands), *(("scratch",) if kernel.scratch_nbytes else ())):
        yield KernArg(f"{name}_at", "u64", "offset", name)
    for symbol in sorted(largest(operands, attrs)):
        yield KernArg(ctext.size_name(symbol), "i64", "size", symbol)


def _abi2_source(kernel: GpuKernel, inputs: Sequence[str], operands: Sequence[tuple[str, TensorType]], count: int, attrs: Attrs, args: Sequence[KernArg]) -> str:
    """The kernel's own text between what it stands on and a wrapper that calls it with what its parameters are named for."""
    given = offered(inputs, operands, count, attrs)
    if lacking := [p for p in kernel.parameters if p not in given]:
        raise HookMismatch(f"the {kernel.device} kernel of {kernel.name} asks for {', '.join(lacking)}", where=str(kernel.where),
                           why=f"this call has {', '.join(name for name, _ in operands)}", fix="outputs are out, or out0, out1, .. of several; an input that is left out has no shape")
    asked = [given[p] for p in kernel.parameters]
    return "\n".join([
        read("gpu/abi2.h").rstrip(),
        *(f"typedef {ctext.storage(t.dtype)} {name}_t;" for name, t in operands), "", kernel.source.strip("\n"), "",
        f'extern "C" __global__ void __launch_bounds__({kernel.block_size}) {ENTRY}({", ".join(f"{a.c} {a.name}" for a in args)}) {{',
        *dict.fromkeys(f"    {o.before}" for o in asked if o.before),
        f"    {kernel.entry_point}({', '.join(o.c for o in asked)});", "}", ""])


@dataclass(frozen=True)
class Offer:
    """One thing that a kernel may ask for: its expression, and a line that must stand before."""

    c: str
    before: str = ""


def offered(inputs: Sequence[str], operands: Sequence[tuple[str, TensorType]], count: int, attrs: Attrs) -> dict[str, Offer]:
    """By the names that kernels in C use too: NAME, NAME_numel, NAME_rank, NAME_shape of operands, parameters of the op, and scratch."""
    found = {"scratch": Offer("arena + scratch_at"), "inputs_count": Offer(str(count))}
    for k, (name, t) in enumerate(operands):
        const = "const " if k < count else ""
        found |= {name: Offer(f"({const}{ctext.storage(t.dtype)} *)(arena + {name}_at)"), f"{name}_rank": Offer(str(t.rank)),
                  f"{name}_numel": Offer(_number(product(t.shape), "i64")), f"{name}_shape": _many(f"{name}_shape", "i64", [_number(d, "i64") for d in t.shape])}
    for name in inputs[count:]:  # left out
        found |= {name: Offer("0"), f"{name}_rank": Offer("0"), f"{name}_numel": Offer("0")}
    found["inputs"] = _many("inputs", "void *const", [f"arena + {name}_at" for name, _ in operands[:count]])
    for name, kind in field_types(type(attrs)).items():
        found |= parameter(name, kind, getattr(attrs, name))
    return found


def parameter(name: str, kind: str, value: Any) -> dict[str, Offer]:
    """A parameter of the op as C has it; nothing for a kind that C does not know."""
    if isinstance(value, (str, DType)):
        octal = "".join(f"\\{b:03o}" for b in (value.text if isinstance(value, DType) else value).encode())
        return {name: Offer(f'"{octal}"')}
    one = {"bool": "i64", "int": "i64", "Dim": "i64", "float": "f64"}.get(kind)
    if one:
        return {name: Offer(_number(value, one))}
    many = {"Shape": "i64", "tuple[int, ...]": "i64", "tuple[float, ...]": "f64"}.get(kind)
    return {name: _many(name, many, [_number(v, many) for v in value]), f"{name}_count": Offer(str(len(value)))} if many else {}


def _number(value: Dim | float | bool, c: str) -> str:
    return ctext.literal(value, DType.F64) if c == "f64" else ctext.dim(value) if isinstance(value, SymDim) else ctext.literal(int(value), DType.I64)


def _many(name: str, c: str, values: Sequence[str]) -> Offer:
    """An array of the wrapper's own; of nothing it has one element, for C has no empty ones."""
    return Offer(f"its_{name}", f"const {c} its_{name}[] = {{{', '.join(values) or '0'}}};")


def largest(operands: Sequence[tuple[str, TensorType]], attrs: Attrs) -> dict[str, int]:
    """The greatest size of every symbol."""
    return {name: s.hi for name, s in symbols([*(d for _, t in operands for d in t.shape), *attrs.symbolic()]).items()}
