"""`rlx tune`: the best points of kernels' tunables on this machine."""
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlxpy.cli.app import command
from rlxpy.cli.bench import sizes_of
from rlxpy.cli.options import Devices, ForceRow, Kernels, Numerics, device_names
from rlxpy.cli.reading import built_model, is_graph_file, read_graph
from rlxpy.cli.report import Json, note, show, table

if TYPE_CHECKING:
    from rlxpy.tools.tune import Tuning


@command()
def tune(
    source: Annotated[str, typer.Argument(metavar="FILE|MODEL", help="A graph as text (- reads stdin; its weights are random), or a model as `rlx run` takes it.")],
    sizes: Annotated[str, typer.Option("--sizes", metavar="B=8,S=128", help="Sizes to tune for.  Default: what models are asked for mostly.")] = "",
    rounds: Annotated[int, typer.Option("--rounds", min=2, metavar="N", help="How often each point is timed, all in turns.")] = 10,
    keep: Annotated[bool, typer.Option("--keep", help="Use what won from now on, on this machine; without it nothing changes.")] = False,
    device: Devices = None,
    numerics: Numerics = None,
    kernels: Kernels = None,
    force_row: ForceRow = None,
    as_json: Json = False,
) -> None:
    """Measure the tunables of the kernels that a model or graph runs.

    Every legal point is checked against the reference first; a wrong one is told and not timed.  A point wins when it is faster than the
    default by more than both vary.  `rlx why` shows what is used, RLX_TUNE=off ignores it, and `rlx cache clear tune` forgets it."""
    from pathlib import Path

    from rlxpy.compiler.options import CompileOptions
    from rlxpy.settings import setting
    from rlxpy.tools.bench import default_sizes, sizes_for
    from rlxpy.tools.equivalence import random_params
    from rlxpy.tools.tune import accept, tune as measure

    if source == "-" or is_graph_file(Path(source)):
        graph = read_graph(source)
        params = random_params(graph)
    else:
        model = built_model(source, joined=True)
        graph, params = model.graph, dict(model.params)
    options = CompileOptions(numerics=numerics.value if numerics else setting("numerics"))
    found = measure(graph, params, device=device_names(device) or setting("device"), sizes=sizes_for(graph, sizes_of(sizes)) if sizes else default_sizes(graph)[0], rounds=rounds,
                    options=options, tell=note)
    kept = accept(found) if keep else 0
    show({"kept": kept, "calls": [t.to_json() for t in found]}, "\n\n".join(map(_text, found)) or "no kernel here has anything to tune", as_json)
    if keep:
        note(f"{kept} of {len(found)} calls have a better point, and use it from now on")


def _text(t: Tuning) -> str:
    best, rejected = t.best, {r.point: f"rejected, {r.gate}: {r.why}" for r in t.rejected}
    rows = [(c.text, f"{c.median * 1e6:.1f}" if c.seconds else "-", "best" if c is best else rejected.get(c.point) or c.fault or "default") for c in t.candidates]
    at = ", ".join(f"{k} = {v}" for k, v in t.sizes)
    return f"{t.contract.row} for {t.op} : {t.type}{f' at {at}' if at else ''}, {t.launches} launches\n{table(('point', 'median us', ''), rows)}"
