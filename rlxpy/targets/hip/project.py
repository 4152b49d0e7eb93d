"""The HIP target: kernels, the C++ that launches them, weights, recorded runs, a test that compares with them, and a Makefile."""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

import rlxpy
from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.unit import unused
from rlxpy.backends.gpu.api import GpuTarget
from rlxpy.backends.gpu.backend import emitter_of, spec_of
from rlxpy.backends.gpu.hip import OPTIONS
from rlxpy.backends.gpu.kernel import Kernel, Room
from rlxpy.backends.gpu.program import ALIGN_NBYTES, Launch, Program, RawLaunch, write
from rlxpy.backends.gpu.vendor import ROCM
from rlxpy.backends.templates import trimmed
from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import lower, weights_of
from rlxpy.errors import LegaliseError
from rlxpy.extend.backend import BackendSpec, Device
from rlxpy.extend.plan import Plan, Space, Step
from rlxpy.extend.target import Content, Example
from rlxpy.frozen import dataclass
from rlxpy.fusion.plan import up
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph, Ref
from rlxpy.ir.op import Op
from rlxpy.targets.hip.raw import MOST_ABI1_NBYTES, carried, launched, word
from rlxpy.targets.signature import Signature, as_bytes, check_types, file_name, laid_out, quoted

ANY = "any"
PIECE = 8000  # characters of a string literal: compilers take far longer ones, editors do not


@cache
def spec() -> BackendSpec:
    """Rows for any AMD device, and no host tier: a project has no Python behind it."""
    usual = spec_of(ROCM.device, GpuTarget("amd", ANY, 64))
    known = {name: value for name, value in usual.facts.items() if name not in ("arch", "wave")}  # of the card that it will find
    return replace(usual, device=Device("hip"), native=None, host=None, staged=lambda graph, node: None, extensions=partial(carried, known))


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
        return {f"{p}.h": source.header(), f"{p}.cpp": source.host(), **{m.file: _literals(m.source) for m in source.modules}, f"{p}_test.c": source.signature.test(examples),
                "Makefile": trimmed("hip/Makefile.j2", p=p, modules=" ".join(m.file for m in source.modules)),
                f"{p}.weights": laid_out(source.blob), f"{p}.examples": [as_bytes(a) for e in examples for a in (*e.inputs, *e.outputs)]}


def _literals(text: str) -> str:
    """C string literals of a text, cut at the ends of lines."""
    pieces, room = [""], PIECE
    for line in text.splitlines(keepends=True):
        if len(pieces[-1]) + len(line) > room:
            pieces.append("")
        pieces[-1] += line
    return "".join(f'R"rlx({piece})rlx"\n' for piece in pieces)


@dataclass(frozen=True)
class _Module:
    """A text that is compiled by itself, and the functions of it that are launched."""

    file: str
    source: str
    functions: tuple[str, ...]


def _modules(program: Program, prefix: str) -> tuple[_Module, ...]:
    """The generated kernels, and each raw one."""
    own = [_Module(f"{prefix}_kernels.inc", program.source, tuple(program.functions))] if program.functions else []
    raw = {p.launch.code: p.launch for p in program.raw}
    taken = {own[0].file.removesuffix(".inc")} if own else set[str]()
    return (*own, *(_Module(f"{unused(f'{prefix}_{file_name(made.kernel.name)}', taken)}.inc", made.source, (made.symbol,)) for made in raw.values()))


class _Source:
    """Device memory in one piece: weights, working memory, state; `at` is where each part begins, `buffers` where weights and constants lie."""

    def __init__(self, plan: Plan, program: Program, signature: Signature, weights: Mapping[str, Array]) -> None:
        self.plan, self.program, self.signature = plan, program, signature
        self.modules = _modules(program, signature.prefix)
        self.functions = [(m, name) for m, module in enumerate(self.modules) for name in module.functions]
        self.names = {name: k for k, name in enumerate(program.functions)}
        self.raw = {code: len(self.names) + k for k, code in enumerate(dict.fromkeys(p.launch.code for p in program.raw))}
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
        for p in program.raw:
            if p.launch.kernel.abi == 1 and end > MOST_ABI1_NBYTES:
                raise LegaliseError(f"the rocm kernel of {p.launch.kernel.name} cannot be carried", where=p.step.node.where,
                                    why=f"offsets of ABI 1 reach {MOST_ABI1_NBYTES:,} bytes, the project's memory is {end:,}", fix="write the kernel for ABI 2: a __device__ function")

    # ---- the texts
    def header(self) -> str:
        s = self.signature
        return trimmed("hip/model.h.j2", p=s.prefix, guard=s.guard, title=ctext.comment(self.plan.graph.name), shapes=s.shapes, usage=s.usage, signature=s.text,
                       weights_nbytes=self.weights_nbytes, arena_nbytes=self.at["state"] - self.at["arena"], state_nbytes=self.plan.nbytes[Space.STATE],
                       functions=max(len(self.functions), 1), modules=max(len(self.modules), 1))

    def host(self) -> str:
        s, failures = self.signature, list[str]()
        checks = s.checks(failures)
        codes = {code: len(failures) + k for k, code in enumerate(("out_of_range", "no_device", "no_memory", "no_weights", "no_code"), 1)}
        messages = ["fine", *failures, "an index is out of range", "the device's runtime refused something", "no memory on the device",
                    "the weights' file cannot be read, or is too short", "the kernels do not compile for this device; what its compiler says is on stderr"]
        restores = [line for r in self.program.restores for line in self._launch(r.step, r.function, r.kernel, self._words(r))]
        run = [*checks, *self._run(codes, bool(restores))]
        return trimmed("hip/model.cpp.j2", p=s.prefix, guard=s.guard, title=ctext.comment(self.plan.graph.name), version=rlxpy.__version__, signature=s.text,
                       modules=[m.file for m in self.modules], functions=self.functions, run=[*_unused(run, s.parameters), *run],
                       restores=[*_unused(restores, s.parameters), *restores] if restores else [], options=OPTIONS, messages=map(quoted, messages),
                       most_words=self._most_words(), memory_nbytes=max(self.nbytes, 1), state_at=self.at["state"], **codes)

    def _most_words(self) -> int:
        """Arguments that a launch has, at most."""
        kernels = [p.kernel for p in (*self.program.launches, *self.program.restores)] + [r.kernel for r in self.program.results]
        kernels += [k for c in self.program.commits for k in (c.kernel, c.back_kernel)]
        kernels += [s.kernel for p in self.program.raw for s in p.staged]
        return max((*(len(k.params) + len(k.sizes) for k in kernels), *(len(p.launch.args) for p in self.program.raw)), default=1)

    def _run(self, codes: Mapping[str, int], undoes: bool) -> list[str]:
        plan, s, program = self.plan, self.signature, self.program
        failed = f"return {codes['no_device']};"
        lines = [f"if (hipMemset({self._pointer(self._place('notes'))}, 0, {program.notes_nbytes})) {failed}"] if program.fallible else []
        for n, name in zip(plan.graph.inputs, s.inputs, strict=True):
            lines.append(self._copy(self._address(n.refs[0]), name, f"sizeof *{name} * {ctext.dim(n.type.numel)}", "TO_DEVICE", failed))
        for p in program.parts:
            lines += self._raw(p) if isinstance(p, RawLaunch) else self._launch(p.step, p.function, p.kernel, self._words(p)) if isinstance(p, Launch) else []
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
        given = ", ".join((*words, *(f"(uint64_t){ctext.size_name(n)}" for n in sorted(k.sizes))))
        line = f"LAUNCH({self.names[function]}, {x}, {y}, {z}, {k.threads}, (unsigned){ctext.dim(k.shared_nbytes)}, {given});"
        return _guarded(step, line) if step else [line]

    def _raw(self, p: RawLaunch) -> list[str]:
        """Its arena is the device's memory from the start."""
        staged = {s.ref: s for s in p.staged}
        lines = [line for s in p.staged for line in self._launch(p.step, s.function, s.kernel, [self._address(s.ref), self._place("staging", s.offset)])]
        refs = (*p.step.node.inputs, *p.step.node.refs)
        offsets = {name: f"{self.at['staging'] + staged[r].offset}" if r in staged else self._offset(r) for (name, _), r in zip(p.launch.operands, refs, strict=True)}
        if p.step.scratch >= 0:
            offsets["scratch"] = str(self.at["arena"] + self.plan.buffers[p.step.scratch].offset)
        words = [word(a, p.launch, "(uint64_t)m->memory", offsets) for a in p.launch.args]
        return [*lines, *_guarded(p.step, launched(p.launch, self.raw[p.launch.code], words))]

    def _words(self, p: Launch) -> list[str]:
        """What a launch is given, as C."""
        rooms = {Room.FAULT: self._place("notes"), Room.UNDO: self._place("undo", max(p.undo, 0)), Room.NOTE: self._place("notes", max(p.note, 0)), Room.NODE: str(p.step.node.id)}
        if p.step.scratch >= 0:
            rooms[Room.SCRATCH] = self._place("arena", self.plan.buffers[p.step.scratch].offset)
        return [rooms[a] if isinstance(a, Room) else self._address(a) for a in p.kernel.call]

    def _place(self, part: str, offset: int = 0) -> str:
        return f"(uint64_t)(m->memory + {self.at[part] + offset})"

    def _address(self, ref: Ref) -> str:
        return f"(uint64_t)(m->memory + {self._offset(ref)})"

    def _offset(self, ref: Ref) -> str:
        """Bytes from the start of the memory, as C."""
        place, t = self.plan.places[ref], self.plan.graph.type(ref)
        b = self.plan.buffers[place.buffer]
        start = self.buffers[place.buffer] if place.buffer in self.buffers else self.at[b.space.value] + b.offset
        more = place.layout.offset * t.dtype.nbytes
        return f"{start}{'' if more == 0 else f' + {ctext.dim(more)}'}"

    def _pointer(self, address: str) -> str:
        return f"(void *){address}"

    def _copy(self, address: str, name: str, nbytes: str, way: str, failed: str) -> str:
        ends = (self._pointer(address), name) if way == "TO_DEVICE" else (name, self._pointer(address))
        return f"if (rlx_copy({', '.join(ends)}, {nbytes}, {way})) {failed}"


def _guarded(step: Step, line: str) -> list[str]:
    """At the sizes that a step is for."""
    guard = ctext.condition(step.when, step.unless)
    said = [f"/* {ctext.comment(step.node.where)} */"] if step.node.where else []
    return [*said, f"if ({guard}) {line}" if guard else line]


def _unused(lines: Sequence[str], parameters: Sequence[str]) -> list[str]:
    """A word for the compiler about parameters that a run does not need."""
    used = set(re.findall(r"\w+", "\n".join(lines)))
    return [f"(void){name};" for name in parameters if name not in used]

