"""What commands read: text from stdin, graphs from files, and the graph of a model."""
from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rlxpy.errors import InputError, VerifyError

if TYPE_CHECKING:
    from rlxpy.flow.core import BuiltModel
    from rlxpy.ir.graph import Graph

MAX_NBYTES = 1 << 28
_GRAPH_HEAD = re.compile(rb"(\s|//[^\n]*\n)*graph\b")
_HEAD_NBYTES = 4096


def stdin_text() -> str:
    """All of stdin, without its last line end.  Raises InputError when it is no text or too long."""
    return _text(sys.stdin.buffer, "stdin").removesuffix("\n").removesuffix("\r")


def _text(f: BinaryIO, name: str) -> str:
    raw = f.read(MAX_NBYTES + 1)
    if len(raw) > MAX_NBYTES:
        raise InputError(f"{name} is too long", why=f"more than {MAX_NBYTES:,} bytes", fix="give a shorter text")
    try:
        return raw.decode()
    except UnicodeDecodeError as e:
        raise InputError(f"{name} is no text", where=f"byte {e.start}", why=f"0x{raw[e.start]:02x} is not UTF-8 there", fix="convert it to UTF-8") from None


def is_graph_file(path: Path) -> bool:
    """Whether a file begins as the text form of a graph does, or is named as one, even if it is not there, and is no compiled graph that was saved."""
    from rlxpy.compiler.saved import is_saved

    if path.suffix == ".rlx" and not path.is_dir():
        return not is_saved(path)
    try:
        with path.open("rb") as f:
            return bool(_GRAPH_HEAD.match(f.read(_HEAD_NBYTES)))
    except OSError:
        return False


def read_graph(path: str) -> Graph:
    """The checked graph in a file, or on stdin when path is "-".  Raises InputError, BuildError with the line."""
    from rlxpy.ir.text import parse
    from rlxpy.ir.verify import verify

    if path == "-":
        text = stdin_text()
    else:
        try:
            with Path(path).open("rb") as f:
                text = _text(f, path)
        except (OSError, ValueError) as e:
            raise InputError(f"cannot read {path!r}", why=getattr(e, "strerror", None) or str(e), fix="name a file with a graph as `rlxpy.show` writes it, or -") from None
    try:
        return verify(parse(text, "stdin" if path == "-" else path))
    except VerifyError as e:
        raise InputError(f"{'stdin' if path == '-' else path} holds no valid graph", where=e.where, why=e.why, fix="see `rlx ops NAME` for what an op takes") from None


def any_graph(source: str) -> Graph:
    """The graph of a file, of stdin ("-"), of a compiled graph that was saved, or of a model by its path or name, the one that runs: an encoder's texts lie
    one after another.  Raises InputError, BuildError, LoadError."""
    return read_graph(source) if source == "-" or is_graph_file(Path(source)) else _with_weights(source, joined=True)[0]


def any_model(source: str, params: Path | None, weights: str = "auto", *, joined: bool = False) -> tuple[Graph, Mapping[str, Any]]:
    """The same with weights: a model's own, or those in the file `params`; `weights`, `joined` as in `built_model`.  Raises InputError, BuildError, LoadError."""
    if not (source == "-" or is_graph_file(Path(source))):
        if params is not None:
            raise InputError(f"weights {str(params)!r} for {source!r}", why="a model has weights of its own", fix="leave --params out")
        return _with_weights(source, weights, joined)
    check_as_stored(source, weights)
    graph = read_graph(source)
    if params is None:
        return graph, {}
    from rlxpy.flow.weights.door import open_weights

    stored = open_weights(params)
    return graph, {n.name: stored[n.name].array() for n in graph.params}


def check_as_stored(source: str, weights: str) -> None:
    """Raises InputError for words that pack the weights of a model where there is none."""
    from rlxpy.compiler.options import WEIGHTS

    if weights not in WEIGHTS:
        raise InputError(f"weights {weights!r} for {source!r}", why="a model's matrices are packed while it is loaded, a graph says the types of its weights itself",
                         fix=f"one of {', '.join(WEIGHTS)}, or a model")


def _with_weights(source: str, weights: str = "auto", joined: bool = False) -> tuple[Graph, Mapping[str, Any]]:
    """Of a compiled graph that was saved, or of a model."""
    from rlxpy.compiler.saved import is_saved, read

    if is_saved(Path(source)):
        check_as_stored(source, weights)
        return read(source)[:2]
    model = built_model(source, weights, joined=joined)
    return model.graph, model.params


def built_model(source: str, weights: str = "auto", *, joined: bool = False) -> BuiltModel:
    """A model by its path or name, as its family's flow builds it.  Raises LoadError.

    weights: an encoding or int8 packs its matrices; how others are kept is for who compiles it.  joined: an encoder's texts lie one after another, as
    `rlx embed` runs them, instead of side by side with padding."""
    from rlxpy import hub
    from rlxpy.cli.progress import progress
    from rlxpy.flow.families import DECODERS, ENCODERS, BertConfig, LlamaConfig, bert, joined_bert, llama
    from rlxpy.generate.embedder import DEFAULT_BATCH, pooling
    from rlxpy.generate.opened import asked, open_model

    with progress() as tell:
        path = hub.resolve(source, tell)
        tell(None, f"loading {Path(source).name}")
        model, _ = asked(open_model(path, (*DECODERS, *ENCODERS)), weights, None, None)
        if model.config["model_type"] in DECODERS:
            return llama(LlamaConfig.of(model.config)).build(model.weights)
        prefix = "bert." if "bert.embeddings.word_embeddings.weight" in model.weights else ""
        config = BertConfig.of({**model.config, **pooling(path, model.weights.metadata)})
        flow = joined_bert(config, max_texts=DEFAULT_BATCH, max_length=config.max_position_embeddings) if joined else bert(config)
        return flow.with_prefix(prefix).build(model.weights)
