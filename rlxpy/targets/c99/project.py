"""The C99 target: header, source, weights, recorded runs, a test that compares with them, and a Makefile."""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

import rlxpy
from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.kernel import Operand, results
from rlxpy.backends.cpu.unit import unused, word
from rlxpy.backends.templates import trimmed
from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import lower, weights_of
from rlxpy.errors import LegaliseError
from rlxpy.extend.plan import Plan, Space
from rlxpy.extend.target import Content, Example
from rlxpy.frozen import dataclass
from rlxpy.fusion.plan import up
from rlxpy.ir.constant import Constant
from rlxpy.ir.dims import Symbol
from rlxpy.ir.dtypes import Array, DType, dtype
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.layout import row_major
from rlxpy.ir.op import Op
from rlxpy.targets.c99.library import spec
from rlxpy.targets.c99.prelude import prelude
from rlxpy.targets.c99.program import Places, Writer
from rlxpy.targets.c99.text import literal

ALIGN_NBYTES = 64
MOST_WRITTEN = 1024  # elements of a constant that is written in the source; a larger one lies among the weights
PUBLIC = {"f32": "float", "f64": "double", **{f"{s}{bits}": f"{'u' * (s == 'u')}int{bits}_t" for s in "iu" for bits in (8, 16, 32, 64)}}
ALLOWED = {DType.F64: 1e-9, DType.F32: 1e-4, DType.F16: 4e-3, DType.BF16: 3e-2, DType.F8E4M3FN: 0.3, DType.F8E5M2: 0.6, DType.F4E2M1: 1.0}  # of the greatest magnitude


@dataclass(frozen=True)
class C99:
    """Everything that a C99 compiler and a mathematics library need.

    weights: "packed" leaves quantised ones as they are, "dense" unpacks them into the project's file: larger, and faster to run."""

    name: str = "c99"
    doc: str = "a library in portable C99 with its weights, a Makefile and a test of recorded runs"
    weights: str = "packed"

    def files(self, graph: Graph, params: Mapping[str, Array], examples: Sequence[Example]) -> Mapping[str, Content]:
        _check_types(graph)
        weights = weights_of(graph, params)
        plan, hoisted, _ = lower(graph, spec(), CompileOptions(weights=self.weights, debug=True))
        runtime = {**weights, **{h.name: h.compute(weights) for h in hoisted}}
        source = _Source(plan, _file_name(graph.name))
        p, text = source.prefix, source.text(runtime)
        return {f"{p}.h": source.header(), f"{p}.c": text, f"{p}_test.c": source.test(examples), "Makefile": trimmed("c99/Makefile.j2", p=p),
                f"{p}.weights": _laid_out(source.blob), f"{p}.examples": [_bytes(a) for e in examples for a in (*e.inputs, *e.outputs)]}


def _declared(run: str, params: Sequence[str]) -> list[str]:
    """The model's memory as far as a run needs it, and a word for the compiler about parameters that it does not."""
    used = set(re.findall(r"\w+", re.sub(r"/\*.*?\*/", "", run)))
    memory = {"weights": "const unsigned char *const weights = m->weights;", "arena": "unsigned char *const arena = m->arena;", "state": "unsigned char *const state = m->state;"}
    lines = [line for name, line in memory.items() if name in used]
    return [*lines, *(f"(void){name};" for name in params if name not in used and not (name == "m" and lines))]


def _check_types(graph: Graph) -> None:
    """All leaves and results at once."""
    found = [(f"{n.op.text} {n.name!r}", n.type, n.where) for n in graph if n.op in (Op.INPUT, Op.PARAM, Op.STATE)]
    found += [(f"output {name!r}", graph.type(r), graph[r].where) for name, r in zip(graph.output_names, graph.outputs, strict=True)]
    bad = [(what, t, where) for what, t, where in found if t.dtype.is_complex]
    if bad:
        raise LegaliseError(f"c99 has no type for {len(bad)} values", where=bad[0][2], why="\n    ".join(f"{what} : {t}" for what, t, _ in bad), fix="pass real and imaginary parts")


def _file_name(name: str) -> str:
    text = _ascii(word(name)).strip("_")
    return text if re.match(r"[A-Za-z]", text) else f"model_{text}".rstrip("_")


def _ascii(text: str) -> str:
    """Names that another alphabet spells, as every compiler reads them."""
    return re.sub(r"[^\x00-\x7f]", lambda m: f"_u{ord(m[0]):04x}", text)


def _bytes(a: Array) -> memoryview:
    return np.ascontiguousarray(a).reshape(-1).view(np.uint8).data


def _laid_out(arrays: Mapping[int, Array]) -> list[bytes | memoryview]:
    """Each at its offset."""
    pieces: list[bytes | memoryview] = []
    end = 0
    for offset, a in arrays.items():
        pieces += [bytes(offset - end), _bytes(a)]
        end = offset + a.nbytes
    return pieces


@dataclass
class _Source:
    """What is gathered while the files are written.  `blob`: arrays of the weights' file, by offset."""

    plan: Plan
    prefix: str
    blob: dict[int, Array] = field(default_factory=dict)
    constants: list[str] = field(default_factory=list)
    _written: dict[Constant, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph, taken = self.plan.graph, set[str]()
        self.inputs = [unused(f"in_{word(n.name)}", taken) for n in graph.inputs]
        self.outputs = [unused(f"out_{word(name)}", taken) for name in graph.output_names]
        self.symbols: list[Symbol] = [s for _, s in sorted(graph.symbols.items())]
        sizes = [f"int64_t {ctext.size_name(s.name)}" for s in self.symbols]
        ins = [f"const {_public(n.type.dtype)} *{name}" for n, name in zip(graph.inputs, self.inputs, strict=True)]
        outs = [f"{_public(t.dtype)} *{name}" for t, name in zip(graph.output_types, self.outputs, strict=True)]
        self.signature = ", ".join((f"{self.prefix}_model *m", *sizes, *ins, *outs))
        self.swapped = [(new, state) for new, state in self.plan.commits if self.plan.buffer(new).space is Space.STATE]  # read before any is written
        self.arena_nbytes = self.plan.arena_nbytes + sum(up(graph.type(new).max_nbytes, ALIGN_NBYTES) for new, _ in self.swapped)

    @property
    def guard(self) -> str:
        return self.prefix.upper()

    # ---- the three texts
    def text(self, weights: Mapping[str, Array]) -> str:
        plan, writer = self.plan, Writer(self._literal)
        checks = [line for s in self.symbols for line in self._check(s, writer)]
        lent = {b: self.outputs[k] for k, b in reversed(list(enumerate(results(plan)))) if b >= 0}
        given = {plan.places[n.refs[0]].buffer: name for n, name in zip(plan.graph.inputs, self.inputs, strict=True)} | lent
        given |= {plan.places[n.refs[0]].buffer: self._weight(weights[n.name]) for n in plan.graph.params}
        given |= {plan.places[n.refs[0]].buffer: self._literal(n) for n in plan.graph if n.op is Op.CONST}
        places = Places(given)
        run = [*checks, *writer.steps(plan, places), *self._results(writer, places), *self._commits(writer, places)]
        run = [*_declared("\n".join(run), ("m", *(ctext.size_name(s.name) for s in self.symbols), *self.inputs, *self.outputs)), *run]
        messages = ["fine", *writer.failures, "no memory", "the weights' file cannot be read, or is too short"]
        body = "\n".join([*writer.functions.values(), *run])
        return _ascii(trimmed("c99/model.c.j2", p=self.prefix, guard=self.guard, title=ctext.comment(plan.graph.name), version=rlxpy.__version__, prelude=prelude(body), local="RLX_LOCAL" in body,
                              constants=self.constants, functions=writer.functions.values(), signature=self.signature, run=run,
                              no_memory=len(messages) - 2, no_weights=len(messages) - 1, messages=map(_quoted, messages)))

    def header(self) -> str:
        graph = self.plan.graph
        shapes = [f"{name}: {t}" for name, t in (*((f"{c}", n.type) for n, c in zip(graph.inputs, self.inputs, strict=True)), *zip(self.outputs, graph.output_types, strict=True))]
        sizes = [f"{ctext.size_name(s.name)}: {s.lo}..{s.hi}" + (f" in steps of {s.step}" if s.step > 1 else "") for s in self.symbols]
        usage = "".join(f", {name}" for name in (*(ctext.size_name(s.name) for s in self.symbols), *self.inputs, *self.outputs))
        weights = max((at + a.nbytes for at, a in self.blob.items()), default=0)
        return _ascii(trimmed("c99/model.h.j2", p=self.prefix, guard=self.guard, title=ctext.comment(graph.name), shapes=[ctext.comment(_ascii(line)) for line in (*shapes, *sizes)],
                              usage=usage, signature=self.signature, weights_nbytes=weights, arena_nbytes=self.arena_nbytes, state_nbytes=self.plan.nbytes[Space.STATE]))

    def test(self, examples: Sequence[Example]) -> str:
        graph = self.plan.graph
        shown = [{"call": ", ".join(("m", *(str(e.sizes[s.name]) for s in self.symbols), *self.inputs, *self.outputs)),
                  "inputs": [_value(name, n.name, n.type.dtype, a) for name, n, a in zip(self.inputs, graph.inputs, e.inputs, strict=True)],
                  "outputs": [_value(name, label, t.dtype, a) for name, label, t, a in zip(self.outputs, graph.output_names, graph.output_types, e.outputs, strict=True)]} for e in examples]
        return _ascii(trimmed("c99/test.c.j2", p=self.prefix, examples=shown, kinds=[f"rlx_{d.text}" for d in DType if (d.bits >= 8 and not d.is_complex) or d is DType.F4E2M1]))

    # ---- lines of a run
    def _check(self, s: Symbol, writer: Writer) -> list[str]:
        name = ctext.size_name(s.name)
        writer.failures.append(f"{name} is outside {s.lo}..{s.hi}" + (f", or no multiple of {s.step}" if s.step > 1 else ""))
        steps = f" || {name} % {s.step} != 0" if s.step > 1 else ""
        return [f"if ({name} < {s.lo} || {name} > {s.hi}{steps}) return {len(writer.failures)};"]

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


def _public(d: DType) -> str:
    return PUBLIC[ctext.storage(d)]


def _row_major(o: Operand, pointer: str) -> Operand:
    return replace(o, layout=row_major(o.shape), pointer=pointer)


def _value(name: str, label: str, d: DType, a: Array) -> dict[str, Any]:
    return {"name": name, "label": _quoted(label), "c": _public(d), "kind": d.text, "numel": a.size, "nbytes": a.nbytes, "allowed": ALLOWED.get(d, 0)}


def _quoted(text: str) -> str:
    """A C string, short enough for any compiler."""
    return '"' + ctext.comment(text)[:400].replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?") + '"'
