"""ModelFlow: stages one after the other, built into a graph and the weights it uses."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Protocol, cast

from rlxpy.errors import BuildError
from rlxpy.flow.ctx import FlowCtx, lazy
from rlxpy.flow.weights import Weight, WeightSource, open_weights
from rlxpy.frozen import dataclass
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.dims import Dim, Shape, shape_text
from rlxpy.ir.dtypes import DType, dtype
from rlxpy.ir.graph import Graph


@dataclass(frozen=True)
class StageArtifacts:
    """What a stage tells the flow beside its value; `shape` is checked against the value."""

    shape: Shape | None = None

    @classmethod
    def hidden_only(cls, shape: Shape) -> StageArtifacts:
        return cls(shape)


Emitted = Value | tuple[Value, StageArtifacts]


class LayerStage(Protocol):
    """One block of a model: a frozen dataclass of weight keys and sizes, without arrays and without state.

    `emit_layer` composes what FlowCtx offers; the block lowers to plain ops, so it fuses and runs on every backend."""

    @property
    def name(self) -> str: ...

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Emitted: ...


@dataclass(frozen=True)
class BuiltModel:
    """A graph and the weights it uses, read from their files when compile() asks for them."""

    graph: Graph
    weights: Mapping[str, Weight]

    @property
    def params(self) -> Mapping[str, Any]:
        return lazy(self.weights)

    def output_names(self) -> tuple[str, ...]:
        """The primary output, then side outputs in the order they were published."""
        return self.graph.output_names

    @property
    def weights_nbytes(self) -> int:
        return sum(w.nbytes for w in self.weights.values())


@dataclass(frozen=True)
class ModelFlow:
    """Immutable: every method returns a longer flow, so a prefix can be shared, printed, compared and built twice."""

    name: str
    inputs: tuple[tuple[str, Shape, DType], ...] = ()
    stages: tuple[LayerStage, ...] = ()
    result: str = "hidden"
    prefix: str = field(default="", kw_only=True)  # of every weight key

    def input(self, name: str, shape: Sequence[Dim], dt: DType | str = DType.F32) -> ModelFlow:
        """The first input is what the first stage gets; stages reach the others with ctx.input(name).

        Raises BuildError on a taken name."""
        if name in (taken for taken, _, _ in self.inputs):
            raise BuildError(f"flow {self.name!r} has two inputs {name!r}", fix="choose another name")
        return replace(self, inputs=(*self.inputs, (name, tuple(shape), dtype(dt))))

    def layer_stage(self, stage: LayerStage) -> ModelFlow:
        return self.then(stage)

    def then(self, *stages: LayerStage) -> ModelFlow:
        """Raises BuildError for what is no stage."""
        for stage in stages:
            if isinstance(stage, type) or not isinstance(getattr(stage, "name", None), str) or not hasattr(stage, "emit_layer"):
                raise BuildError(f"{stage!r:.80} is no stage", fix="see docs/add_a_block.md",
                                 why="a stage is an object with a text `name` and a method emit_layer(ctx, x)")
        return replace(self, stages=self.stages + stages)

    def repeat(self, count: int, make: Callable[[int], LayerStage]) -> ModelFlow:
        return self.then(*(make(i) for i in range(count)))

    def output(self, name: str) -> ModelFlow:
        """Name of the primary output."""
        return replace(self, result=name)

    def with_prefix(self, prefix: str) -> ModelFlow:
        """The same flow reading weights whose keys all start with `prefix`."""
        return replace(self, prefix=prefix)

    def build(self, weights: WeightSource | Mapping[str, Any] | str | Path | None = None) -> BuiltModel:
        """Raises BuildError naming the stage and the user's line, LoadError for weights."""
        if not self.inputs:
            raise BuildError(f"flow {self.name!r} has no input", fix="call .input(name, shape) first")
        ctx = FlowCtx(Builder(self.name), _source(weights), self.prefix)
        declared = [ctx.input(*i) for i in self.inputs]
        x = declared[0]
        for stage in self.stages:
            with ctx.graph.scope(stage.name):
                x = _checked(ctx, stage, stage.emit_layer(ctx, x))
        graph = ctx.graph.finish(x, *ctx.side.values(), names=(self.result, *ctx.side))
        used = {n.name for n in graph.params}
        return BuiltModel(graph, {k: w for k, w in ctx.used.items() if k in used})


def _source(weights: WeightSource | Mapping[str, Any] | str | Path | None) -> WeightSource:
    """What is no source yet goes through the door, which says what it can read."""
    return cast(WeightSource, weights) if hasattr(weights, "names") else open_weights(cast(Any, {} if weights is None else weights))


def _checked(ctx: FlowCtx, stage: LayerStage, emitted: Any) -> Value:
    value, artifacts = emitted if isinstance(emitted, tuple) and len(emitted) == 2 else (emitted, StageArtifacts())
    if not isinstance(value, Value) or not isinstance(artifacts, StageArtifacts):
        raise BuildError(f"stage {stage.name!r} gave {emitted!r:.80}", fix="return the value, or (value, StageArtifacts)")
    if value.builder is not ctx.graph:
        raise BuildError(f"stage {stage.name!r} gave a value of graph {value.builder.name!r}",
                         fix="build with the ctx that emit_layer is given")
    if artifacts.shape is not None and tuple(artifacts.shape) != value.shape:
        raise BuildError(f"stage {stage.name!r} promised another shape",
                         why=f"{shape_text(tuple(artifacts.shape))} was promised, the value is {value.type}")
    return value
