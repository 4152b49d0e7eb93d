"""GPU kernels of Fourier transforms: a row a block, its passes in memory of the block's own."""
from __future__ import annotations

from hashlib import blake2b

from rlxpy.backends.cpu.fourier import length, points_of, real_of, transform_of
from rlxpy.backends.gpu.kernel import Kernel, Room, Site, arguments, params, symbols_used, threads_for
from rlxpy.backends.templates import render
from rlxpy.ir.dims import product, upper
from rlxpy.ir.graph import Graph, Node

SLOTS = 256  # blocks at most, each with room for a row


def emit(site: Site) -> Kernel:
    t = transform_of(site)
    T = t.real.text
    names = [f"rlx_table_{blake2b(values.encode(), digest_size=8).hexdigest()}" for values in t.tables]
    tables = tuple(f"RLX_TABLE {T} {name}[] = {{ {values} }};\n" for name, values in zip(names, t.tables, strict=True))
    text = render("gpu/fourier.j2", names=names, restrict="__restrict__", sync="__syncthreads();",
                  loop=lambda count, first=0: f"for (i64 j = {first} + threadIdx.x; j < {count}; j += blockDim.x)", **t.facts)
    return Kernel((*params(site.ins, site.out), f"{T} *work"), text, (*arguments(site.ins, site.out), Room.SCRATCH), (min(SLOTS, upper(product(t.lead))),), threads_for(t.length),
                  sizes=symbols_used(site), needs=tables)


def scratch_nbytes(graph: Graph, node: Node) -> int:
    x = graph.type(node.inputs[0])
    rows = upper(product(d for a, d in enumerate(x.shape) if a != node.attrs.axis % x.rank))  # type: ignore[attr-defined]
    return min(SLOTS, rows) * 4 * length(points_of(x, node)) * real_of(x.dtype).nbytes
