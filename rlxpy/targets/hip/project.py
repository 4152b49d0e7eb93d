"""The HIP target: kernels, the C++ that launches them, weights, recorded runs, a test that compares with them, and a Makefile."""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

import rlxpy
from rlxpy.backends.cpu import ctext
from rlxpy.backends.gpu.api import GpuTarget
from rlxpy.backends.gpu.backend import emitter_of, spec_of
from rlxpy.backends.gpu.hip import OPTIONS
from rlxpy.backends.gpu.kernel import Kernel, Room
from rlxpy.backends.gpu.program import ALIGN_NBYTES, Launch, Program, write
from rlxpy.backends.gpu.raw import GpuKernel
from rlxpy.backends.gpu.vendor import ROCM
from rlxpy.backends.templates import trimmed
from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import lower, weights_of
from rlxpy.extend.backend import BackendSpec, Device
from rlxpy.extend.kernels import Refusal
from rlxpy.extend.plan import Plan, Space, Step
from rlxpy.extend.target import Content, Example
from rlxpy.frozen import dataclass
from rlxpy.fusion.plan import up
from rlxpy.ir.attrs import Custom
from rlxpy.ir.dtypes import Array
from rlxpy.ir.extension import extension
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import Op
from rlxpy.targets.signature import Signature, as_bytes, check_types, file_name, laid_out, quoted

PIECE = 8000  # characters of a string literal: compilers take far longer ones, editors do not


@cache
def spec() -> BackendSpec:
    """Rows for any AMD device, and no host tier: a project has no Python behind it."""
    return replace(spec_of("rocm", GpuTarget("amd", "any", 64)), device=Device("hip"), native=None, host=None, staged=lambda graph, node: None, extensions=_not_carried)


def _not_carried(graph: Graph, node: Node) -> Refusal | None:
    """In place of an extension's kernel for rocm: without a lowering it is refused, and the kernel named as the reason."""
    kernel = extension(node.kind).kernels.get(ROCM.device) if isinstance(node.attrs, Custom) else None
    where = f" ({kernel.where})" if isinstance(kernel, GpuKernel) else ""
    return Refusal((f"{node.label}.{ROCM.device}{where}: a project does not carry raw kernels, which device {ROCM.device} launches",)) if kernel else None


@dataclass(frozen=True)
class Hip:
    """What an AMD GPU's runtime and a C++ compiler need.

    weights: "packed" leaves quantised ones as they are, "dense" unpacks them into the project's file."""

    name: str = "hip"
    doc: str = "HIP kernels with the C++ that launches them, a C interface, weights, a Makefile and a test of recorded runs"
    weights: str = "packed"

    def files(self, graph: Graph, params: Mapping[str, Array], examples: Sequence[Example]) -> Mapping[str, Content]:
        check_types(self.name, graph)
        weights = weights_of(graph, params)
        plan, hoisted, _ = lower(graph, spec(), CompileOptions(weights=self.weights, debug=True))
        runtime = {**weights, **{h.name: h.compute(weights) for h in hoisted}}
        p = file_name(graph.name)
        source = _Source(plan, write(plan, emitter_of, in_order=True), Signature(plan.graph, p), runtime)
        return {f"{p}.h": source.header(), f"{p}.cpp": source.host(), f"{p}_kernels.inc": _literals(source.program.source), f"{p}_test.c": source.signature.test(examples),
                "Makefile": trimmed("hip/Makefile.j2", p=p), f"{p}.weights": laid_out(source.blob), f"{p}.examples": [as_bytes(a) for e in examples for a in (*e.inputs, *e.outputs)]}


def _literals(text: str) -> str:
    """C string literals of a text, cut at the ends of lines."""
    pieces, room = [""], PIECE
    for line in text.splitlines(keepends=True):
        if len(pieces[-1]) + len(line) > room:
            pieces.append("")
        pieces[-1] += line
    return "".join(f'R"rlx({piece})rlx"\n' for piece in pieces)


class _Source:
    """Device memory in one piece: weights, working memory, state; `at` is where each part begins, `buffers` where weights and constants lie."""

    def __init__(self, plan: Plan, program: Program, signature: Signature, weights: Mapping[str, Array]) -> None:
        self.plan, self.program, self.signature = plan, program, signature
        self.names = {name: k for k, name in enumerate(program.functions)}
        self.blob: dict[int, Array] = {}
        self.buffers: dict[int, int] = {}
        end = 0
        for n in plan.graph:
            if n.op in (Op.PARAM, Op.CONST):
                array = weights[n.name] if n.op is Op.PARAM else n.attrs.value.array  # type: ignore[attr-defined]
                self.buffers[plan.places[n.refs[0]].buffer] = end
                self.blob[end] = np.ascontiguousarray(array)
                end = up(end + array.nbytes, ALIGN_NBYTES)
        self.weights_nbytes = max((at + a.nbytes for at, a in self.blob.items()), default=0)
        parts = {"arena": plan.nbytes[Space.ARENA], "input": plan.nbytes[Space.INPUT], "undo": program.undo_nbytes, "staging": program.staging_nbytes, "notes": program.notes_nbytes,
                 "state": plan.nbytes[Space.STATE]}
        self.at = dict[str, int]()
        for name, nbytes in parts.items():
            self.at[name] = end
            end = up(end + nbytes, ALIGN_NBYTES)
        self.nbytes = end

    # ---- the texts
    def header(self) -> str:
        s = self.signature
        return trimmed("hip/model.h.j2", p=s.prefix, guard=s.guard, title=ctext.comment(self.plan.graph.name), shapes=s.shapes, usage=s.usage, signature=s.text,
                       weights_nbytes=self.weights_nbytes, arena_nbytes=self.at["state"] - self.at["arena"], state_nbytes=self.plan.nbytes[Space.STATE], functions=len(self.names) + 1)

    def host(self) -> str:
        s, failures = self.signature, list[str]()
        checks = s.checks(failures)
        codes = {code: len(failures) + k for k, code in enumerate(("out_of_range", "no_device", "no_memory", "no_weights", "no_code"), 1)}
        messages = ["fine", *failures, "an index is out of range", "the device's runtime refused something", "no memory on the device",
                    "the weights' file cannot be read, or is too short", "the kernels do not compile for this device; what its compiler says is on stderr"]
        restores = [line for r in self.program.restores for line in self._launch(r.step, r.function, r.kernel, self._words(r))]
        run = [*checks, *self._run(codes, bool(restores))]
        return trimmed("hip/model.cpp.j2", p=s.prefix, guard=s.guard, title=ctext.comment(self.plan.graph.name), version=rlxpy.__version__, functions=list(self.names), signature=s.text,
                       run=[*_unused(run, s.parameters), *run], restores=[*_unused(restores, s.parameters), *restores] if restores else [], options=OPTIONS, messages=map(quoted, messages),
                       most_words=self._most_words(), memory_nbytes=max(self.nbytes, 1), state_at=self.at["state"], **codes)

    def _most_words(self) -> int:
        """Arguments that a launch has, at most."""
        kernels = [p.kernel for p in (*self.program.launches, *self.program.restores)] + [r.kernel for r in self.program.results]
        kernels += [k for c in self.program.commits for k in (c.kernel, c.back_kernel)]
        return max((len(k.params) + len(k.sizes) for k in kernels), default=1)

    def _run(self, codes: Mapping[str, int], undoes: bool) -> list[str]:
        plan, s, program = self.plan, self.signature, self.program
        failed = f"return {codes['no_device']};"
        lines = [f"if (hipMemset({self._pointer(self._place('notes'))}, 0, {program.notes_nbytes})) {failed}"] if program.fallible else []
        for n, name in zip(plan.graph.inputs, s.inputs, strict=True):
            lines.append(self._copy(self._address(n.refs[0]), name, f"sizeof *{name} * {ctext.dim(n.type.numel)}", "TO_DEVICE", failed))
        for p in program.launches:
            lines += self._launch(p.step, p.function, p.kernel, self._words(p))
        for r in program.results:
            lines += self._launch(None, r.function, r.kernel, [self._address(r.ref), self._place("staging", r.offset)])
        if program.fallible:
            undo = f"rlx_restore({', '.join(s.parameters)}); " if undoes else ""
            lines += ["uint64_t fault = 0;", self._copy(self._place("notes"), "&fault", "sizeof fault", "TO_HOST", failed),
                      f"if (fault) {{ {undo}return {codes['out_of_range']}; }}"]
        staged = {r.ref: r.offset for r in program.results}
        for ref, name, t in zip(plan.graph.outputs, s.outputs, plan.graph.output_types, strict=True):
            where = self._place("staging", staged[ref]) if ref in staged else self._address(ref)
            lines.append(self._copy(where, name, f"sizeof *{name} * {ctext.dim(t.numel)}", "TO_HOST", failed))
        for c in program.commits:
            lines += self._launch(None, c.function, c.kernel, [self._address(c.new), self._place("staging", c.offset)])
            lines += self._launch(None, c.back, c.back_kernel, [self._place("staging", c.offset), self._address(c.old)])
        return lines

    # ---- lines of a run
    def _launch(self, step: Step | None, function: str, k: Kernel, words: Sequence[str]) -> list[str]:
        x, y, z = (*map(ctext.dim, k.blocks), "1", "1")[:3]
        guard = ctext.condition(step.when, step.unless) if step else ""
        given = ", ".join((*words, *(f"(uint64_t){ctext.size_name(n)}" for n in sorted(k.sizes))))
        line = f"LAUNCH({self.names[function]}, {x}, {y}, {z}, {k.threads}, (unsigned){ctext.dim(k.shared_nbytes)}, {given});"
        said = [f"/* {ctext.comment(step.node.where)} */"] if step and step.node.where else []
        return [*said, f"if ({guard}) {line}" if guard else line]

    def _words(self, p: Launch) -> list[str]:
        """What a launch is given, as C."""
        rooms = {Room.FAULT: self._place("notes"), Room.UNDO: self._place("undo", max(p.undo, 0)), Room.NOTE: self._place("notes", max(p.note, 0)), Room.NODE: str(p.step.node.id)}
        if p.step.scratch >= 0:
            rooms[Room.SCRATCH] = self._place("arena", self.plan.buffers[p.step.scratch].offset)
        return [rooms[a] if isinstance(a, Room) else self._address(a) for a in p.kernel.call]

    def _place(self, part: str, offset: int = 0) -> str:
        return f"(uint64_t)(m->memory + {self.at[part] + offset})"

    def _address(self, ref: Ref) -> str:
        place, t = self.plan.places[ref], self.plan.graph.type(ref)
        b = self.plan.buffers[place.buffer]
        start = self.buffers[place.buffer] if place.buffer in self.buffers else self.at[b.space.value] + b.offset
        more = place.layout.offset * t.dtype.nbytes
        return f"(uint64_t)(m->memory + {start}{'' if more == 0 else f' + {ctext.dim(more)}'})"

    def _pointer(self, address: str) -> str:
        return f"(void *){address}"

    def _copy(self, address: str, name: str, nbytes: str, way: str, failed: str) -> str:
        ends = (self._pointer(address), name) if way == "TO_DEVICE" else (name, self._pointer(address))
        return f"if (rlx_copy({', '.join(ends)}, {nbytes}, {way})) {failed}"


def _unused(lines: Sequence[str], parameters: Sequence[str]) -> list[str]:
    """A word for the compiler about parameters that a run does not need."""
    used = set(re.findall(r"\w+", "\n".join(lines)))
    return [f"(void){name};" for name in parameters if name not in used]

