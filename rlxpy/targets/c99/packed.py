"""Kernels of packed weights: an encoding's description becomes the loops that decode one record after another."""
from __future__ import annotations

from math import lcm

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.kernel import Operand, Site
from rlxpy.backends.cpu.loops import aligned, index, nest
from rlxpy.ir.dtypes import DType
from rlxpy.ir.encoding import ENCODINGS, Encoding, encoding
from rlxpy.ir.encoding.field import Field, Piece
from rlxpy.ir.layout import row_major
from rlxpy.targets.c99.text import Function, at, function, indented, literal, loops, read

ENCODING = "q8_0"  # that rows are rounded to: that of caches
# one plane of whole records, each element on its own
WRITTEN = tuple(name for name, e in ENCODINGS.items() if e.is_packed and len(e.stored) == 1 and e.stored[0].rows == 1 and not e.transform and all(f.span == 1 for f in e.fields))


def _piece(p: Piece, name: str, byte_step: str) -> str:
    """Some bits of each number, at their place."""
    def along(first: int, step: int) -> str:
        return str(first) if p.count == 1 else " + ".join([*([str(first)] if first else []), "i" if step == 1 else f"i*{step}"])

    place = along(p.byte, p.byte_step)
    part = f"record[{place if byte_step == '1' else f'({place})*{byte_step}'}]"
    part = f"(u32)({part} >> {p.shift})" if p.shift else f"(u32){part}"
    part = f"({part} & {2 ** p.width - 1}u)" if p.shift + p.width < 8 else part
    line = f"{name}[{along(p.element, p.element_step)}] |= {part}{f' << {p.left}' if p.left else ''};"
    return line if p.count == 1 else f"for (i64 i = 0; i < {p.count}; i++) {line}"


def _value(f: Field, name: str, columns: int) -> str:
    """What the number that serves element e is worth."""
    share = columns // f.count
    bits = f"{name}[{'e' if share == 1 else '0' if f.count == 1 else f'e/{share}'}]"
    if f.table:
        return f"{name}_table[{bits}]"
    match f.dtype:
        case None: number = f"(f32){bits}"
        case DType.F16 | DType.BF16 | DType.F8E4M3FN | DType.F8E5M2: number = f"rlx_load_{f.dtype.text}(({ctext.storage(f.dtype)}){bits})"
        case DType.F32: number = f"rlx_of_bits_f32({bits})"
        case d: number = f"(f32)({d.text}){bits}"
    number = f"({number} - {literal(f.zero, DType.F32)})" if f.zero else number
    return f"{number}*{literal(f.factor, DType.F32)}" if f.factor != 1 else number


def _decoded(e: Encoding, byte_step: str) -> tuple[list[str], list[str]]:
    """Tables, and the lines that fill `value` with the elements of a `record`."""
    columns = e.stored[0].record_columns
    named = {"code": e.code, **({"sign": e.sign} if e.sign else {}), **({"zero": e.zero} if e.zero else {}), **{f"scale{k}": f for k, f in enumerate(e.scales)},
             **{f"least{k}": f for k, f in enumerate(e.mins)}}
    tables = [f"static const f32 {name}_table[] = {{{', '.join(literal(v, DType.F32) for v in f.table)}}};" for name, f in named.items() if f.table]
    lines = [line for name, f in named.items() for line in (f"u32 {name}[{f.count}] = {{0}};", *(_piece(p, name, byte_step) for p in f.pieces))]
    worth = {name: _value(f, name, columns) for name, f in named.items()}
    steps = [f"f32 v = {worth['code']};", *(f"v *= {worth[n]};" for n in named if n == "sign"), *(f"v -= {worth[n]};" for n in named if n == "zero"),
             *(f"v *= {worth[n]};" for n in named if n.startswith("scale"))]
    if e.mins:
        steps.append(f"v -= {'*'.join(worth[n] for n in named if n.startswith('least'))};")
    return tables, [*lines, f"for (i64 e = 0; e < {columns}; e++) {{", *indented([*steps, "value[e] = v;"]), "}"]


def _records(o: Operand, e: Encoding) -> tuple[int, str, str]:
    """Elements of a record, C for how far apart records are, and bytes."""
    step = o.layout.strides[-1]
    return e.stored[0].record_columns, ctext.dim(step * (lcm(e.stored[0].bits, 8) // 8)), ctext.dim(step)


def dequantize(site: Site) -> tuple[Function, ...]:
    (x,), out = site.ins, site.out
    e = encoding(site.node.attrs.encoding)  # type: ignore[attr-defined]
    columns, record, byte = _records(x, e)
    rows = nest(out.shape[:-1], (x.layout.strides[:-1], row_major(out.shape).strides[:-1]))
    tables, decode = _decoded(e, byte)
    row = [f"for (i64 r = 0; r < {ctext.dim(out.shape[-1])}/{columns}; r++) {{", f"  const u8 *record = x0 + {at(rows.strides[0])} + r*{record};",
           f"  f32 *value = y + {at(rows.strides[1])} + r*{columns};", *indented(decode), "}"]
    return (function(site, [*tables, *loops(rows.sizes, row)]),)


def qmatmul(site: Site) -> tuple[Function, ...]:
    """Each record of the weights is decoded once, and added to the sums of all rows on the left."""
    (x, w), out = site.ins, site.out
    e = encoding(site.node.attrs.encoding)  # type: ignore[attr-defined]
    columns, record, byte = _records(w, e)
    n, depth = (ctext.dim(d) for d in site.node.attrs.shape)  # type: ignore[attr-defined]
    rows = nest(out.shape[:-1], (aligned(x.shape, x.layout, x.shape)[:-1], row_major(out.shape).strides[:-1]))
    tables, decode = _decoded(e, byte)
    place, element = f"y[{at(rows.strides[1])} + o]", index(x.layout.strides[-1], f"(r*{columns} + e)")
    add = loops(rows.sizes, ["f32 sum = 0;", f"for (i64 e = 0; e < {columns}; e++) sum += x0[{at(rows.strides[0])} + {element}]*value[e];", f"{place} += sum;"])
    body = [*tables, f"for (i64 o = 0; o < {n}; o++) {{", *indented(loops(rows.sizes, [f"{place} = 0;"])),
            f"  for (i64 r = 0; r < {depth}/{columns}; r++) {{", f"    const u8 *record = x1 + o*{ctext.dim(w.layout.strides[0])} + r*{record};", f"    f32 value[{columns}];",
            *indented([*decode, *add], 2), "  }", "}"]
    return (function(site, body),)


def quantize(site: Site) -> tuple[Function, ...]:
    """Rows to q8_0: an f16 scale and 32 signed bytes a block, as `rlxpy/ir/quantize.py` rounds them."""
    (x,), out, e = site.ins, site.out, encoding(ENCODING)
    rows = nest(x.shape[:-1], (x.layout.strides[:-1], row_major(out.shape).strides[:-1]))
    element = index(x.layout.strides[-1], f"(k*{e.block} + j)")
    row = [f"for (i64 k = 0; k < {ctext.dim(x.shape[-1])}/{e.block}; k++) {{", f"  u8 *q = y + {at(rows.strides[1])} + k*{e.block_nbytes};", f"  f32 v[{e.block}], most = 0;", "  int lost = 0;",
           f"  for (i64 j = 0; j < {e.block}; j++) {{", f"    v[j] = {read(x, 'x0', f'{at(rows.strides[0])} + {element}')};", "    lost = lost || !rlx_isfinite_f32(v[j]);",
           "    most = fabsf(v[j]) > most ? fabsf(v[j]) : most;", "  }", "  const f32 step = rlx_minimum_f32(most/127, 65504), inverse = 1/step;",
           "  const u16 scale = lost ? 0x7e00 : rlx_store_f16(step);  /* a block with NaN or infinity is NaN */",
           "  const f32 factor = !lost && scale != 0 && rlx_isfinite_f32(inverse) ? inverse : 0;", "  q[0] = (u8)scale;", "  q[1] = (u8)(scale >> 8);",
           f"  for (i64 j = 0; j < {e.block}; j++) {{", "    const f32 a = lost ? 0 : v[j]*factor, whole = truncf(a), code = whole + truncf(2*(a - whole));  /* halves away from zero */",
           "    q[2 + j] = (u8)(i8)(code > 127 ? 127 : code < -127 ? -127 : code);", "  }", "}"]
    return (function(site, loops(rows.sizes, row)),)
