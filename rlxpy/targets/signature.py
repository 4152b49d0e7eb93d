"""The C interface of a project: names of its functions' parameters, what is checked of them, and a test of recorded runs."""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.unit import unused, word
from rlxpy.backends.templates import trimmed
from rlxpy.errors import LegaliseError
from rlxpy.extend.target import Example
from rlxpy.ir.dims import Symbol
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.graph import Graph
from rlxpy.ir.op import Op

PUBLIC = {"f32": "float", "f64": "double", **{f"{s}{bits}": f"{'u' * (s == 'u')}int{bits}_t" for s in "iu" for bits in (8, 16, 32, 64)}}
ALLOWED = {DType.F64: 1e-9, DType.F32: 1e-4, DType.F16: 4e-3, DType.BF16: 3e-2, DType.F8E4M3FN: 0.3, DType.F8E5M2: 0.6, DType.F4E2M1: 1.0}  # of the greatest magnitude


class Signature:
    """Of `{prefix}_run`: sizes of the graph's symbols in the order of their names, then inputs, then outputs, as pointers."""

    def __init__(self, graph: Graph, prefix: str) -> None:
        self.graph, self.prefix = graph, prefix
        taken = set[str]()
        self.inputs = [unused(f"in_{word(n.name)}", taken) for n in graph.inputs]
        self.outputs = [unused(f"out_{word(name)}", taken) for name in graph.output_names]
        self.symbols: list[Symbol] = [s for _, s in sorted(graph.symbols.items())]
        sizes = [f"int64_t {ctext.size_name(s.name)}" for s in self.symbols]
        ins = [f"const {public(n.type.dtype)} *{name}" for n, name in zip(graph.inputs, self.inputs, strict=True)]
        outs = [f"{public(t.dtype)} *{name}" for t, name in zip(graph.output_types, self.outputs, strict=True)]
        self.parameters = ("m", *(ctext.size_name(s.name) for s in self.symbols), *self.inputs, *self.outputs)
        self.text = ", ".join((f"{prefix}_model *m", *sizes, *ins, *outs))

    @property
    def guard(self) -> str:
        return self.prefix.upper()

    @property
    def usage(self) -> str:
        """What follows the model in a call."""
        return "".join(f", {name}" for name in self.parameters[1:])

    @property
    def shapes(self) -> list[str]:
        """A line for each array, and one for each size."""
        types = [(c, n.type) for n, c in zip(self.graph.inputs, self.inputs, strict=True)] + list(zip(self.outputs, self.graph.output_types, strict=True))
        sizes = [f"{ctext.size_name(s.name)}: {s.lo}..{s.hi}" + (f" in steps of {s.step}" if s.step > 1 else "") for s in self.symbols]
        return [ctext.comment(ascii_only(line)) for line in (*(f"{c}: {t}" for c, t in types), *sizes)]

    def checks(self, failures: list[str]) -> list[str]:
        """Lines that refuse sizes outside their ranges; what each code means is added to `failures`."""
        lines = []
        for s in self.symbols:
            name = ctext.size_name(s.name)
            failures.append(f"{name} is outside {s.lo}..{s.hi}" + (f", or no multiple of {s.step}" if s.step > 1 else ""))
            steps = f" || {name} % {s.step} != 0" if s.step > 1 else ""
            lines.append(f"if ({name} < {s.lo} || {name} > {s.hi}{steps}) return {len(failures)};")
        return lines

    def test(self, examples: Sequence[Example]) -> str:
        """C99 that runs recorded inputs and compares with recorded outputs."""
        graph = self.graph
        cases = [{"call": ", ".join(("m", *(str(e.sizes[s.name]) for s in self.symbols), *self.inputs, *self.outputs)),
                  "inputs": [shown(name, n.name, n.type.dtype, a) for name, n, a in zip(self.inputs, graph.inputs, e.inputs, strict=True)],
                  "outputs": [shown(name, label, t.dtype, a) for name, label, t, a in zip(self.outputs, graph.output_names, graph.output_types, e.outputs, strict=True)]} for e in examples]
        return ascii_only(trimmed("c99/test.c.j2", p=self.prefix, examples=cases, kinds=[f"rlx_{d.text}" for d in DType if (d.bits >= 8 and not d.is_complex) or d is DType.F4E2M1]))


def check_types(target: str, graph: Graph) -> None:
    """All leaves and results at once."""
    found = [(f"{n.op.text} {n.name!r}", n.type, n.where) for n in graph if n.op in (Op.INPUT, Op.PARAM, Op.STATE)]
    found += [(f"output {name!r}", graph.type(r), graph[r].where) for name, r in zip(graph.output_names, graph.outputs, strict=True)]
    bad = [(what, t, where) for what, t, where in found if t.dtype.is_complex]
    if bad:
        raise LegaliseError(f"{target} has no type for {len(bad)} values", where=bad[0][2], why="\n    ".join(f"{what} : {t}" for what, t, _ in bad), fix="pass real and imaginary parts")


def file_name(name: str) -> str:
    text = ascii_only(word(name)).strip("_")
    return text if re.match(r"[A-Za-z]", text) else f"model_{text}".rstrip("_")


def ascii_only(text: str) -> str:
    """Names that another alphabet spells, as every compiler reads them."""
    return re.sub(r"[^\x00-\x7f]", lambda m: f"_u{ord(m[0]):04x}", text)


def as_bytes(a: Array) -> memoryview:
    return np.ascontiguousarray(a).reshape(-1).view(np.uint8).data


def laid_out(arrays: Mapping[int, Array]) -> list[bytes | memoryview]:
    """Each at its offset."""
    pieces: list[bytes | memoryview] = []
    end = 0
    for offset, a in arrays.items():
        pieces += [bytes(offset - end), as_bytes(a)]
        end = offset + a.nbytes
    return pieces


def public(d: DType) -> str:
    return PUBLIC[ctext.storage(d)]


def shown(name: str, label: str, d: DType, a: Array) -> dict[str, Any]:
    return {"name": name, "label": quoted(label), "c": public(d), "kind": d.text, "numel": a.size, "nbytes": a.nbytes, "allowed": ALLOWED.get(d, 0)}


def quoted(text: str) -> str:
    """A C string, short enough for any compiler."""
    return '"' + ctext.comment(text)[:400].replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?") + '"'
