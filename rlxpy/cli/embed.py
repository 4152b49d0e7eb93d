"""`rlx embed`: texts as vectors."""
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlxpy.cli.app import command
from rlxpy.cli.options import Devices, ForceRow, Kernels, Model, Numerics, Packing, ProfileFile, Rounding, device_names, profile
from rlxpy.cli.reading import stdin_text
from rlxpy.cli.report import Json, note, show

if TYPE_CHECKING:
    from rlxpy.ir.dtypes import Array


@command()
def embed(
    model: Model,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="The texts; - stands for the lines of stdin.")],
    similarity: Annotated[bool, typer.Option("--similarity", help="Print the cosine between any two texts instead.")] = False,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Texts that are run at once.")] = None,
    length: Annotated[int | None, typer.Option(metavar="N", help="Tokens of a text at most; the rest is cut.")] = None,
    weights: Packing = None,
    quantiser: Rounding = None,
    numerics: Numerics = None,
    device: Devices = None,
    kernels: Kernels = None,
    force_row: ForceRow = None,
    profile_file: ProfileFile = None,
    as_json: Json = False,
) -> None:
    """Turn texts into vectors.

    One line of numbers for each text, or with --similarity a square of cosines."""
    from rlxpy import hub
    from rlxpy.cli.progress import progress
    from rlxpy.generate.embedder import DEFAULT_BATCH, Embedder

    chosen = profile(profile_file, batch=batch, length=length, weights=weights,
                     numerics=numerics.value if numerics else None, device=device_names(device))
    given = [line for text in texts for line in (stdin_text().splitlines() if text == "-" else [text])]
    with progress() as tell:
        path = hub.resolve(model, tell)
        tell(None, f"loading {Path(model).name}")
        embedder = Embedder.load(path, device=chosen.compile.device or None, batch=DEFAULT_BATCH if chosen.sizes.batch is None else chosen.sizes.batch,
                                 length=chosen.sizes.length, weights=chosen.compile.weights or "auto", numerics=chosen.compile.numerics)
    made = embedder.embed(given)
    data: dict[str, Any] = {"model": model, "device": embedder.graph.device, "embeddings": made.vectors, "token_counts": made.token_counts,
                            "truncated": made.truncated}
    if similarity:
        data["similarity"] = cosines(made.vectors)
    lines = ([f"{x:.4f}" for x in row] for row in data["similarity"]) if similarity else (map(str, row) for row in made.vectors)
    show(data, "" if as_json else "\n".join(map(" ".join, lines)), as_json)
    for i in made.truncated:
        note(f"note: text {i + 1} was cut to its first {embedder.length} tokens")


def cosines(vectors: Array) -> Array:
    """f32 [texts, texts]; a vector of zeros is like nothing, 0."""
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths == 0, 1, lengths)
    return np.asarray(unit @ unit.T)
