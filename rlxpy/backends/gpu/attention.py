"""GPU kernels of attention by tiles of keys in shared memory; narrow or packed keys and values read as they lie."""
from __future__ import annotations

from typing import Any

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.attention import Call, call_of, mask_facts
from rlxpy.backends.cpu.kernel import Operand
from rlxpy.backends.gpu import packed
from rlxpy.backends.gpu.kernel import Kernel, Room, Site, quotient, symbols_used
from rlxpy.backends.templates import trimmed
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Dim, divides, exact_quotient, upper
from rlxpy.ir.dtypes import DType


@dataclass(frozen=True)
class Block:
    """What a block holds in 48 KiB of shared memory: ROWS queries and KEYS keys, or their values, of at most `channels` each; LANES threads have a row."""

    channels: int
    ROWS: int
    LANES: int
    KEYS: int


BLOCKS = (Block(128, 16, 16, 32), Block(256, 16, 16, 16), Block(512, 8, 32, 8))
MOST_CHANNELS = 512
WORDS = {DType.F32: "rlx_four", DType.F16: "rlx_eight", DType.BF16: "rlx_eight"}  # of 16 bytes, in templates/gpu/words.h


def emit(site: Site) -> Kernel:
    call = call_of(site)
    (b, h, t, d), (_, g, _, _), (*_, e) = call.shapes
    block = next(x for x in BLOCKS if max(upper(d), upper(e)) <= x.channels)
    text = trimmed("gpu/attention.cu.j2", **facts_of(call, site), ROWS=block.ROWS, LANES=block.LANES, KEYS=block.KEYS, D=max(upper(d), 1), E=whole(max(upper(e), 1), block.LANES))
    return kernel(call, site, text, b * g * quotient(t * group_of(h, g), block.ROWS), block.ROWS*block.LANES)


def kernel(call: Call, site: Site, text: str, blocks: Dim, threads: int, needs: tuple[str, ...] = (), *, split: bool = False) -> Kernel:
    """From q, k, v and perhaps mask to y or, of a part of the keys, to scratch; needs: text beside what packed keys and values need."""
    given = {"q": call.q, "k": call.k, "v": call.v, **({"mask": call.mask} if call.mask else {})}
    to = (("f32 *scratch",), (Room.SCRATCH,)) if split else ((f"{site.out.c} *__restrict__ y",), (site.out.ref,))
    names = (*(f"const {o.c} *__restrict__ {n}" for n, o in given.items()), *to[0])
    return Kernel(names, text, (*(o.ref for o in given.values()), *to[1]), (blocks,), threads, sizes=symbols_used(site),
                  needs=(*dict.fromkeys(n for name in call.packing if name for n in packed.needs(name)), *needs))


def group_of(heads: Dim, key_heads: Dim) -> Dim:
    """Heads that share a key head."""
    found = exact_quotient(heads, key_heads)
    assert found is not None, "the shape rule has checked it"
    return found


def whole(n: int, of: int) -> int:
    return -(-n // of) * of


def facts_of(call: Call, site: Site) -> dict[str, Any]:
    (_, h, t, d), (_, g, s, _), (*_, e) = call.shapes
    mask = mask_facts(call)
    return {
        **mask, "mask_key": f"{mask['mask_row']} + (s0 + s)*{mask['mask_step']}", "key_heads": ctext.dim(g), "group": ctext.dim(group_of(h, g)), "T": ctext.dim(t), "S": ctext.dim(s),
        "scale": ctext.literal(call.attrs.scale, DType.F32),
        "q": {"c": call.q.c, "at": ctext.walk(call.q.layout.strides[:3], ("b", "h", "i")), "element": _element(call.q, "")},
        "k": _source("k", call.k, d, call.packing[0]), "v": _source("v", call.v, e, call.packing[1]),
        "out": {"c": site.out.c, "at": ctext.walk(call.out_strides, ("b", "h", "i")), "store": scalar.store(site.out.dtype, "%s")},
    }


def _source(name: str, o: Operand, width: Dim, packing: str) -> dict[str, Any]:
    return {"name": name, "c": o.c, "at": ctext.walk(o.layout.strides[:2], ("b", "g")), "step": ctext.dim(o.layout.strides[2]), "width": ctext.dim(width),
            "element": _element(o, packing)}


def _element(o: Operand, packing: str) -> str:
    """C for channel c of the row at p."""
    return packed.element(packing, "p", "c") if packing else scalar.load(o.dtype, f"p[c*{ctext.dim(o.layout.strides[3])}]")


def reading(o: Operand, width: Dim, packing: str, narrow: DType | None = None) -> dict[str, Any]:
    """How templates/gpu/attention.j2 reads channels of a row: as f32 or rounded to `narrow`; word: what is read at once, "" where they come one by one."""
    plain, at_once = o.dtype is narrow and not packing, 16 // o.dtype.nbytes
    element = f"p[c*{ctext.dim(o.layout.strides[3])}]" if plain else _element(o, packing)
    each = "w.of[j]" if plain or o.dtype is DType.F32 else f"rlx_widen_{o.dtype.text}(w.of[j])"
    rounded = "%s" if narrow is None or plain else f"rlx_round_{narrow.text}(%s)"
    return {"word": WORDS.get(o.dtype, "") if not packing and _in_words(o, width, at_once) else "", "at_once": at_once, "each": rounded % each, "element": rounded % element, "width": ctext.dim(width)}


def _in_words(o: Operand, width: Dim, n: int) -> bool:
    """Whether channels lie side by side, and every n-th at a multiple of n."""
    return o.layout.strides[3] == 1 and all(divides(n, d) for d in (width, o.layout.offset, *o.layout.strides[:3], *o.steps))
