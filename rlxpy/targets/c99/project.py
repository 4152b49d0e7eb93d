"""The C99 target: header, source, weights, recorded runs, a test that compares with them, and a Makefile."""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

import rlxpy
from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.kernel import Operand, results
from rlxpy.backends.templates import trimmed
from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import lower, weights_of
from rlxpy.extend.plan import Plan, Space
from rlxpy.extend.target import Content, Example
from rlxpy.frozen import dataclass
from rlxpy.fusion.plan import up
from rlxpy.ir.constant import Constant
from rlxpy.ir.dtypes import Array, DType, dtype
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.layout import row_major
from rlxpy.ir.op import Op
from rlxpy.targets.c99.library import spec
from rlxpy.targets.c99.prelude import prelude
from rlxpy.targets.c99.program import Places, Writer
from rlxpy.targets.c99.text import literal
from rlxpy.targets.signature import Signature, as_bytes, ascii_only, check_types, file_name, laid_out, quoted

ALIGN_NBYTES = 64
MOST_WRITTEN = 1024  # elements of a constant that is written in the source; a larger one lies among the weights


@dataclass(frozen=True)
class C99:
    """Everything that a C99 compiler and a mathematics library need.

    weights: "packed" leaves quantised ones as they are, "dense" unpacks them into the project's file: larger, and faster to run."""

    name: str = "c99"
    doc: str = "a library in portable C99 with its weights, a Makefile and a test of recorded runs"
    weights: str = "packed"

    def files(self, graph: Graph, params: Mapping[str, Array], examples: Sequence[Example]) -> Mapping[str, Content]:
        check_types(self.name, graph)
        weights = weights_of(graph, params)
        plan, hoisted, _ = lower(graph, spec(), CompileOptions(weights=self.weights, debug=True))
        runtime = {**weights, **{h.name: h.compute(weights) for h in hoisted}}
        source = _Source(plan, file_name(graph.name))
        p, text = source.prefix, source.text(runtime)
        return {f"{p}.h": source.header(), f"{p}.c": text, f"{p}_test.c": source.signature.test(examples), "Makefile": trimmed("c99/Makefile.j2", p=p),
                f"{p}.weights": laid_out(source.blob), f"{p}.examples": [as_bytes(a) for e in examples for a in (*e.inputs, *e.outputs)]}


def _declared(run: str, params: Sequence[str]) -> list[str]:
    """The model's memory as far as a run needs it, and a word for the compiler about parameters that it does not."""
    used = set(re.findall(r"\w+", re.sub(r"/\*.*?\*/", "", run)))
    memory = {"weights": "const unsigned char *const weights = m->weights;", "arena": "unsigned char *const arena = m->arena;", "state": "unsigned char *const state = m->state;"}
    lines = [line for name, line in memory.items() if name in used]
    return [*lines, *(f"(void){name};" for name in params if name not in used and not (name == "m" and lines))]







@dataclass
class _Source:
    """What is gathered while the files are written.  `blob`: arrays of the weights' file, by offset."""

    plan: Plan
    prefix: str
    blob: dict[int, Array] = field(default_factory=dict)
    constants: list[str] = field(default_factory=list)
    _written: dict[Constant, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.plan.graph
        self.signature = Signature(graph, self.prefix)
        self.inputs, self.outputs = self.signature.inputs, self.signature.outputs
        self.swapped = [(new, state) for new, state in self.plan.commits if self.plan.buffer(new).space is Space.STATE]  # read before any is written
        self.arena_nbytes = self.plan.arena_nbytes + sum(up(graph.type(new).max_nbytes, ALIGN_NBYTES) for new, _ in self.swapped)

    # ---- source and header
    def text(self, weights: Mapping[str, Array]) -> str:
        plan, writer = self.plan, Writer(self._literal)
        checks = self.signature.checks(writer.failures)
        lent = {b: self.outputs[k] for k, b in reversed(list(enumerate(results(plan)))) if b >= 0}
        given = {plan.places[n.refs[0]].buffer: name for n, name in zip(plan.graph.inputs, self.inputs, strict=True)} | lent
        given |= {plan.places[n.refs[0]].buffer: self._weight(weights[n.name]) for n in plan.graph.params}
        given |= {plan.places[n.refs[0]].buffer: self._literal(n) for n in plan.graph if n.op is Op.CONST}
        places = Places(given)
        run = [*checks, *writer.steps(plan, places), *self._results(writer, places), *self._commits(writer, places)]
        run = [*_declared("\n".join(run), self.signature.parameters), *run]
        messages = ["fine", *writer.failures, "no memory", "the weights' file cannot be read, or is too short"]
        body = "\n".join([*writer.functions.values(), *run])
        return ascii_only(trimmed("c99/model.c.j2", p=self.prefix, guard=self.signature.guard, title=ctext.comment(plan.graph.name), version=rlxpy.__version__, prelude=prelude(body),
                              local="RLX_LOCAL" in body, constants=self.constants, functions=writer.functions.values(), signature=self.signature.text, run=run,
                              no_memory=len(messages) - 2, no_weights=len(messages) - 1, messages=map(quoted, messages)))

    def header(self) -> str:
        graph, signature = self.plan.graph, self.signature
        weights = max((at + a.nbytes for at, a in self.blob.items()), default=0)
        return ascii_only(trimmed("c99/model.h.j2", p=self.prefix, guard=self.signature.guard, title=ctext.comment(graph.name), shapes=signature.shapes, usage=signature.usage,
                              signature=self.signature.text, weights_nbytes=weights, arena_nbytes=self.arena_nbytes, state_nbytes=self.plan.nbytes[Space.STATE]))

    # ---- lines of a run
    def _results(self, writer: Writer, places: Places) -> list[str]:
        """What does not lie in the caller's arrays already."""
        plan, lines = self.plan, list[str]()
        for r, name, buffer in zip(plan.graph.outputs, self.outputs, results(plan), strict=True):
            value = places.operand(plan, r)
            if buffer < 0 or places.given[buffer] != name:
                lines.append(writer.copy(value, _row_major(value, name), plan.graph[r]))
        return lines

    def _commits(self, writer: Writer, places: Places) -> list[str]:
        plan, lines, end = self.plan, list[str](), self.plan.arena_nbytes
        moved = dict[Ref, Operand]()
        for new, _ in self.swapped:
            value = places.operand(plan, new)
            moved[new] = _row_major(value, f"({value.c} *)(arena + {end})")
            lines.append(writer.copy(value, moved[new], plan.graph[new]))
            end += up(plan.graph.type(new).max_nbytes, ALIGN_NBYTES)
        return lines + [writer.copy(moved.get(new) or places.operand(plan, new), places.operand(plan, state), plan.graph[new]) for new, state in plan.commits]

    # ---- weights and constants
    def _weight(self, array: Array) -> str:
        offset = up(max((at + a.nbytes for at, a in self.blob.items()), default=0), ALIGN_NBYTES)
        self.blob[offset] = array
        return f"(const {ctext.storage(dtype(array.dtype))} *)(weights + {offset})"

    def _literal(self, n: Node) -> str:
        value: Constant = n.attrs.value  # type: ignore[attr-defined]
        if value not in self._written:
            self._written[value] = self._weight(value.array) if value.array.size > MOST_WRITTEN else self._constant(value)
        return self._written[value]

    def _constant(self, value: Constant) -> str:
        d, name = value.dtype, f"constant_{len(self.constants)}"
        kept = value.array if d in (DType.F32, DType.F64) else value.array.view(np.uint8) if d.bits <= 8 and d.is_float else value.array.view(np.uint16) if d.is_float else value.array
        shown = [literal(v, d) if d in (DType.F32, DType.F64) or d.is_integer else str(int(v)) for v in kept.reshape(-1)]
        self.constants.append(f"static const {ctext.storage(d)} {name}[] = {{{', '.join(shown) or '0'}}};")
        return name



def _row_major(o: Operand, pointer: str) -> Operand:
    return replace(o, layout=row_major(o.shape), pointer=pointer)

