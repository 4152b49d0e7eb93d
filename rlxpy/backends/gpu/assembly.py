"""AMD kernels written by hand in assembly: declared, registered like any raw kernel, and held to what their own metadata says."""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rlxpy.backends.cpu.custom import input_names, named
from rlxpy.backends.gpu.arch import FAMILIES, target
from rlxpy.backends.gpu.contract import KernelContract
from rlxpy.backends.gpu.launch import GpuLaunch, KernArg, laid_out
from rlxpy.backends.gpu.lint import Finding
from rlxpy.backends.gpu.raw import RocmGpuKernel
from rlxpy.errors import HookMismatch
from rlxpy.extend.constraints import Constraint
from rlxpy.frozen import dataclass
from rlxpy.ir.attrs import Attrs, field_types
from rlxpy.ir.dims import Dim, product
from rlxpy.ir.dtypes import DType
from rlxpy.ir.extension import OpExtension
from rlxpy.ir.place import placed
from rlxpy.ir.types import TensorType

DIMS = tuple(f"_dim{k}" for k in range(8))
TYPES = {"float": "f32", "double": "f64", "int": "i32", "unsigned": "unsigned", "unsigned int": "unsigned", "u32": "unsigned", **{t: t for t in ("f32", "f64", "i32", "i64", "u64")}}
ANYTHING = ("void", "char")  # what a pointer may point at to take any dtype
ELEMENTS = {"float": "f32", "double": "f64", "int": "i32", "unsigned": "u32", "unsigned int": "u32"}  # others are dtypes by their own names
PARAMETER = re.compile(r"\s*(?:const\s+)?(\w+(?:\s+int)?)\s*(?:const\s*)?(\*?)\s*(?:__restrict__\s+|restrict\s+)?(\w+)\s*")
FLOATS = ("f32", "f64")
NUMBERS = ("bool", "int", "Dim", "float")  # kinds of parameters of an op that an argument can be


@dataclass(frozen=True)
class Parameter:
    """c: the type of a number as FORMATS has it, or "" for the address of an operand; element: what the operand's elements must be, "" for anything."""

    name: str
    c: str
    element: str = ""


@dataclass(frozen=True)
class RocmAsmKernel(RocmGpuKernel):
    """`entry_point` of a text in AMD's assembly, with its own .amdhsa_kernel and .amdgpu_metadata blocks; LLVM assembles it for the card's chip.

    signature   its arguments in order, as C would have them: "const float *x, float *out, unsigned x_last, float eps".  Pointers are operands, or
                scratch; numbers are parameters of the op, and of an operand NAME_numel, NAME_rank, NAME_last (size of the last axis), NAME_dim0, ..
    archs       chips, or families for all of theirs; on others the op is lowered
    wave        32 or 64 lanes
    lds_nbytes  that the text declares for a block; shared_nbytes is what a launch adds
    Names, sizes and places of arguments, wave, LDS and threads are compared with the metadata before anything runs."""

    signature: str = ""
    archs: tuple[str, ...] = ()
    wave: int = 0
    lds_nbytes: int = 0
    offers = ("", "_numel", "_rank", "_last", *DIMS)
    hidden_nbytes = 0

    @placed
    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"the assembly kernel of {self.name}"
        if not self.archs:
            raise HookMismatch(f"{where} is for no chip", why=f"archs={self.archs!r}", fix="archs=('gfx1100', 'gfx1151'), or a family: ('gfx11-generic',)")
        odd = [a for a in self.chips if target(a).wave > self.wave or self.wave not in (32, 64)]
        if odd:
            raise HookMismatch(f"{where} has a wave of {self.wave} lanes", why=f"{odd[0]} has {'32 or 64' if target(odd[0]).wave == 32 else '64'}", fix="wave=64 for gfx9, wave=32 or 64 from gfx10 on")
        for block, line in (("descriptor", rf"^\s*\.amdhsa_kernel\s+{self.entry_point}\s*$"), ("metadata", rf"^\s*-?\s*\.name:\s*{self.entry_point}\s*$")):
            if not re.search(line, self.source, re.M):
                raise HookMismatch(f"{where} has no {block} of {self.entry_point!r}", why=f"no line matches {line}", fix="examples/asm/softmax_rows.s has both, with what they mean")
        if not self.typed:
            raise HookMismatch(f"{where} has no signature", why="a launch must know what to hand over", fix="signature='const float *x, float *out, unsigned x_last'")

    @property
    def chips(self) -> tuple[str, ...]:
        return tuple(chip for a in self.archs for chip in FAMILIES.get(a, (a,)))

    @property
    def abi(self) -> int:
        """3: addresses and numbers, each an argument of its own."""
        return 3

    @property
    def asks(self) -> tuple[Constraint, ...]:
        return (Constraint("device.arch", "IN", self.chips), *self.constraints)

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.typed)

    @property
    def typed(self) -> tuple[Parameter, ...]:
        """Raises HookMismatch for what is no parameter."""
        return tuple(map(self._parameter, filter(None, (text.strip() for text in self.signature.split(",")))))

    def _parameter(self, text: str) -> Parameter:
        found = PARAMETER.fullmatch(text)
        c, star, name = found.groups() if found else ("", "", "")
        c = " ".join(c.split())
        known = ELEMENTS.get(c, c)
        if not found or not (known in (*(d.text for d in DType), *ANYTHING) if star else c in TYPES):
            raise HookMismatch(f"the assembly kernel of {self.name} has a parameter {text!r}", why=f"pointers are to elements or char, numbers are {', '.join(TYPES)}",
                               fix="as in const float *x, unsigned x_last")
        return Parameter(name, "", "" if known in ANYTHING else known) if star else Parameter(name, TYPES[c])

    def launched(self, inputs: Sequence[str], ins: Sequence[TensorType], outs: Sequence[TensorType], attrs: Attrs) -> GpuLaunch:
        operands = (*zip(input_names(inputs, len(ins)), ins, strict=True), *named(outs))
        return GpuLaunch(self, self.source, self.entry_point, laid_out(self._arguments(inputs, operands, attrs)), operands, len(ins), attrs)

    def _arguments(self, inputs: Sequence[str], operands: Sequence[tuple[str, TensorType]], attrs: Attrs) -> Iterator[KernArg]:
        numbers = {k: v for name, t in operands for k, v in sizes_of(name, t).items()} | {name: getattr(attrs, name) for name, kind in field_types(type(attrs)).items() if kind in NUMBERS}
        there = {name for name, _ in operands} | ({"scratch"} if self.scratch_nbytes is not None else set())
        for p in self.typed:
            if p.name in there:
                yield KernArg(p.name, "char*", "address", p.name)
            elif not p.c:
                yield KernArg(p.name, "char*", "absent")  # an optional input that is left out
            elif p.name in numbers:
                yield KernArg(p.name, p.c, "value", value=numbers[p.name])
            else:
                raise HookMismatch(f"the assembly kernel of {self.name} asks for {p.name}", why=f"numbers are {', '.join(numbers)}", fix="a shape has no axis more than its rank")

    def unfit(self, op: OpExtension) -> str:
        if why := super().unfit(op):
            return why
        kinds, sized = field_types(op.row.attrs), tuple(s for s in self.offers if s)
        for p in self.typed:
            kind, number = kinds.get(p.name, ""), p.name in kinds or p.name.endswith(sized)
            if number == (not p.c):
                return f"it takes {p.name} as {'a number, which is memory' if p.c else 'an address, which is a number'}"
            if kind and (kind not in NUMBERS or (kind == "float" and p.c not in FLOATS)):
                return f"it takes {p.name} as {p.c}, which is {kind}"
        return ""

    def refusal(self, made: GpuLaunch) -> str:
        types = dict(made.operands)
        odd = next((p for p in self.typed if p.element and p.name in types and types[p.name].dtype.text != p.element), None)
        return f"{odd.name} is {types[odd.name].dtype.text}, its signature takes {odd.element}" if odd else ""

    @property
    def doubts(self) -> tuple[Finding, ...]:
        """None: the rules are about C++."""
        return ()

    @property
    def contract(self) -> KernelContract:
        """What its metadata must say, whatever the sizes."""
        return KernelContract(threads=self.block_size, wave=self.wave, own_lds_nbytes=self.lds_nbytes, names=self.parameters)


def sizes_of(name: str, t: TensorType) -> dict[str, Dim]:
    dims = {f"{name}_dim{k}": d for k, d in enumerate(t.shape)} | ({f"{name}_last": t.shape[-1]} if t.rank else {})
    return {f"{name}_numel": product(t.shape), f"{name}_rank": t.rank, **dims}
