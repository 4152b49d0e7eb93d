"""`rlx inspect`: what a weight file, a graph file or compiled GPU code holds."""
from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlxpy.cli.app import command
from rlxpy.cli.gpu_code import is_gpu_code, show_gpu_code
from rlxpy.cli.graph_summary import show_graph
from rlxpy.cli.reading import is_graph_file, read_graph
from rlxpy.cli.report import Json, printable, show, size, table
from rlxpy.errors import InputError, LoadError

if TYPE_CHECKING:
    from rlxpy.flow.weights import WeightSource

_VALUE_WIDTH = 100


@command()
def inspect(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A GGUF, safetensors or npz file, a Hugging Face folder, a model name, a graph, or compiled GPU code.")],
    card: Annotated[str | None, typer.Option("--card", metavar="TARGET", help="Of code for several AMD chips, what this one runs: gfx1100, gfx90a:sramecc+:xnack-.")] = None,
    asm: Annotated[bool, typer.Option("--asm", help="Of AMD's code, the instructions too; needs llvm-objdump.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a weight file, a graph file or compiled GPU code holds.

    Its metadata, and each tensor's shape, type and size; of a graph its inputs, outputs, weights and ops; of code its chip, and each kernel's
    arguments, registers and memory.  Reads headers, never the weights."""
    from rlxpy import hub
    from rlxpy.cli.progress import progress
    from rlxpy.flow.weights import open_weights

    if is_gpu_code(Path(path)):
        show_gpu_code(Path(path), card, asm, as_json)
        return
    if card is not None or asm:
        raise InputError(f"{'--asm' if card is None else f'--card {card}'} for {path!r}", why="it is for compiled GPU code", fix="leave it out, or name a code object or bundle")
    if is_graph_file(Path(path)):
        show_graph(read_graph(path), as_json)
        return
    with progress() as tell:
        found = hub.resolve(path, tell)
    with closing(open_weights(found)) as source:
        data = {"path": found, "metadata": source.metadata, "tensors": [_tensor(source, name) for name in source.names()]}
        show(data, "" if as_json else _text(data), as_json)


def _tensor(source: WeightSource, name: str) -> dict[str, Any]:
    """One row; a tensor that rlxpy cannot read says why in `error`, and the rest of the file is shown all the same."""
    try:
        weight = source[name]
    except LoadError as e:
        return {"name": name, "shape": [], "type": "", "nbytes": 0, "error": e.what}
    kind = weight.encoding or weight.dtype.text
    return {"name": name, "shape": list(weight.shape), "type": kind, "nbytes": weight.nbytes, "error": ""}


def _text(data: dict[str, Any]) -> str:
    tensors = data["tensors"]
    return "\n\n".join((
        f"{printable(str(data['path']))}\n{len(tensors)} tensors, {size(sum(t['nbytes'] for t in tensors))}",
        table(("metadata", "value"), ((key, _short(value)) for key, value in data["metadata"].items())),
        table(("tensor", "shape", "type", "size"), map(_cells, tensors)),
    ))


def _cells(tensor: dict[str, Any]) -> tuple[str, str, str, str]:
    if tensor["error"]:
        return tensor["name"], "?", "?", f"unreadable: {tensor['error']}"
    return tensor["name"], "x".join(map(str, tensor["shape"])) or "scalar", tensor["type"], size(tensor["nbytes"])


def _short(value: object) -> str:
    """One line of a value; of a long list (a vocabulary has 100,000 words) how long it is and how it begins."""
    if isinstance(value, list | tuple) and len(value) > 8:
        return f"{len(value)} values: {_short(list(value[:4]))[:-1]}, ...]"
    text = printable(str(value))
    return text if len(text) <= _VALUE_WIDTH else f"{text[:_VALUE_WIDTH]}... ({len(text)} characters)"
