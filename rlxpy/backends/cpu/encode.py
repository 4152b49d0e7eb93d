"""The kernel that rounds rows to the nearest codes of an encoding: group by group, as rlxpy/ir/quantize.py does, byte for byte."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import arguments, indent, params, unravel
from rlxpy.backends.cpu.kernel import Kernel, Site, symbols_used
from rlxpy.backends.cpu.loops import TASK_NUMEL
from rlxpy.ir.dims import product
from rlxpy.ir.dtypes import DType
from rlxpy.ir.encoding import ENCODINGS, Encoding, Field, Piece, encoding
from rlxpy.ir.quantize import refusal

AT_ONCE = 256  # values of a group, at most, that are read once and kept


class Stored(NamedTuple):
    """What a scale is stored in: C of its bits from an f32, those of NaN, and its greatest value."""

    bits: str
    nan: str
    most: str


STORED = {DType.F16: Stored("rlx_store_f16({})", "0x7e00", "65504.0f"), DType.F32: Stored("rlx_bits_f32({})", "0x7fc00000", "0x1.fffffep+127f")}
WRITTEN = tuple(e.name for e in ENCODINGS.values() if e.is_packed and not refusal(e) and all(f.dtype in STORED for f in (*e.scales, *e.mins))
                and e.share(e.scales[0]) % e.stored[e.code.plane].record_columns == 0)


def emit(site: Site) -> Kernel:
    (x,), (*lead, width), e = site.ins, site.ins[0].shape, encoding_of(site)
    assert isinstance(width, int), "the shape rule has checked it"
    rows, per_task = ctext.dim(product(lead)), max(1, TASK_NUMEL // max(1, width))
    *outer, step = x.layout.strides
    lines = [f"const i64 last = rlx_least(t1*{per_task}, {rows});", f"for (i64 r = t0*{per_task}; r < last; r++) {{", *indent(unravel(tuple(lead))),
             f"  const {x.c} *p = x0 + {ctext.walk(tuple(outer), tuple(f'i{k}' for k in range(len(lead))))};",
             *indent(row(e, width, starts(site), lambda i: scalar.load(x.dtype, f"p[({i})*{ctext.dim(step)}]"))), "}"]
    return Kernel(params(site.ins, *site.outs), "\n".join(lines), arguments(site.ins, *site.outs), f"rlx_ceil_quotient({rows}, {per_task})", symbols_used(site))


def encoding_of(site: Site) -> Encoding:
    return encoding(site.node.attrs.encoding)  # type: ignore[attr-defined]


def groups(e: Encoding, width: int) -> int:
    """Of a row: values with one scale."""
    size = e.share(e.scales[0])
    return -(-width // size) if size else min(width, 1)


def starts(site: Site) -> list[str]:
    """C for where row r of each plane begins."""
    names = ["y"] if len(site.outs) == 1 else [f"y{k}" for k in range(len(site.outs))]
    return [f"(u8 *){name} + r*{p.row_nbytes(int(site.ins[0].shape[-1]))}" for name, p in zip(names, encoding_of(site).stored, strict=True)]


def row(e: Encoding, width: int, starts: Sequence[str], element: Callable[[str], str]) -> list[str]:
    """C that writes a row, all of its groups."""
    return [f"for (i64 k = 0; k < {groups(e, width)}; k++) {{", *indent(group(e, width, starts, element)), "}"]


def group(e: Encoding, width: int, starts: Sequence[str], element: Callable[[str], str]) -> list[str]:
    """C that writes group k of a row.  starts: C for where the row of each plane begins; element: C of the row's value at an index."""
    size = max(1, e.share(e.scales[0]) or width)
    kept, whole = size <= AT_ONCE, width % size == 0
    read = "(f32)" + element(f"k*{size} + j" if whole else f"rlx_least(k*{size} + j, {width - 1})")  # the last value stands for those behind it
    value = "v[j]" if kept else read

    def records(plane: int, filled: list[str], number: str = "k") -> list[str]:
        p = e.stored[plane]
        start, at = starts[plane], f"const i64 at = ({number})*{p.record_nbytes};"
        if whole and width % max(p.record_columns, 1) == 0:
            return [at, f"u8 *o = {start} + at;", *([f"for (int b = 0; b < {p.record_nbytes}; b++) o[b] = 0;"] if any("|=" in line for line in filled) else []), *filled]
        return [at, f"u8 o[{p.record_nbytes}] = {{0}};", *filled, f"for (i64 b = 0; b < {p.record_nbytes} && at + b < {p.row_nbytes(width)}; b++) ({start})[at + b] = o[b];"]

    levels = {e.scales[0]: "scale", **dict.fromkeys(e.mins, "bound")}
    code = e.stored[e.code.plane]
    of_codes = [f"u8 c[{code.record_columns}];", f"for (i64 i = 0; i < {code.record_columns}; i++) {{", f"  const i64 j = {'i' if code.record_columns == size else f'm*{code.record_columns} + i'};",
                *indent(_code(e, value)), "}", *_put(e.code, "c[{}]")]
    of_codes += [line for f, name in levels.items() if f.plane == e.code.plane for line in _put(f, name)]
    count = -(-size // code.record_columns)
    lines = [f"for (i64 m = 0; m < {count}; m++) {{", *indent(records(e.code.plane, of_codes, f"k*{count} + m")), "}"] if count > 1 else ["{", *indent(records(e.code.plane, of_codes)), "}"]
    for f, name in levels.items():
        if f.plane != e.code.plane:
            lines += ["{", *indent(records(f.plane, _put(f, name))), "}"]
    return [*([f"f32 v[{size}];", f"for (i64 j = 0; j < {size}; j++) v[j] = {read};"] if kept else []), *_scale(e, size, value, kept), *lines]


def _scale(e: Encoding, size: int, value: str, kept: bool) -> list[str]:
    """C of the bits `scale` and `bound`, and of what codes are made with: `factor`, `base`, and `lost`, that a value is NaN or infinite."""
    stored, top = STORED[_dtype(e.scales[0])], _top(e)
    loop, seen = f"for (i64 j = 0; j < {size}; j++) {{", f"const f32 x = {value}, a = rlx_abs_f32(x);"
    lost = "lost |= !(a < __builtin_inff());"
    lines = ["int lost = 0;"]
    if e.mins:
        lines += ["f32 low = __builtin_inff(), high = -__builtin_inff();", loop, f"  {seen}", f"  low = x < low ? x : low; high = x > high ? x : high; {lost}", "}",
                  f"const f32 base = lost ? 0 : {_clipped('low', STORED[_dtype(e.mins[0])])}, wanted = (high - low)/{top};"]
    elif e.code.zero:
        lines += ["f32 most = 0, peak = 0;", loop, f"  {seen}", f"  {lost}", "  if (a > most) { most = a; peak = x; }", "}", f"const f32 wanted = peak/-{int(e.code.zero)};"]
    else:
        lines += ["f32 most = 0;", *(["RLX_SIMD_EXTREME(max, most, lost)"] if kept else []), loop, f"  {seen}", f"  most = a > most ? a : most; {lost}", "}",
                  f"const f32 wanted = rlx_minimum_f32(most/{top}, {stored.most});"]
    lines += [f"const f32 step = {_clipped('wanted', stored) if e.mins or e.code.zero else 'wanted'}, inverse = 1/step;",
              f"const u32 bits = {stored.bits.format('step')}, scale = lost ? {stored.nan} : bits;",
              "const f32 factor = !lost && bits != 0 && rlx_abs_f32(inverse) < __builtin_inff() ? inverse : 0;"]
    if e.mins:
        lines.append(f"const u32 bound = {STORED[_dtype(e.mins[0])].bits.format(f'-base/({ctext.literal(e.mins[0].factor, DType.F32)})')};")
    return lines


def _code(e: Encoding, value: str) -> list[str]:
    """C of c[i], the code of the group's value j: halves go away from zero, or up from the least code."""
    top, offset = _top(e), f"({value} - base)" if e.mins else value
    lines = [f"const f32 x = lost ? 0 : {offset}*factor;"]
    if e.code.dtype is not None:
        lines += ["const f32 whole = rlx_trunc_f32(x), near = whole + rlx_trunc_f32(2*(x - whole));", f"c[i] = (u8)(i8)(i32)(near > {top} ? {top} : near < -{top} ? -{top} : near);"]
    else:
        lines += [f"const f32 near = rlx_trunc_f32(x + {e.code.zero + 0.5}f);", f"c[i] = (u8)(i32)(near > {top} ? {top} : near > 0 ? near : 0);"]
    return lines


def _clipped(name: str, stored: Stored) -> str:
    """Within the range of the stored type, and no negative zero."""
    return f"({name} > {stored.most} ? {stored.most} : {name} < -{stored.most} ? -{stored.most} : {name}) + 0.0f"


def _top(e: Encoding) -> int:
    return int(2**(e.code.bits - (e.code.dtype is not None)) - 1)


def _put(f: Field, number: str) -> list[str]:
    """C that sets a field's bits in the record o, which has zeros where bytes are shared.  number: C of the bits, with a place for which of them."""
    def bits(p: Piece) -> str:
        given = number.format(f"{p.element} + i*{p.element_step}")
        return f"= (u8)({given} >> {p.left})" if p.width == 8 else f"|= (u8)(({given} >> {p.left} & {2**p.width - 1}) << {p.shift})"

    return [f"for (int i = 0; i < {p.count}; i++) o[{p.byte} + i*{p.byte_step}] {bits(p)};" for p in f.pieces]


def _dtype(f: Field) -> DType:
    assert f.dtype is not None, "scales of encodings that rounding writes are floats"
    return f.dtype
