"""The source that a backend generates for a graph, and which launch calls which kernel."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlxpy.compiler.devices import choose
from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import lower, served
from rlxpy.errors import InputError
from rlxpy.extend.backend import Backend, Emits, Emitted
from rlxpy.frozen import dataclass
from rlxpy.ir.graph import Graph
from rlxpy.ir.text import show_node


@dataclass(frozen=True)
class Source:
    """`text` is everything; `kernels` its functions by name; `launches` one row a call: node, op, function, kernel row, user's line."""

    text: str
    kernels: dict[str, str]
    launches: list[dict[str, Any]]
    device: str

    def kernel(self, part: str) -> str:
        """The kernels whose name contains `part`.  Raises InputError when there is none."""
        found = [text for name, text in self.kernels.items() if part in name]
        if not found:
            raise InputError(f"no kernel named {part!r}", why=f"there are {', '.join(self.kernels)}", fix="name a part of one of them")
        return "\n".join(found)


def emit(graph: Graph, device: str | Sequence[str] = "cpu", *, isa: str = "", options: CompileOptions | None = None) -> Source:
    """What the device's backend generates for `graph`; nothing is compiled and no weights are needed.

    isa: an instruction set that this machine may lack: of the cpu with features after plus signs, "avx512+vnni"; of a GPU its chip, "gfx942", "sm_90".
    Raises InputError for a backend that generates no source."""
    backend = _backend(device, isa)
    if not isinstance(backend, Emits):
        raise InputError(f"device {backend.spec.device} generates no source", why="its kernels are functions", fix="emit(graph, 'cpu')")
    options = options or CompileOptions()
    spec = served(backend.spec, options)
    plan, _, _ = lower(graph, spec, options)
    made = backend.emit(plan)
    return Source(made.source, dict(made.kernels), _rows(made), spec.device.name)


def _backend(device: str | Sequence[str], isa: str) -> Backend:
    """Of the generators of source those that write for machines that are not here."""
    from rlxpy.backends.cpu.backend import Cpu
    from rlxpy.backends.cpu.isa import named
    from rlxpy.backends.gpu.backend import Gpu, target_of
    from rlxpy.backends.gpu.vendor import VENDORS

    name = device if isinstance(device, str) else device[0] if len(device) == 1 else ""
    if name == "cpu":
        return Cpu(named(isa) if isa else None)  # with or without a compiler
    if name in VENDORS:
        return Gpu(VENDORS[name], target_of(name, isa) if isa else None)  # with or without a card
    if isa:
        raise InputError(f"isa={isa!r} with device {device!r}", why="only cpu, cuda and rocm have instruction sets to choose from", fix="device='cpu'")
    return choose(device).backend


def _rows(made: Emitted) -> list[dict[str, Any]]:
    return [{"node": f"%{step.node.id}", "op": step.node.label, "text": show_node(step.node), "function": name, "kernel": step.choice.name, "where": step.node.where}
            for step, name in made.launches]
