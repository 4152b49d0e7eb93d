"""Kernels of extension ops that came as C functions: their source goes into the project, called with sizes and parameters written out."""
from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.custom import CFunction, input_names, named
from rlxpy.backends.cpu.kernel import Operand, Site
from rlxpy.backends.cpu.unit import word
from rlxpy.backends.custom import DEVICE
from rlxpy.extend.kernels import Choice, KernelRow, Refusal
from rlxpy.fusion.plan import up
from rlxpy.ir.attrs import Custom, field_types
from rlxpy.ir.dims import product
from rlxpy.ir.dtypes import DType
from rlxpy.ir.extension import extension
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.layout import row_major
from rlxpy.ir.op import Op
from rlxpy.ir.types import TensorType
from rlxpy.targets.c99.filescope import declared
from rlxpy.targets.c99.move import copied
from rlxpy.targets.c99.prelude import names
from rlxpy.targets.c99.text import Function, function, literal

ALIGN_NBYTES = 64


def own_kernel(graph: Graph, node: Node) -> Choice | Refusal | None:
    """The C function that was registered for an extension's op; None when there is none."""
    attrs = node.attrs
    kernel = extension(attrs.name).kernels.get(DEVICE) if isinstance(attrs, Custom) else None
    if not isinstance(attrs, Custom) or not isinstance(kernel, CFunction):
        return None
    kernel.launcher(tuple(graph.type(r) for r in node.inputs), node.types, attrs.given)  # raises where it asks for what there is not
    unknown = sorted({n for n in re.findall(r"\b(rlx_\w+)\s*\(", kernel.source) if n != kernel.entry_point} - names())
    if unknown:
        return Refusal((f"its C kernel calls {', '.join(unknown)}, which choose by type and are no C99",))
    return Choice(KernelRow(node.kind, Op.CUSTOM, emit, kind=node.kind, scratch_nbytes=_room), "c99")


def _room(graph: Graph, node: Node) -> int:
    """Copies of all inputs: a function reads them in C order."""
    return sum(up(graph.type(r).max_nbytes, ALIGN_NBYTES) for r in node.inputs)


def emit(site: Site) -> tuple[Function, ...]:
    node, attrs = site.node, site.node.attrs
    assert isinstance(attrs, Custom), "an extension's op"
    kernel: CFunction = extension(attrs.name).kernels[DEVICE]
    made, ins, at = list[Function](), list[Operand](), 0
    for o in site.ins:
        here = Operand(o.ref, o.shape, o.dtype, row_major(o.shape), f"({o.c} *)({site.scratch} + {at})")
        at += up(TensorType(o.shape, o.dtype).max_nbytes, ALIGN_NBYTES)
        if o.layout.is_contiguous(o.shape):
            ins.append(o)
        else:
            made.append(copied(o, here, node))
            ins.append(here)
    given = {**_arrays(kernel, ins, site.outs), **_parameters(field_types(kernel.attrs), attrs.given.params())}
    types = [(name, o.c) for name, o in (*zip(input_names(kernel.inputs, len(ins)), ins, strict=True), *zip((n for n, _ in _results(site.outs)), site.outs, strict=True))]
    name = f"{word(attrs.name)}_{sha256(repr((kernel.source, types)).encode()).hexdigest()[:8]}"
    own = declared(kernel.source)  # another op may have some of the same name
    defined = {kernel.entry_point: f"RLX_LOCAL({name})", **{n: f"RLX_LOCAL({name}_{n})" for n in own.names if n != kernel.entry_point}, **{f"{n}_type": c for n, c in types}}
    source = "\n".join([*(f"#define {n} {to}" for n, to in defined.items()), kernel.source.strip("\n"), *(f"#undef {n}" for n in dict.fromkeys([*defined, *own.macros])), ""])
    call = f"RLX_LOCAL({name})({', '.join(given[p] for p in kernel.parameters)});"
    return (*made, function(Site(node, tuple(ins), site.outs), [call], needs=source))


def _results(outs: Sequence[Operand]) -> list[tuple[str, TensorType]]:
    return named([TensorType(o.shape, o.dtype) for o in outs])


def _arrays(kernel: CFunction, ins: Sequence[Operand], outs: Sequence[Operand]) -> dict[str, str]:
    """What a parameter of each name is given, in C."""
    found = {"inputs": f"(const void *const[]){{{', '.join(f'x{k}' for k in range(len(ins)))}}}", "inputs_count": str(len(ins))}
    for k, (name, o) in enumerate(zip(input_names(kernel.inputs, len(ins)), ins, strict=True)):
        found |= _array(name, f"x{k}", o)
    for name in kernel.inputs[len(ins):]:  # left out
        found |= {name: "0", f"{name}_numel": "0", f"{name}_rank": "0"}
    for k, ((name, _), o) in enumerate(zip(_results(outs), outs, strict=True)):
        found |= _array(name, "y" if len(outs) == 1 else f"y{k}", o)
    return found


def _array(name: str, text: str, o: Operand) -> dict[str, str]:
    return {name: text, f"{name}_numel": ctext.dim(product(o.shape)), f"{name}_rank": str(len(o.shape)), f"{name}_shape": _list("i64", [ctext.dim(d) for d in o.shape])}


def _list(c: str, values: Sequence[str]) -> str:
    return f"(const {c}[]){{{', '.join(values) or '0'}}}"


def _parameters(kinds: Any, params: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, kind in kinds.items():
        value = params[name]
        if isinstance(value, (str, DType)):
            found[name] = '"' + "".join(f"\\{b:03o}" for b in (value.text if isinstance(value, DType) else value).encode()) + '"'
        elif kind in ("bool", "int", "Dim"):
            found[name] = ctext.dim(int(value) if isinstance(value, bool) else value)
        elif kind == "float":
            found[name] = literal(value, DType.F64)
        elif kind in ("Shape", "tuple[int, ...]"):
            found |= {name: _list("i64", [ctext.dim(v) for v in value]), f"{name}_count": str(len(value))}
        elif kind == "tuple[float, ...]":
            found |= {name: _list("f64", [literal(v, DType.F64) for v in value]), f"{name}_count": str(len(value))}
    return found
