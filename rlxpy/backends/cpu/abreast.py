"""Products of one left operand as one launch: its stages once, then the columns of all products, shared out together."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlxpy.backends.cpu.elementwise import body_of
from rlxpy.backends.cpu.kernel import Abreast, Emitter, Kernel, Site
from rlxpy.ir.attrs import Fused
from rlxpy.ir.parts import part


def emitter(each: Emitter) -> Emitter:
    """each: of a single product with its epilogue."""
    def emit(site: Site) -> tuple[Kernel | Abreast, ...]:
        sites = tuple(_products(site))
        made = [k if isinstance(k, tuple) else (k,) for k in map(each, sites)]
        shared = made[0][:-1]
        if any(stages[:-1] != shared for stages in made):  # a product lays something out for itself, in memory that the next one takes, too
            return tuple(k for stages in made for k in stages)
        last = tuple(k for *_, k in made if isinstance(k, Kernel))
        return (*shared, Abreast(last, tuple(s.node for s in sites)))
    return emit


def _products(site: Site) -> Iterator[Site]:
    """Each as if it stood alone, with the memory that they share."""
    body = body_of(site)
    inputs = {n.name: k for k, n in enumerate(body.inputs)}
    for out, r in zip(site.outs, body.outputs, strict=True):
        alone = part(body, (r,), "matmul")
        at = [inputs[n.name] for n in alone.inputs]
        node = replace(site.node, inputs=tuple(site.node.inputs[k] for k in at), types=(body.type(r),), attrs=Fused("matmul", alone))
        yield replace(site, node=node, ins=tuple(site.ins[k] for k in at), outs=(out,))
