"""GPU kernel of rotary positions: a pair of channels a thread, its angle in f64."""
from __future__ import annotations

from hashlib import blake2b

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import indent, unravel
from rlxpy.backends.cpu.loops import aligned
from rlxpy.backends.cpu.rope import frequency
from rlxpy.backends.gpu.elementwise import each
from rlxpy.backends.gpu.kernel import Kernel, Site
from rlxpy.ir.attention import rope_frequencies
from rlxpy.ir.attrs import Rope
from rlxpy.ir.dims import product
from rlxpy.ir.dtypes import DType


def emit(site: Site) -> Kernel:
    """Behind the pairs, a thread for each channel that is left as it is."""
    x, position, out, a, d = *site.ins[:2], site.out, site.node.attrs, site.out.dtype
    assert isinstance(a, Rope)
    lead, width = x.shape[:-1], x.shape[-1]
    n = a.dims or width
    assert isinstance(n, int), "the shape rule has checked it"
    half, items, index, step = n // 2, width - n // 2, tuple(f"i{k}" for k in range(len(lead))), ctext.dim(x.layout.strides[-1])
    turn, needs = (frequency(site.ins[2]), ()) if len(site.ins) > 2 else turns(half, a.theta) if half else ("0.0", ())
    first, second = ("c", f"c + {half}") if a.style == "half" else ("2*c", "2*c + 1")
    lines = [f"const i64 c = t % {ctext.dim(items)}, r = t / {ctext.dim(items)};", *unravel(lead),
             f"const {x.c} *p = x0 + {ctext.walk(x.layout.strides[:-1], index)};", f"{out.c} *q = y + {ctext.walk(out.layout.strides[:-1], index)};", f"if (c < {half}) {{",
             *indent([f"const f64 angle = (f64)x1[{ctext.walk(aligned(position.shape, position.layout, lead), index)}]*{turn};",
                      f"const {ctext.value(d)} co = ({ctext.value(d)})rlx_cos(angle), si = ({ctext.value(d)})rlx_sin(angle);",
                      f"const {ctext.value(d)} u = {scalar.load(d, f'p[({first})*{step}]')}, w = {scalar.load(d, f'p[({second})*{step}]')};",
                      f"q[{first}] = {scalar.store(d, 'u*co - w*si')}; q[{second}] = {scalar.store(d, 'w*co + u*si')};"]),
             f"}} else q[c + {half}] = p[(c + {half})*{step}];"]
    return each(site, product(lead) * items, lines, needs=needs)


def turns(half: int, theta: float) -> tuple[str, tuple[str, ...]]:
    """The frequency of pair c, and the table that it stands in."""
    values = ", ".join(ctext.literal(f, DType.F64) for f in rope_frequencies(half, theta))
    name = f"rlx_turns_{blake2b(values.encode(), digest_size=6).hexdigest()}"
    return f"{name}[c]", (f"RLX_TABLE f64 {name}[{half}] = {{ {values} }};\n",)
