"""The op table for readers: every row as facts, and what a lowering makes of an example."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from rlxpy.errors import InputError, RlxError, nearest
from rlxpy.frozen import dataclass
from rlxpy.fusion.rebuild import rebuild
from rlxpy.ir import row as R
from rlxpy.ir.builder import Builder
from rlxpy.ir.dtypes import DType
from rlxpy.ir.extension import registered_ops
from rlxpy.ir.graph import Graph
from rlxpy.ir.op import Op

CELLS = ("vjp", "jvp", "vmap", "lower")
SETS = {R.FLOAT: "float", R.INTEGER: "integer", R.BOOL: "bool", R.REAL: "real", R.COMPLEX: "complex", R.NUMBER: "number", R.ANYTHING: "any",
        R.BITS: "integer or bool", R.INDEX: "index",
        R.FLOAT | R.BOOL: "float or bool", R.FLOAT | R.COMPLEX: "float or complex"}
FULL, OWED = "yes", "owed"


@dataclass(frozen=True)
class OpFacts:
    """attrs: "name: type = default".  dtypes: what each input accepts, the last one repeats.  cells: "yes", "owed", or why there is none."""

    name: str
    inputs: str
    attrs: tuple[str, ...]
    dtypes: tuple[str, ...]
    elementwise: bool
    cells: Mapping[str, str]
    doc: str
    extension: bool

    @property
    def signature(self) -> str:
        """As the text form writes a call: softmax x {axis: int = -1}."""
        return f"{self.name} ({self.inputs} input{'s' * (self.inputs != '1')})" + (f" {{{', '.join(self.attrs)}}}" if self.attrs else "")


def op_table() -> tuple[OpFacts, ...]:
    """Every built-in op in the table's order, then registered extensions."""
    return (*(_facts(op.text, op.row, False) for op in Op if op is not Op.CUSTOM),
            *(_facts(name, ext.row, True) for name, ext in sorted(registered_ops().items())))


def op_facts(name: str) -> OpFacts:
    """Raises InputError naming what is near."""
    table = {f.name: f for f in op_table()}
    if name not in table:
        own = "; one of a package is there when the package is installed, or what registers it is run: rlx check NAME --module FILE" if "." in name else ""
        raise InputError(f"no op {name!r}", why=f"there are {len(table)}", fix=f"near it: {nearest(name, list(table))}{own}")
    return table[name]


def _facts(name: str, row: R.OpRow, extension: bool) -> OpFacts:
    least, most = row.arity if isinstance(row.arity, tuple) else (row.arity, row.arity)
    inputs = str(least) if least == most else f"{least} or more" if most is None else f"{least} to {most}"
    accepted = tuple(dict.fromkeys(map(_set_name, row.dtypes))) if len(row.dtypes) == 1 else tuple(map(_set_name, row.dtypes))
    return OpFacts(name, inputs, tuple(_attr(f) for f in fields(row.attrs)), accepted if most != 0 else (), bool(row.scalar),
                   {c: _cell(getattr(row, c)) for c in CELLS}, row.doc, extension)


def _attr(f: Any) -> str:
    kind = f.type if isinstance(f.type, str) else f.type.__name__
    return f"{f.name}: {kind}" + ("" if f.default is MISSING else f" = {f.default!r}")


def _set_name(accepted: frozenset[DType]) -> str:
    return SETS.get(accepted) or ", ".join(d.text for d in DType if d in accepted)


def _cell(cell: Any) -> str:
    return cell.reason if isinstance(cell, R.Why) else OWED if cell is None else FULL


# ---- lowerings, shown -------------------------------------------------------------------------------------------------
QKV = {"q": (1, 4, 3, 8), "k": (1, 2, 5, 8), "v": (1, 2, 5, 8)}
EXAMPLES: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {  # inputs and parameters that say more than x0, x1.. : f32[2,3]
    "softmax": ({"x": (2, 5)}, {}),
    "log_softmax": ({"x": (2, 5)}, {}),
    "layer_norm": ({"x": (2, 5), "scale": (5,), "bias": (5,)}, {"eps": 1e-5}),
    "rms_norm": ({"x": (2, 5), "scale": (5,)}, {"eps": 1e-5}),
    "attention": (QKV, {"scale": 0.25, "mask": "causal"}),
    "rope": ({"x": (1, 2, 3, 8), "position": ((3,), "i64")}, {}),
    "random_bits": ({"key": ((2,), "u32")}, {"shape": (2, 3)}),
    "windows": ({"x": (2, 7)}, {"axis": 1, "size": 3, "stride": 2}),
    "conv": ({"x": (1, 2, 5, 5), "w": (4, 2, 3, 3)}, {"strides": (2, 2), "low": (1, 1), "high": (1, 1), "dilation": (1, 1)}),
    "conv_transpose": ({"x": (1, 4, 3, 3), "w": (4, 2, 3, 3)}, {"shape": (5, 5), "strides": (2, 2), "low": (1, 1), "high": (1, 1), "dilation": (1, 1)}),
    **dict.fromkeys(("max_pool", "avg_pool"), ({"x": (1, 2, 5, 5)}, {"size": (2, 2), "strides": (2, 2), "low": (0, 0), "high": (1, 1), "dilation": (1, 1)})),
    "resize": ({"x": (1, 2, 3, 3)}, {"shape": (5, 5), "method": "linear"}),
    "qmatmul": ({"x": (2, 64), "w": ((3, 68), "u8")}, {"encoding": "q8_0", "shape": (3, 64)}),
}


def example(name: str) -> Graph | None:
    """The op alone, on small inputs; None when nobody wrote an example and plain f32[2,3] inputs do not fit."""
    row = registered_ops()[name].row if name in registered_ops() else Op[name.upper()].row
    least = row.arity[0] if isinstance(row.arity, tuple) else row.arity
    inputs, attrs = EXAMPLES.get(name, ({f"x{i}": (2, 3) for i in range(least)}, {}))
    b = Builder(name.replace(".", "_"))
    try:
        xs = [b.input(n, *(t if isinstance(t[-1], str) else (t,))) for n, t in inputs.items()]
        made = b.custom_op(name, *xs, **attrs) if name in registered_ops() else b.emit(Op[name.upper()], *xs, **attrs)
        return b.finish(*(made if isinstance(made, tuple) else (made,)))
    except RlxError:
        return None


def lowered(graph: Graph) -> Graph:
    """Every node of an example replaced by its lowering, once."""
    return rebuild(graph, lambda b, n, xs, new: n.row.lower(*xs, **n.attrs.params()) if n.inputs and callable(n.row.lower) else None, "lower")
