"""Kernels of downstream packages for the CPU, in NumPy or in C: registered with their op, and made into rows of the host tier."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, overload

import numpy as np

from rlxpy.errors import HookMismatch
from rlxpy.extend.kernels import Choice, HostLaunch, KernelRow, Refusal
from rlxpy.frozen import dataclass
from rlxpy.ir import hooks
from rlxpy.ir.attrs import Attrs, field_types
from rlxpy.ir.dtypes import Array, dtype
from rlxpy.ir.extension import OpExtension, extension, register_op, registered_ops, registry
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import CONTROL, Op
from rlxpy.ir.place import caller, placed
from rlxpy.ir.row import OpRow
from rlxpy.ir.types import TensorType

DEVICE = "cpu"  # the key of such kernels in OpExtension.kernels


class CpuKernel(Protocol):
    """How an op is run on arrays of this machine's memory."""

    def missing(self) -> str | None:
        """Why it cannot run here."""

    def launcher(self, ins: tuple[TensorType, ...], outs: tuple[TensorType, ...], attrs: Attrs) -> HostLaunch: ...


@dataclass(frozen=True)
class NumpyFunction:
    """f: (*arrays, **attrs) -> an array, or a tuple of several."""

    f: Callable[..., Any]

    def missing(self) -> None:
        return None

    def launcher(self, ins: tuple[TensorType, ...], outs: tuple[TensorType, ...], attrs: Attrs) -> HostLaunch:
        return partial(fill, f=self.f)


def fill(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any], f: Callable[..., Any]) -> None:
    """Outputs with what `f` gives, which must be what the op's rules promise."""
    got = f(*ins, **attrs)
    several = got if isinstance(got, tuple) else (got,)
    if len(several) != len(outs):
        raise TypeError(f"it gave {len(several)} results, its rules promise {len(outs)}")
    for out, a in zip(outs, several, strict=True):
        if np.shape(a) != out.shape or np.asarray(a).dtype != out.dtype:
            raise TypeError(f"it gave {'None' if a is None else f'{np.asarray(a).dtype}{list(np.shape(a))}'}, its rules promise {out.dtype}{list(out.shape)}")
        out[...] = a


@dataclass(frozen=True)
class Meaning:
    """A kernel as the `ref` of an op that has no other meaning."""

    name: str
    row: OpRow
    kernel: CpuKernel

    def __call__(self, *arrays: Any, **params: Any) -> Any:
        ins, attrs = tuple(TensorType(a.shape, dtype(a.dtype)) for a in arrays), self.row.attrs(**params)
        types = self.row.infer(self.name, ins, attrs)
        outs = tuple(np.empty(t.shape, t.dtype.numpy) for t in types)
        launch = self.kernel.launcher(ins, types, attrs)
        getattr(launch, "fenced", launch)(arrays, outs, params)
        return outs[0] if len(outs) == 1 else outs


@overload
def register_cpu_kernel(op: OpExtension | str, kernel: Callable[..., Any] | str, *, entry_point: str = "rlx_custom") -> OpExtension: ...
@overload
def register_cpu_kernel(op: OpExtension | str, kernel: None = None, *, entry_point: str = "rlx_custom") -> Callable[[Callable[..., Any] | str], OpExtension]: ...
def register_cpu_kernel(op: OpExtension | str, kernel: Callable[..., Any] | str | None = None, *, entry_point: str = "rlx_custom") -> Any:
    """How the cpu runs an extension's op, before its lowering; every device, where the op has no lowering: arrays are staged.

    kernel: a NumPy function (*arrays, **attrs) -> array or tuple, or the text of a C function `entry_point`, whose parameters say by
    their names what it wants (docs/add_an_op.md).  Without one, a decorator.  Gives the op as it is registered now.
    Raises NotRegistered, HookMismatch."""
    return _register(op, kernel, entry_point) if kernel is not None else lambda f: _register(op, f, entry_point)


@placed
def _register(op: OpExtension | str, kernel: Callable[..., Any] | str, entry_point: str) -> OpExtension:
    known = extension(op.name if isinstance(op, OpExtension) else op)
    made = _kernel(known, kernel, entry_point)
    row = known.row
    if not callable(row.lower) and (not callable(row.ref) or isinstance(row.ref, Meaning)):
        row = replace(row, ref=Meaning(known.name, row, made))
    return register_op(replace(known, row=row, kernels={**known.kernels, DEVICE: made}))


def _kernel(op: OpExtension, kernel: Any, entry_point: str) -> CpuKernel:
    if isinstance(kernel, str):
        from rlxpy.backends.cpu.custom import CFunction  # at first use: it loads what writes C

        return CFunction(op.name, kernel, entry_point, op.inputs, op.row.attrs, str(caller()))
    if not callable(kernel):
        raise HookMismatch(f"the cpu kernel of {op.name} is {type(kernel).__name__}", why="it is neither a function nor the text of one in C", fix="register_cpu_kernel(op, f)")
    hooks.check_signature(op.name, "ref", kernel, op.row.arity, tuple(field_types(op.row.attrs)), op.inputs)
    return NumpyFunction(kernel)


# ---- rows of the host tier -----------------------------------------------------------------------------------------
def own_kernel(graph: Graph, node: Node) -> Choice | Refusal | None:
    """What the cpu has for an extension's op; None when nobody registered anything."""
    kernel = extension(node.kind).kernels.get(DEVICE) if node.op is Op.CUSTOM else None
    if kernel is None:
        return None
    why = kernel.missing()
    return Refusal((f"its {_language(kernel)} kernel: {why}",)) if why else Choice(_row(graph, node, kernel, _language(kernel)), "host", "host")


def extension_row(graph: Graph, node: Node) -> KernelRow | None:
    """The row of an extension's own meaning, which no library can list."""
    ref = node.row.ref
    if node.op is not Op.CUSTOM or not callable(ref):
        return None
    return _row(graph, node, ref.kernel, _language(ref.kernel)) if isinstance(ref, Meaning) else _row(graph, node, NumpyFunction(ref))


def _row(graph: Graph, node: Node, kernel: CpuKernel, language: str = "") -> KernelRow:
    ins = tuple(graph.type(r) for r in node.inputs)
    return KernelRow(".".join(filter(None, (node.label, language))), node.op, kernel.launcher(ins, node.types, node.attrs), kind=node.kind, doc=node.row.doc)


def _language(kernel: CpuKernel) -> str:
    return "numpy" if isinstance(kernel, NumpyFunction) else "c"


def ready(launch: HostLaunch, node: Node) -> HostLaunch:
    """A host row's launch with nothing left to compile, and with the ops that the node's graphs name as they are now.  Raises CompileError."""
    if prepare := getattr(launch, "prepare", None):
        prepare()
    return partial(_with_ops, launch=launch, ops=registered_ops()) if _names_ops(node) else launch


def _names_ops(node: Node) -> bool:
    return node.op in CONTROL and any(n.op is Op.CUSTOM or _names_ops(n) for _, body in node.attrs.graphs() for n in body)


def _with_ops(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any], launch: HostLaunch, ops: Mapping[str, OpExtension]) -> None:
    with registry(ops):
        launch(ins, outs, attrs)
