"""`rlx why`: which kernel runs each node, and what stood against the others."""
from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from rlxpy.cli.app import command
from rlxpy.cli.options import Devices, ForceRow, Kernels, device_names
from rlxpy.cli.reading import any_graph
from rlxpy.cli.report import Json, note, show
from rlxpy.errors import InputError

KINDS = ("lowered", "host", "near miss")  # what became of nodes that no row took


@command()
def why(
    source: Annotated[str, typer.Argument(metavar="FILE|MODEL", help="A graph as text (- reads stdin), or a model as `rlx run` takes it.")],
    node: Annotated[str | None, typer.Option("--node", metavar="%N|OP", help="Only this node of the compiled graph, or the nodes of this op.")] = None,
    device: Devices = None,
    kernels: Kernels = None,
    force_row: ForceRow = None,
    as_json: Json = False,
) -> None:
    """Say which kernel runs each node, and why not another.

    For every node and band of sizes: the winner, and each other row with the first constraint that refused it."""
    from rlxpy.compiler.devices import choose
    from rlxpy.compiler.options import CompileOptions
    from rlxpy.compiler.session import lower, served
    from rlxpy.extend.selection import selection
    from rlxpy.settings import setting

    options = CompileOptions()
    spec = served(choose(device_names(device) or setting("device")).backend.spec, options)
    plan, _, passes = lower(any_graph(source), spec, options)
    report = selection(plan, spec)
    picked = report if node is None else report.of(node)
    if node is not None and not picked.nodes:
        raise InputError(f"no node {node!r} is launched", why=f"there are {', '.join(dict.fromkeys(n.op for n in report.nodes)) or 'none'}",
                         fix="give an op of these, or a number as %3; `rlx why` without --node lists them")
    notes = passes.of(*KINDS)
    show({**asdict(picked), "notes": [asdict(n) for n in notes]}, str(picked), as_json)
    for text in dict.fromkeys(f"{n.kind} {n.label}: {n.text}" for n in notes if node is None or n.label == node):
        note(text)
