"""Packed weights in C: one decoder a block encoding, written from the encoding's own description; products and embeddings on it."""
from __future__ import annotations

from functools import cache

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.elementwise import arguments, body_of, params, unravel
from rlxpy.backends.cpu.isa import Isa
from rlxpy.backends.cpu.kernel import Emitter, Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.products import epilogue, left_rows
from rlxpy.backends.templates import render
from rlxpy.errors import LegaliseError
from rlxpy.ir.dims import product
from rlxpy.ir.dtypes import DType
from rlxpy.ir.encoding import ENCODINGS, Encoding, Field, encoding
from rlxpy.ir.op import Op

SHORTEST_SIMD = 8  # steps of a loop from which vectors pay; unasked, gcc unrolls these loops whole and picks bytes one by one
LEFT_ROWS = 3  # rows of the left operand in registers beside four weight rows
# one plane of whole blocks, one number a code: what the C decoder reads
BLOCKS = tuple(e.name for e in ENCODINGS.values()
               if e.is_packed and len(e.stored) == 1 and e.block >= 32 and not (e.sign or e.zero or e.transform) and all(f.span == 1 for f in e.fields))


@cache
def decoder(name: str) -> str:
    """`rlx_decode_NAME(record, out)`: one block to f32, the encoding's fields in its order: code, scales, minimums."""
    e = encoding(name)
    lines = [f"static inline void rlx_decode_{name}(const u8 *restrict r, f32 *restrict out) {{"]
    fields = {"code": e.code, **{f"scale{k}": f for k, f in enumerate(e.scales)}, **{f"min{k}": f for k, f in enumerate(e.mins)}}
    for label, f in fields.items():
        lines += _table(label, f) + _bits(label, f)
    for label, f in fields.items():
        if label != "code":
            lines += [f"  f32 {label}_v[{f.count}];", f"  for (int i = 0; i < {f.count}; i++) {label}_v[i] = {_worth(label, f)};"]
    lines += [f"  for (int g = 0; g < {_groups(e)}; g++) {{", *_group(e), "  }", "}"]
    return "\n".join(lines) + "\n"


def _groups(e: Encoding) -> int:
    """Runs of elements that share every scale and minimum."""
    return max(f.count for f in (*e.scales, *e.mins))


def _group(e: Encoding) -> list[str]:
    groups = _groups(e)
    size = e.block // groups

    def at(label: str, f: Field) -> str:
        return f"{label}_v[g/{groups // f.count}]" if f.count > 1 else f"{label}_v[0]"

    scale = [at(f"scale{k}", f) for k, f in enumerate(e.scales)]
    least = [at(f"min{k}", f) for k, f in enumerate(e.mins)]
    lines = [f"    const f32 s{k} = {s};" for k, s in enumerate(scale)] + ([f"    const f32 m = {'*'.join(least)};"] if least else [])
    worth = _worth("code", e.code).replace("[i]", f"[g*{size} + i]")
    value = "*".join([worth, *(f"s{k}" for k in range(len(scale)))]) + (" - m" if least else "")
    return [*lines, "    RLX_SIMD", f"    for (int i = 0; i < {size}; i++) out[g*{size} + i] = {value};"]


def _bits(label: str, f: Field) -> list[str]:
    word = f"u{8 * f.word.itemsize}"
    lines = [f"  {word} {label}[{f.count}];"]
    seen: set[int] = set()
    for p in f.pieces:
        elements = range(p.elements.start, p.elements.stop, p.element_step)
        fresh = not seen & set(elements)
        seen |= set(elements)
        part = f"r[{p.byte} + i*{p.byte_step}]"
        part = f"({part} >> {p.shift})" if p.shift else part
        part = f"({part} & {2**p.width - 1})" if p.shift + p.width < 8 else part
        part = f"(({word}){part} << {p.left})" if p.left else part
        loop = f"for (int i = 0; i < {p.count}; i++) {label}[{p.element} + i*{p.element_step}] {'=' if fresh else '|='} ({word}){part};"
        lines += ["  RLX_SIMD", f"  {loop}"] if p.count >= SHORTEST_SIMD else [f"  {loop}"]
    return lines


def _table(label: str, f: Field) -> list[str]:
    if not f.table:
        return []
    entries = ", ".join(ctext.literal(v, DType.F32) for v in f.table)
    return [f"  static const f32 {label}_table[{len(f.table)}] = {{{entries}}};"]


def _worth(label: str, f: Field) -> str:
    if f.table:
        return f"{label}_table[{label}[i]]"
    bits = f"{label}[i]"
    text = f"(f32){bits}" if f.dtype is None else f"(f32)({f.dtype.text}){bits}" if f.dtype.is_integer else f"rlx_load_{f.dtype.text}({bits})"
    text = f"({text} - {ctext.literal(f.zero, DType.F32)})" if f.zero else text
    return f"({text}*{ctext.literal(f.factor, DType.F32)})" if f.factor != 1 else text


def emitter(isa: Isa) -> Emitter:
    return lambda site: _emit(site)


def _emit(site: Site) -> Kernel:
    body = body_of(site)
    products = tuple(n for n in body if n.op is Op.QMATMUL)
    inputs = {n.refs[0]: o for n, o in zip(body.inputs, site.ins, strict=True)}
    left, weights = inputs[products[0].inputs[0]], [inputs[p.inputs[1]] for p in products]
    encodings = [encoding(p.attrs.encoding) for p in products]  # type: ignore[attr-defined]
    n, depth = products[0].attrs.shape  # type: ignore[attr-defined]
    parts = epilogue(site, body, products, lambda p: f"c{p}[i*4 + jj]")
    rows, step = product(left.shape[:-1]), left_rows(left)
    text = render("cpu/qmatmul.c.j2", M=ctext.dim(rows), N=n, K=depth, MR=LEFT_ROWS, lda=ctext.dim(step if step is not None else depth), gather=_gathered(left, depth) if step is None else [],
                  products=len(products),
                  row=parts.row, inner=parts.inner, encoding=[e.name for e in encodings], block=[e.block for e in encodings],
                  block_nbytes=[e.block_nbytes for e in encodings], row_step=[_row_step(w) for w in weights])
    operands = (left, *parts.operands)
    names = tuple(f"const u8 *restrict w{k}" for k in range(len(products)))
    return Kernel((*names, *params(operands, site.out)), text, (*(w.pointer for w in weights), *arguments(operands, site.out)), f"{-(-n // 4)}",
                  symbols_used(site), needs=tuple(decoder(e.name) for e in encodings))


def _gathered(left: Operand, depth: int) -> list[str]:
    """C that lays row r of the left operand into row i of `left`."""
    *lead, last = left.layout.strides
    at = " + ".join(f"i{k}*{ctext.dim(s)}" for k, s in enumerate(lead) if s != 0) or "0"
    return [*unravel(left.shape[:-1]), f"for (i64 k = 0; k < {depth}; k++) left[i*{depth} + k] = x0[{at} + k*{ctext.dim(last)}];"]


def _row_step(packed: Operand) -> str:
    """Bytes from one packed row to the next.  Raises LegaliseError when the bytes of a row do not lie side by side."""
    if packed.layout.strides[-1] != 1:
        raise LegaliseError("packed weights whose bytes do not lie side by side", why=f"one byte is {packed.layout.strides[-1]} from the next", fix="use device='reference'")
    return ctext.dim(packed.layout.strides[-2]) if len(packed.shape) > 1 else "0"


def emit_dequantize(site: Site) -> Kernel:
    (packed,), out = site.ins, site.out
    e = encoding(site.node.attrs.encoding)  # type: ignore[attr-defined]
    rows, columns = product(out.shape[:-1]), out.shape[-1]
    assert isinstance(columns, int)
    _row_step(packed)
    at = " + ".join(f"i{k}*{ctext.dim(s)}" for k, s in enumerate(packed.layout.strides[:-1]) if s != 0) or "0"
    lines = [f"const i64 r1 = rlx_least(t1*8, {ctext.dim(rows)});", "for (i64 r = t0*8; r < r1; r++) {", *(f"  {u}" for u in unravel(packed.shape[:-1])),
             f"  const u8 *row = x0 + {at};", f"  for (i64 k = 0; k < {columns // e.block}; k++)",
             f"    rlx_decode_{e.name}(row + k*{e.block_nbytes}, y + r*{columns} + k*{e.block});", "}"]
    return Kernel(params((packed,), out), "\n".join(lines), arguments((packed,), out), f"rlx_ceil_quotient({ctext.dim(rows)}, 8)", symbols_used(site),
                  needs=(decoder(e.name),))
