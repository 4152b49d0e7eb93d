"""GPU kernels of downstream packages, as source text: registered with their op, checked, and offered to the device that they are for."""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar

from rlxpy.backends.gpu import launch
from rlxpy.backends.gpu.contract import MOST_KERNARG_NBYTES, KernelContract
from rlxpy.backends.gpu.lint import OF_WAVES, Finding, findings
from rlxpy.backends.gpu.vendor import CUDA, ROCM
from rlxpy.errors import HookMismatch, RlxError
from rlxpy.extend.constraints import Constraint, facts_of
from rlxpy.extend.kernels import Choice, KernelRow, Refusal
from rlxpy.frozen import dataclass
from rlxpy.ir import hooks
from rlxpy.ir.attrs import Attrs, Custom, field_types
from rlxpy.ir.dtypes import DType
from rlxpy.ir.extension import OpExtension, attach, extension
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op
from rlxpy.ir.place import Loc, caller, placed
from rlxpy.ir.types import TensorType
from rlxpy.notes import note_once

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
NAME = re.compile(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$")
ABI1 = ("float*", *("unsigned",) * 11)  # arena; out_off, out_len, n_inputs, then an offset and a length for each of four inputs
UNSIGNED = re.compile(r"unsigned(\s+int)?|uint32_t|u32")
MOST_THREADS = 1024
LIMITS = {"shared_nbytes": 64 << 10, "threads": MOST_THREADS}  # of a block, where nobody measured the device: AMD's, and within NVIDIA's
Sized = Callable[[Mapping[str, tuple[int, ...]]], Any] | int | tuple[int, ...]  # a function of the operands' shapes by name, or what is always so


@dataclass(frozen=True)
class GpuKernel:
    """How a GPU runs an extension's op: `entry_point` of a text in the vendor's C++.  What stands before it says which ABI:

    1   extern "C" __global__ void f(float* arena, unsigned out_off, unsigned out_len, unsigned n_inputs, unsigned in0_off, unsigned in0_len, .. in3_len)
        Offsets and lengths in elements; f32; one output, up to four inputs, no parameters; a thread for each element of the output.
    2   __device__ void f(const float* x, float* out, i64 out_numel, double cap, ..)
        Its parameters say by their names what they are given: operands NAME, NAME_numel, NAME_rank, NAME_shape, parameters of the op, scratch.
        Any number and type of operands; sizes and offsets of 64 bits; grid, shared memory and scratch as below.

    name            of the op
    grid            blocks, one to three numbers; by itself a thread for each element of the first output
    shared_nbytes   dynamic shared memory of a block
    scratch_nbytes  memory for `scratch`
    constraints     what it asks of a call, as rows of kernel libraries do; refused is what it lowered to
    grid, shared_nbytes and scratch_nbytes are numbers, or functions of the operands' shapes by name: grid=lambda shapes: shapes["x"][0]."""

    name: str
    source: str
    entry_point: str = "rlx_custom"
    block_size: int = 256
    grid: Sized | None = None
    shared_nbytes: Sized | None = None
    scratch_nbytes: Sized | None = None
    constraints: tuple[Constraint, ...] = ()
    where: Loc = field(default_factory=caller, compare=False)
    device: ClassVar[str] = ""
    offers: ClassVar[tuple[str, ...]] = ("", "_numel", "_rank", "_shape")  # of an operand, behind its name
    hidden_nbytes: ClassVar[int] = 256  # of arguments that a compiler may add: sizes of grid and block

    @placed
    def __post_init__(self) -> None:
        for what, ok in (("source", isinstance(self.source, str)), ("entry_point", isinstance(self.entry_point, str) and self.entry_point.isidentifier()),
                         ("block_size", type(self.block_size) is int and 0 < self.block_size <= MOST_THREADS)):
            if not ok:
                raise HookMismatch(f"the {self.device} kernel of {self.name}: {what}={getattr(self, what)!r:.60}",
                                   why=f"source is text, entry_point a name in it, block_size from 1 to {MOST_THREADS}", fix=f"{type(self).__name__}(name, source, 'rlx_custom', 256)")
        if self.abi == 1:
            self._check_abi1()

    def _check_abi1(self) -> None:
        before, given = self._signature
        abi2 = f"write __device__ void {self.entry_point}(..) for ABI 2"
        types = tuple(_c_type(p) for p in given)
        if 'extern"C"' not in "".join(before.split()):
            raise HookMismatch(f"the {self.device} kernel of {self.name} is not extern \"C\"", why=f"{self.entry_point} has a C++ name, which nobody can look up", fix='extern "C" __global__ void')
        if types != ABI1:
            raise HookMismatch(f"the {self.device} kernel of {self.name} takes ({', '.join(types)})", why=f"ABI 1 gives ({', '.join(ABI1)}), offsets and lengths in elements",
                               fix=f"take these, or {abi2}")
        if extra := [what for what in ("grid", "shared_nbytes", "scratch_nbytes") if getattr(self, what) is not None]:
            raise HookMismatch(f"the {self.device} kernel of {self.name} sets {', '.join(extra)}", why="ABI 1 launches a thread for each element of the output",
                               fix=abi2)

    @property
    def abi(self) -> int:
        """Raises HookMismatch where there is no such function."""
        return 1 if "__global__" in self._signature[0] else 2

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(m[1] if (m := NAME.search(p)) else p for p in self._signature[1])

    @property
    def asks(self) -> tuple[Constraint, ...]:
        """All constraints on a call."""
        return self.constraints

    @property
    def doubts(self) -> tuple[Finding, ...]:
        """What is likely to be wrong in its text; a kernel that asks for its chips may count on their wave."""
        knows = any(c.key in ("device.arch", "device.wave") for c in self.asks)
        return tuple(f for f in findings(self.source, self.device) if not (knows and f.rule in OF_WAVES))

    @property
    def contract(self) -> KernelContract:
        """What its compiled code must keep to, whatever the sizes."""
        return KernelContract(threads=self.block_size, scratch=True)

    def launched(self, inputs: Sequence[str], ins: Sequence[TensorType], outs: Sequence[TensorType], attrs: Attrs) -> launch.GpuLaunch:
        """inputs: the op's names of its inputs."""
        return launch.launch(self, inputs, ins, outs, attrs)

    def unfit(self, op: OpExtension) -> str:
        """Why it could not serve an op, whatever the types."""
        least, most = hooks.bounds(op.row.arity)
        kinds = field_types(op.row.attrs)
        if self.abi == 1:
            if least > launch.ABI1_INPUTS:
                return f"ABI 1 has up to {launch.ABI1_INPUTS} inputs, {op.name} takes {least}"
            return f"ABI 1 gives no parameters, {op.name} has {', '.join(kinds)}" if kinds else ""
        names = (*op.inputs, *(f"x{k}" for k in range(len(op.inputs), 64 if most is None else most)))
        known = {f"{n}{s}" for n in names for s in self.offers} | {"scratch", *kinds} | ({"inputs", "inputs_count", *(f"{k}_count" for k in kinds)} if self.abi == 2 else set())
        unknown = [p for p in self.parameters if p not in known and not re.fullmatch(rf"out\d*({'|'.join(self.offers)})", p)]
        if unknown:
            return f"it asks for {', '.join(unknown)}; names are {', '.join((*names[:8], 'out', *kinds))}, and of an operand {', '.join(f'NAME{s}' for s in self.offers if s)}"
        return "it asks for scratch and sets no scratch_nbytes" if "scratch" in self.parameters and self.scratch_nbytes is None else ""

    def refusal(self, made: launch.GpuLaunch) -> str:
        """Why it cannot serve these operands."""
        if self.abi == 2:
            return ""
        if len(made.operands) - made.inputs != 1 or made.inputs > launch.ABI1_INPUTS:
            return f"ABI 1 has one output and up to {launch.ABI1_INPUTS} inputs, this has {len(made.operands) - made.inputs} and {made.inputs}"
        other = [f"{name} {t}" for name, t in made.operands if t.dtype is not DType.F32]
        return f"ABI 1 has f32 alone, this has {', '.join(other)}" if other else ""

    @property
    def _signature(self) -> tuple[str, tuple[str, ...]]:
        """What stands before the entry point, and its parameters as text."""
        text = COMMENT.sub(" ", self.source)
        found = re.search(rf"(?:^|[;}}])([^;{{}}]*)\b{re.escape(self.entry_point)}\s*\(([^)]*)\)\s*\{{", text)
        if not found or not re.search(r"\b__(global|device)__\b", found[1]):
            raise HookMismatch(f"the {self.device} kernel of {self.name} has no function {self.entry_point!r} for the device", why=f"its source begins {' '.join(text.split())[:60]!r}",
                               fix=f"__device__ void {self.entry_point}(..) {{ .. }}, or name yours by entry_point=")
        return found[1], tuple(p.strip() for p in found[2].split(",") if p.strip() not in ("", "void"))

    def at(self, what: str, shapes: Mapping[str, tuple[int, ...]]) -> Any:
        """grid, shared_nbytes or scratch_nbytes for these shapes; None where it is not set.  Raises HookMismatch for what is no such number."""
        said = getattr(self, what)
        try:
            value = said(shapes) if callable(said) else said
        except Exception as e:
            raise HookMismatch(f"{what} of the {self.device} kernel of {self.name} failed", where=str(self.where),
                               why=f"{type(e).__name__}: {e}; shapes are {shapes}", fix=f"as in {what}=lambda shapes: ..") from e
        numbers = value if isinstance(value, tuple) and what == "grid" else (value,)
        if value is not None and not (0 < len(numbers) <= 3 and all(type(v) is int and v >= 0 for v in numbers)):
            raise HookMismatch(f"{what} of the {self.device} kernel of {self.name} is {value!r}", where=str(self.where), why="whole numbers from 0 are wanted", fix=f"as in {what}=lambda shapes: ..")
        return value


@dataclass(frozen=True)
class CudaGpuKernel(GpuKernel):
    """For NVIDIA: CUDA C++, compiled by NVRTC."""

    device: ClassVar[str] = CUDA.device


@dataclass(frozen=True)
class RocmGpuKernel(GpuKernel):
    """For AMD: HIP C++, compiled by hipRTC."""

    device: ClassVar[str] = ROCM.device


@placed
def register_gpu_kernel(kernel: GpuKernel) -> OpExtension:
    """How a GPU runs an extension's op, before a host kernel and before its lowering; for each vendor one.  Gives the op as it is registered now.

    Raises NotRegistered, and HookMismatch for a kernel that could not serve the op."""
    if not isinstance(kernel, (CudaGpuKernel, RocmGpuKernel)):
        raise HookMismatch(f"{type(kernel).__name__} is no GPU kernel", why="there are CudaGpuKernel and RocmGpuKernel", fix="register_gpu_kernel(RocmGpuKernel('vendor.op', source))")
    op = extension(kernel.name)
    if why := kernel.unfit(op):
        fix = f"write __device__ void {kernel.entry_point}(..) for ABI 2" if kernel.abi == 1 else "ask for what there is"
        raise HookMismatch(f"the {kernel.device} kernel of {op.name} cannot serve it", why=why, fix=fix)
    for doubt in kernel.doubts:
        note_once(f"the {kernel.device} kernel of {op.name} ({kernel.where}), {doubt}. A comment `lint: {doubt.rule}` on the line says that it is meant.")
    return attach(op.name, kernel.device, kernel)


def _c_type(parameter: str) -> str:
    """A parameter's type without its name and what says nothing, unsigned written in one way."""
    words = re.sub(r"\b(const|__restrict__|restrict)\b", " ", parameter)
    words = NAME.sub("", words) if NAME.search(words) and len(re.findall(r"\w+", words)) > 1 else words
    plain = "".join(words.split()) if "*" in words else " ".join(words.split())
    return "unsigned" if UNSIGNED.fullmatch(plain) else plain


# ---- what a device has for a node ----------------------------------------------------------------------------------
def own_gpu_kernel(device: str, facts: Mapping[str, Any], graph: Graph, node: Node) -> Choice | Refusal | None:
    """A device's answer for an extension's op: a row whose `launch` is a GpuLaunch, why not, or None where nobody registered anything.

    facts: shared_nbytes and threads that a block may have."""
    if not isinstance(node.attrs, Custom):
        return None
    op = extension(node.kind)
    kernel = op.kernels.get(device)
    if not isinstance(kernel, GpuKernel):
        return None
    row = f"{node.label}.{device}"
    known = facts_of(graph, node, op.inputs, facts)
    if why := next((w for c in kernel.asks if (w := c.refusal(known))), ""):
        return Refusal((f"{row}: {why}",))
    try:
        made = kernel.launched(op.inputs, [graph.type(r) for r in node.inputs], node.types, node.attrs.given)
        why = _refusal(kernel, made, facts)
    except RlxError as e:
        why = f"{e.what}: {e.why}"
    if why:
        return Refusal((f"{row}: {why}",))
    scratch = made.scratch_nbytes(launch.largest(made.operands, made.attrs))
    return Choice(KernelRow(row, Op.CUSTOM, made, kind=node.kind, constraints=kernel.asks, domain="device", scratch_nbytes=lambda graph, node: scratch, doc=op.row.doc), "extension")


def _refusal(kernel: GpuKernel, made: launch.GpuLaunch, facts: Mapping[str, Any]) -> str:
    if why := kernel.refusal(made):
        return why
    taken = made.args_nbytes + kernel.hidden_nbytes
    if kernel.device == ROCM.device and taken > MOST_KERNARG_NBYTES:
        return f"its arguments and hidden ones take {taken} bytes, at most {MOST_KERNARG_NBYTES} are handed over"
    most = made.geometry(launch.largest(made.operands, made.attrs))
    allowed = {**LIMITS, **facts}
    for what, wanted in (("shared_nbytes", most.shared_nbytes), ("threads", most.block)):
        if wanted > allowed[what]:
            return f"it needs {what} {wanted} in a block, the device has {allowed[what]}"
    return launch.grid_refusal(most.grid, most.block)
