"""Hugging Face folders: config.json beside one safetensors file or indexed shards."""
from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rlxpy.errors import LoadError
from rlxpy.flow.weights.safetensors import open_safetensors
from rlxpy.flow.weights.source import Source, Weight

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
CONVERT = "convert it to safetensors, or fetch the repository's .safetensors files"


def open_folder(folder: Path) -> Source:
    """A model folder; its metadata is config.json, or empty without one.

    Raises LoadError for a missing or damaged file, for a shard that is absent and for a tensor that its shard lacks."""
    metadata = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    if (folder / SINGLE).exists():
        single = open_safetensors(folder / SINGLE)
        return Source(folder, metadata, single.loaders, single.closers)
    if (folder / INDEX).exists():
        loaders, closers = _shards(folder, read_json(folder / INDEX).get("weight_map"))
        return Source(folder, metadata, loaders, closers)
    found = sorted(p.name for p in folder.iterdir())
    raise LoadError(
        f"no weights in {folder}", why=f"it holds {', '.join(found[:8]) or 'nothing'}, but neither {SINGLE} nor {INDEX}",
        fix=CONVERT if any(n.endswith((".bin", ".pt", ".pth")) for n in found) else "give the weight file itself, or the folder it lies in",
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object.  Raises LoadError otherwise."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as e:
        raise LoadError(f"cannot read {path}", why=e.strerror or str(e)) from None
    except (ValueError, RecursionError) as e:
        raise LoadError(f"{path} is no JSON", why=str(e)) from None
    if not isinstance(value, dict):
        raise LoadError(f"{path} holds a {type(value).__name__}", why="a JSON object is expected")
    return value


def _shards(folder: Path, weight_map: Any) -> tuple[dict[str, Callable[[], Weight]], tuple[Callable[[], None], ...]]:
    if not isinstance(weight_map, dict) or not all(isinstance(f, str) for f in weight_map.values()):
        raise LoadError(f"{folder / INDEX} has no weight_map", why="it is an object of file names by tensor name")
    shards: dict[str, Source] = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file:
            raise LoadError(f"{folder / INDEX} names the shard {file!r}", why="shards lie beside their index")
        if not (folder / file).is_file():
            lacking = sum(f == file for f in weight_map.values())
            raise LoadError(f"shard {file} is missing", where=str(folder), why=f"it holds {lacking} tensors", fix="fetch all files")
        shards[file] = open_safetensors(folder / file)
    for name, file in weight_map.items():
        if name not in shards[file]:
            raise LoadError(f"tensor {name!r} is not in its shard {file}", where=str(folder / INDEX), fix="fetch index and shards again")
    loaders: dict[str, Callable[[], Weight]] = {name: partial(shards[file].__getitem__, name) for name, file in weight_map.items()}
    return loaders, tuple(s.close for s in shards.values())
