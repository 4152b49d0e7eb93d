"""Kernels that write rows into a cache at a position: as they are, or turned and rounded on the way."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rlxpy.backends.cpu import ctext, encode, scalar
from rlxpy.backends.cpu.elementwise import arguments, body_of, indent, params, unravel
from rlxpy.backends.cpu.kernel import NODE, Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.loops import TASK_NUMEL
from rlxpy.backends.cpu.movement import copy
from rlxpy.backends.cpu.rope import Rows, turn
from rlxpy.ir.attrs import Rope
from rlxpy.ir.dims import Dim, lower, product, upper
from rlxpy.ir.encoding import encoding
from rlxpy.ir.graph import Node
from rlxpy.ir.op import Op


def emit(site: Site) -> Kernel | tuple[Kernel, Kernel]:
    """The rest of the cache is already there when the plan gave its own memory."""
    cache, out = site.ins[0], site.out
    return _append(site) if cache.pointer == out.pointer else (_rest(cache, out), _append(site))


def _rest(cache: Operand, out: Operand) -> Kernel:
    """In a loop the two may be one memory, which only a run knows."""
    k = copy(cache, out)
    return replace(k, params=tuple(p.replace("restrict ", "") for p in k.params), body=f"if ((const void *)y == (const void *)x0) return;\n{k.body}")


def _append(site: Site) -> Kernel:
    """The rows, and an error where they do not fit."""
    (cache, x, at, *beside), out = site.ins, site.out
    chain: Mapping[Op, Node] = {n.op: n for n in body_of(site)}
    axis = chain[Op.KV_APPEND].attrs.axis % len(cache.shape)  # type: ignore[attr-defined]
    operands, room, count = (x, *beside, at), cache.shape[axis], x.shape[axis]
    fits = at.size is not None and lower(at.size) >= 0 and upper(at.size) + upper(count) <= lower(room)  # whatever the sizes
    kept = "(state +" in out.pointer  # only what outlives the run can be put back
    refused = f"if (begin < 0 || begin > {ctext.dim(room)} - {ctext.dim(count)}) {{ rlx_fail(size, node, begin, {ctext.dim(room)}); return; }}"
    head = [f"const i64 begin = (i64)x{len(operands) - 1}[0];", "(void)node;" if fits else refused, *(["if (rlx_failed(size)) return;"] if kept else []),
            f"y += begin*{ctext.dim(out.layout.strides[axis])};"]
    place = [f"{out.c} *const row = y + {ctext.walk(out.layout.strides[:-1], _indices(out))};",
             *([f"rlx_keep(size, row, {ctext.dim(_row_numel(x, out, axis))}*(i64)sizeof *y);"] if kept else [])]
    text, tasks = _turned(chain, (x, *beside), out, place) if Op.ROPE in chain else _rounded(chain, x, out, place)
    return Kernel((*params(operands, out), NODE), "\n".join([*head, text]), (*arguments(operands, out), str(site.node.id)), f"rlx_most((i64)1, {tasks})", symbols_used(site))


def _row_numel(x: Operand, out: Operand, axis: int) -> Dim:
    """Of a new row in the cache."""
    return x.shape[-1] if axis == len(x.shape) - 1 else out.shape[-1]


def _turned(chain: Mapping[Op, Node], ins: Sequence[Operand], out: Operand, place: list[str]) -> tuple[str, str]:
    """C and how many tasks it has."""
    a, d, width = chain[Op.ROPE].attrs, ins[0].dtype, ins[0].shape[-1]
    assert isinstance(a, Rope)
    if Op.QUANTIZE not in chain:
        return turn(a, ins, Rows([*place, f"{out.c} *const q = row;"], out.dtype, []))
    return turn(a, ins, Rows([*place, f"f32 q[{width}];"], d, _quantized(chain, width, lambda i: f"q[{i}]")))


def _rounded(chain: Mapping[Op, Node], x: Operand, out: Operand, place: list[str]) -> tuple[str, str]:
    *lead, width = x.shape
    step, rows, per_task = ctext.dim(x.layout.strides[-1]), ctext.dim(product(lead)), max(1, TASK_NUMEL // max(1, upper(width)))
    if Op.QUANTIZE in chain:
        writes = _quantized(chain, width, lambda i: f"p[({i})*{step}]")
    elif x.dtype is out.dtype and x.layout.strides[-1] == 1:
        writes = [f"__builtin_memcpy(row, p, (u64)({ctext.dim(width)})*sizeof *y);"]
    else:
        element = f"p[j*{step}]"
        writes = ["RLX_SIMD", f"for (i64 j = 0; j < {ctext.dim(width)}; j++) row[j] = {element if x.dtype is out.dtype else scalar.store(out.dtype, element)};"]
    lines = [f"const i64 last = rlx_least(t1*{per_task}, {rows});", f"for (i64 r = t0*{per_task}; r < last; r++) {{", *indent(unravel(tuple(lead))),
             f"  const {x.c} *const p = x0 + {ctext.walk(x.layout.strides[:-1], _indices(x))};", *indent([*place, *writes]), "}"]
    return "\n".join(lines), f"rlx_ceil_quotient({rows}, {per_task})"


def _quantized(chain: Mapping[Op, Node], width: Dim, element: Callable[[str], str]) -> list[str]:
    assert isinstance(width, int), "the shape rule has checked it"
    return encode.row(encoding(chain[Op.QUANTIZE].attrs.encoding), width, ["(u8 *)row"], element)  # type: ignore[attr-defined]


def _indices(o: Operand) -> tuple[str, ...]:
    return tuple(f"i{k}" for k in range(len(o.shape) - 1))
