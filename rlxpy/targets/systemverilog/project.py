"""The `systemverilog` target: modules, weights as $readmemh files, and a test bench with recorded runs."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rlxpy.backends.cpu.unit import unused, word
from rlxpy.errors import InputError
from rlxpy.extend.backend import BackendSpec, Device
from rlxpy.extend.kernels import KernelRow, KernelSearchPath
from rlxpy.extend.target import Content, Example
from rlxpy.frozen import dataclass
from rlxpy.fusion.canonicalise import Canonicalise
from rlxpy.fusion.legalise import LowerExtensions
from rlxpy.fusion.pipeline import run
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph, Node
from rlxpy.targets.systemverilog import text
from rlxpy.targets.systemverilog.steps import LONGEST_NAME, Design, Memory, design
from rlxpy.targets.systemverilog.subset import check


def _none(graph: Graph, node: Node) -> KernelRow:
    """In place of an extension's kernel, so that one without a lowering is refused along with all else."""
    return KernelRow(node.label, node.op, "")


SPEC = BackendSpec(Device("systemverilog"), KernelSearchPath(()), staged=_none)


@dataclass(frozen=True)
class SystemVerilog:
    name: str = "systemverilog"
    doc: str = "synthesizable modules of an integer model, its weights as $readmemh files, a test bench with recorded runs"

    def files(self, graph: Graph, params: Mapping[str, Array], examples: Sequence[Example]) -> Mapping[str, Content]:
        """See docs/targets.md for the subset.  Raises LegaliseError with all that is outside of it, InputError without an example."""
        if not examples:
            raise InputError("no recorded run", why="the test bench compares the modules with at least one", fix="leave examples out, and some are recorded")
        graph, _ = run(graph, (Canonicalise(), LowerExtensions(SPEC), Canonicalise()))
        check(graph)
        made, top = design(graph, params), f"rlx_{word(graph.name)[:LONGEST_NAME]}"
        modules = text.Modules(taken={top, f"{top}_test", *(name.removesuffix(".sv") for name in text.LIBRARY)})
        ports = set[str]()
        inputs = {m: unused(f"in_{word(n.name)[:LONGEST_NAME]}", ports) for m, n in zip(made.inputs, graph.inputs, strict=True)}
        outputs = {m: unused(f"out_{word(name)[:LONGEST_NAME]}", ports) for m, name in zip(made.outputs, graph.output_names, strict=True)}
        weights = {m: f"data/{m.name}.hex" for m in made.memories if m.contents is not None}
        rtl = text.top(top, graph.name, made, modules, inputs, outputs, weights)
        return {
            **{f"rtl/{name}": content for name, content in text.library().items()},
            **{f"rtl/{name}.sv": content for name, content in modules.texts.items()},
            f"rtl/{top}.sv": rtl,
            **{path: text.hexadecimal(m.contents, m.dtype) for m, path in weights.items() if m.contents is not None},
            f"test/{top}_test.sv": text.test_bench(top, made, inputs, outputs, len(examples)),
            **dict(_recorded(made, inputs, outputs, examples)),
            "Makefile": text.makefile(top, modules),
        }


def _recorded(made: Design, inputs: Mapping[Memory, str], outputs: Mapping[Memory, str], examples: Sequence[Example]) -> Iterator[tuple[str, Content]]:
    """For every port the arrays of all runs, one after another."""
    for k, m in enumerate(made.inputs):
        yield f"test/{inputs[m]}.hex", b"".join(b"".join(text.hexadecimal(e.inputs[k], m.dtype)) for e in examples).decode()
    for k, m in enumerate(made.outputs):
        yield f"test/{outputs[m]}.hex", b"".join(b"".join(text.hexadecimal(e.outputs[k], m.dtype)) for e in examples).decode()
