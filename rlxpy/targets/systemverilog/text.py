"""Steps as SystemVerilog: one module for every structure, with sizes, addresses and numbers as its parameters."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from textwrap import wrap
from typing import Any

from rlxpy.backends.cpu.unit import unused
from rlxpy.backends.templates import read, render
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import Array, DType
from rlxpy.targets.systemverilog.nest import Axis, Walk
from rlxpy.targets.systemverilog.steps import LONGEST_NAME, Design, Memory, Step, ports
from rlxpy.targets.systemverilog.subset import converted, literal, width

LIBRARY = ("rlx_axis.sv", "rlx_memory.sv", "rlx_rom.sv")
FOLDER = "systemverilog"


def variable(dtype: DType) -> str:
    """The type of a variable that holds one element."""
    return "logic" if dtype is DType.BOOL else f"logic {'signed ' if dtype.kind == 'i' else ''}[{dtype.bits - 1}:0]"


@dataclass(frozen=True)
class Parameter:
    type: str
    name: str
    value: str


@dataclass
class Modules:
    """Modules by name.  Steps of one structure share one, whatever their sizes."""

    taken: set[str] = field(default_factory=set)
    texts: dict[str, str] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)  # by text without name and values

    def of(self, step: Step) -> tuple[str, tuple[Parameter, ...]]:
        """The name of a step's module, and the parameters of its instance."""
        parameters = tuple(_parameters(step))
        structure = _module("", step, parameters, "0")
        if structure not in self._names:
            name = self._names[structure] = unused(_title(step), self.taken)
            self.texts[name] = _module(name, step, parameters)
        return self._names[structure], parameters


def library() -> Mapping[str, str]:
    return {name: read(f"{FOLDER}/{name}") for name in LIBRARY}


def hexadecimal(array: Array, dtype: DType) -> Iterator[bytes]:
    """One element a line, as $readmemh takes it."""
    digits, mask = -(-width(dtype) // 4), (1 << width(dtype)) - 1
    for row in array.reshape(-1, 1) if array.size else ():
        yield b"%0*x\n" % (digits, int(row[0]) & mask)


def top(name: str, title: str, design: Design, modules: Modules, inputs: Mapping[Memory, str], outputs: Mapping[Memory, str], files: Mapping[Memory, str]) -> str:
    """The module that holds all memories and starts one step after another.  inputs, outputs: their ports' names."""
    steps = [(k, *modules.of(s), s) for k, s in enumerate(design.steps)]
    return _render("top.sv.j2", wrap=_wrapped, name=name, title=title, design=design, steps=steps, inputs=inputs, outputs=outputs, files=files, ports=lambda m: tuple(ports(design.steps, m)),
                   writers={s.memory: k for k, s in enumerate(design.steps)})


def test_bench(name: str, design: Design, inputs: Mapping[Memory, str], outputs: Mapping[Memory, str], examples: int) -> str:
    return _render("test_bench.sv.j2", name=name, inputs=inputs, outputs=outputs, examples=examples, cycles=design.cycles)


def makefile(name: str, modules: Modules) -> str:
    return _render("Makefile.j2", name=name, sources=[*LIBRARY, *(f"{m}.sv" for m in modules.texts), f"{name}.sv"])


def _render(path: str, **values: Any) -> str:
    return render(f"{FOLDER}/{path}", variable=variable, width=width, comment=_comment, **values)


def _module(name: str, step: Step, parameters: tuple[Parameter, ...], value: str = "") -> str:
    axes = step.nest.axes
    places = [(b, f"{b.name}_at", f"{b.name.upper()}_LIMIT", _address(f"{b.name.upper()}_AT", axes, b.place)) for b in step.nest.bounds]
    reads = [(r, _address(r.name.upper(), axes, r.walk), converted(f"{r.name}_data", r.memory.dtype, r.dtype)) for r in step.reads]
    fold = step.fold
    return _render("step.sv.j2", name=name, step=step, axes=tuple(reversed(axes)), reduced=[a.name for a in axes if a.of is None], reads=reads, places=places, fold=fold,
                   combined=fold.combine.format("so_far", "counted") if fold else "", parameters=[Parameter(p.type, p.name, value or p.value) for p in parameters])


def _parameters(step: Step) -> Iterator[Parameter]:
    for a in step.nest.axes:
        yield Parameter("int", a.name.upper(), str(a.size))
    for b in step.nest.bounds:
        yield from _walk_parameters(f"{b.name.upper()}_AT", step.nest.axes, b.place)
        yield Parameter("int", f"{b.name.upper()}_LIMIT", str(b.size))
    for r in step.reads:
        yield from _walk_parameters(r.name.upper(), step.nest.axes, r.walk)
    if step.fold and (step.nest.reduces or step.nest.bounds):
        yield Parameter(variable(step.fold.dtype), "NEUTRAL", literal(step.fold.neutral, step.fold.dtype))
    for name, dtype, value in step.constants:
        yield Parameter(variable(dtype), name, literal(value, dtype))


def _terms(prefix: str, axes: tuple[Axis, ...], walk: Walk) -> Iterator[tuple[str, int, str]]:
    """Parameter, value and loop of what an address adds up."""
    if walk.offset:
        yield f"{prefix}_OFFSET", walk.offset, ""
    yield from ((f"{prefix}_{a.name.upper()}", s, a.name) for a, s in zip(axes, walk.strides, strict=True) if s)


def _walk_parameters(prefix: str, axes: tuple[Axis, ...], walk: Walk) -> Iterator[Parameter]:
    return (Parameter("int", name, str(value)) for name, value, _ in _terms(prefix, axes, walk))


def _address(prefix: str, axes: tuple[Axis, ...], walk: Walk) -> str:
    return " + ".join(f"{name} * {loop}" if loop else name for name, _, loop in _terms(prefix, axes, walk)) or "0"


def _title(step: Step) -> str:
    """Its ops, but for casts, which are no more than wires."""
    return "_".join([w for w in step.words if w != "cast"] or ["cast"])[:LONGEST_NAME].rstrip("_")


def _wrapped(parameters: tuple[Parameter, ...]) -> list[str]:
    """An instance's parameters on lines of a readable length."""
    return wrap(", ".join(f".{p.name}({p.value})" for p in parameters), 120, break_long_words=False, break_on_hyphens=False)


def _comment(text: str) -> str:
    """On one line, whatever a user's names hold."""
    return " ".join(text.split())
