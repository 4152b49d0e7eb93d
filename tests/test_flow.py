"""Flows as a downstream package writes them: blocks, side outputs, weights from every source, and what happens to mistakes."""
from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file
from weights_samples import is_mapped, write_gguf

import rlxpy
from rlxpy.compiler.options import CompileOptions
from rlxpy.errors import BuildError, InputError, LoadError, RlxError
from rlxpy.extend import FlowCtx, LayerStage, ModelFlow, StageArtifacts, Value, sym
from rlxpy.flow.weights import Weight, WeightSource, open_weights, packed
from rlxpy.ir.dtypes import Array, DType

RNG = np.random.default_rng(5)
WIDTH, INNER = 6, 9


@dataclass(frozen=True)
class GatedMlp:
    """The example of the seed's page on extending."""

    gate: str
    up: str
    down: str
    name: str = "gated_mlp"

    def emit_layer(self, ctx: FlowCtx, x: Value) -> tuple[Value, StageArtifacts]:
        g = ctx.silu(ctx.linear(x, self.gate, bias=False))
        u = ctx.linear(x, self.up, bias=False)
        out = ctx.linear(ctx.mul(g, u), self.down, bias=False)
        return out, StageArtifacts.hidden_only(out.shape)


@dataclass(frozen=True)
class Tap:
    """Passes its input on and publishes twice of it."""

    name: str

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Value:
        ctx.publish_side_output(self.name, x + x)
        return x


def mlp(*stages: LayerStage) -> ModelFlow:
    return ModelFlow("mlp").input("x", (sym("T", 1, 16), WIDTH)).layer_stage(GatedMlp("g", "u", "d")).then(*stages)


def mlp_weights(prefix: str = "") -> dict[str, Array]:
    shapes = {"g": (INNER, WIDTH), "u": (INNER, WIDTH), "d": (WIDTH, INNER)}
    return {f"{prefix}{name}.weight": RNG.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def mlp_by_hand(x: Array, weights: Mapping[str, Array], prefix: str = "") -> Array:
    g, u, d = (weights[f"{prefix}{n}.weight"].astype(np.float64) for n in "gud")
    h = x @ g.T
    return np.asarray((h / (1 + np.exp(-h)) * (x @ u.T)) @ d.T)


def run(flow: ModelFlow, weights: Any, *inputs: Any) -> Any:
    model = flow.build(weights)
    return rlxpy.compile(model.graph, model.params, options=CompileOptions(debug=True)).run(*inputs)


X = RNG.normal(size=(5, WIDTH)).astype(np.float32)


# ---- blocks

def test_a_downstream_block_runs() -> None:
    weights = mlp_weights()
    graph = rlxpy.compile(mlp().build(weights).graph, weights)
    for x in (X, X[:1], np.asfortranarray(X), np.repeat(X, 4, 0)[::2], X[::-1]):
        np.testing.assert_allclose(graph.run(x), mlp_by_hand(x, weights), rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match=r"T = 17, allowed are 1\.\.16"):
        graph.run(np.zeros((17, WIDTH), np.float32))


def test_it_becomes_plain_ops_that_fuse() -> None:
    weights = mlp_weights()
    graph = rlxpy.compile(mlp().build(weights).graph, weights)
    assert {n.op.text for n in graph.source} <= {"input", "param", "transpose", "matmul", "silu", "mul"}
    assert [hit.label for hit in graph.fusion.hits] == ["gated_mlp"]


def test_side_outputs_come_after_the_result_in_order_under_their_names() -> None:
    weights = mlp_weights()
    flow = mlp(Tap("late"), Tap("early")).output("y")
    model = flow.build(weights)
    assert model.output_names() == ("y", "late", "early")
    y, late, early = run(flow, weights, X)
    np.testing.assert_array_equal(late, y + y)
    np.testing.assert_array_equal(early, late)
    assert mlp().build(weights).output_names() == ("hidden",)


def test_a_flow_is_a_value() -> None:
    weights = mlp_weights()
    flow = mlp(Tap("a"))
    assert flow == mlp(Tap("a"))
    assert flow != mlp(Tap("b"))
    assert flow.build(weights) == flow.build(weights)
    assert rlxpy.show(flow.build(weights).graph) == rlxpy.show(mlp(Tap("a")).build(weights).graph)
    assert hash(flow) == hash(mlp(Tap("a")))
    start = mlp()
    longer = start.layer_stage(Tap("b")).output("y")
    assert (len(start.stages), start.result, len(longer.stages)) == (1, "hidden", 2)
    assert replace(longer, result="hidden", stages=start.stages) == start


def test_a_flow_prints_what_it_is_made_of() -> None:
    text = repr(mlp(Tap("a")))
    for part in ("'mlp'", "('x', (T, 6), DType.F32)", "GatedMlp(gate='g', up='u', down='d'", "Tap(name='a')"):
        assert part in text


def test_stages_repeat() -> None:
    weights = {k: v for i in range(3) for k, v in mlp_weights(f"layer.{i}.").items()}
    start = ModelFlow("deep").input("x", (2, WIDTH))
    flow = start.repeat(3, lambda i: GatedMlp(f"layer.{i}.g", f"layer.{i}.u", f"layer.{i}.d", f"layer.{i}"))
    wanted = X[:2].astype(np.float64)
    for i in range(3):
        wanted = mlp_by_hand(wanted, weights, f"layer.{i}.")
    np.testing.assert_allclose(run(flow, weights, X[:2]), wanted, rtol=1e-4, atol=1e-4)


# ---- inputs and state

class Emit:
    """A stage that is one function."""

    def __init__(self, emit: Callable[[FlowCtx, Value], Any], name: str = "stage") -> None:
        self.emit, self.name = emit, name

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Any:
        return self.emit(ctx, x)


def one(emit: Callable[[FlowCtx, Value], Any], shape: tuple[Any, ...] = (3, 2)) -> ModelFlow:
    return ModelFlow("one").input("x", shape).layer_stage(Emit(emit))


def test_stages_reach_every_declared_input_and_may_declare_more() -> None:
    def emit(ctx: FlowCtx, x: Value) -> Value:
        return ctx.add(ctx.mul(x, ctx.input("scale")), ctx.input("shift", (2,)))

    flow = ModelFlow("f").input("x", (3, 2)).input("scale", (1, 2), DType.F32).layer_stage(Emit(emit))
    assert [n.name for n in flow.build().graph.inputs] == ["x", "scale", "shift"]
    x = X[:3, :2]
    np.testing.assert_array_equal(run(flow, None, x, [[2.0, 4.0]], [1.0, -1.0]), x * [[2, 4]] + [1, -1])


def test_state_lives_from_run_to_run() -> None:
    def emit(ctx: FlowCtx, x: Value) -> Value:
        seen = ctx.state("seen", (2,))
        ctx.update(seen, ctx.add(seen, x))
        return ctx.mul(seen, ctx.constant(1.0))

    graph = rlxpy.compile(one(emit, (2,)).build().graph)
    other = graph.new_state()
    assert [graph.run([float(k), float(-k)]).tolist() for k in (1, 2, 3)] == [[0, 0], [1, -1], [3, -3]]
    assert graph.run(np.zeros(2, np.float32), state=other).tolist() == [0, 0]
    graph.reset()
    assert graph.run(np.zeros(2, np.float32)).tolist() == [0, 0]


# ---- weights

def write_npz(path: Path, weights: dict[str, Array]) -> Path:
    np.savez(path / "w.npz", **weights)  # type: ignore[arg-type]
    return path / "w.npz"


def write_safetensors(path: Path, weights: dict[str, Array]) -> Path:
    save_file(weights, path / "w.safetensors")
    return path / "w.safetensors"


def write_folder(path: Path, weights: dict[str, Array]) -> Path:
    save_file(weights, path / "model.safetensors")
    return path


def write_as_gguf(path: Path, weights: dict[str, Array]) -> Path:
    write_gguf(path / "w.gguf", "llama", weights)
    return path / "w.gguf"


SOURCES: dict[str, Callable[[Path, dict[str, Array]], Any]] = {
    "dict": lambda path, weights: weights, "read-only mapping": lambda path, weights: MappingProxyType(weights),
    "source": lambda path, weights: open_weights(weights), "npz": write_npz, "safetensors": write_safetensors,
    "text path": lambda path, weights: str(write_safetensors(path, weights)), "folder": write_folder, "gguf": write_as_gguf,
}


@pytest.mark.parametrize("store", SOURCES.values(), ids=SOURCES)
def test_weights_come_from_every_source(store: Callable[[Path, dict[str, Array]], Any], tmp_path: Path) -> None:
    weights = mlp_weights()
    source = store(tmp_path, weights)
    for _ in range(2):
        np.testing.assert_allclose(run(mlp(), source, X), mlp_by_hand(X, weights), rtol=1e-5, atol=1e-5)


def test_every_key_starts_with_the_prefix() -> None:
    weights = mlp_weights("text_model.") | {"g.weight": np.zeros((1, 1), np.float32)}
    flow = mlp().with_prefix("text_model.")
    np.testing.assert_allclose(run(flow, weights, X), mlp_by_hand(X, weights, "text_model."), rtol=1e-5, atol=1e-5)
    assert set(flow.build(weights).weights) == {f"text_model.{n}.weight" for n in "gud"}


@pytest.mark.parametrize("stored", [np.float16, np.float64, "bfloat16"])
def test_linear_takes_the_type_of_its_input(stored: Any) -> None:
    import ml_dtypes  # noqa: F401 (names bfloat16 to NumPy)

    weights = {k: v.astype(stored) for k, v in mlp_weights().items()}
    wanted = mlp_by_hand(X, {k: v.astype(np.float64) for k, v in weights.items()})
    np.testing.assert_allclose(run(mlp(), weights, X), wanted, rtol=1e-5, atol=1e-5)


def test_bias_is_there_when_it_is_stored_unless_said_otherwise() -> None:
    weights = {"l.weight": np.eye(2, dtype=np.float32), "l.bias": np.array([5, 7], np.float32), "m.weight": np.eye(2, dtype=np.float32)}
    x = X[:3, :2]
    for bias, added in ((None, True), (True, True), (False, False)):
        got = run(one(lambda ctx, v, b=bias: ctx.linear(v, "l", b)), weights, x)  # type: ignore[misc]
        np.testing.assert_array_equal(got, x + weights["l.bias"] if added else x)
    np.testing.assert_array_equal(run(one(lambda ctx, v: ctx.linear(v, "m")), weights, x), x)
    with pytest.raises(BuildError, match=r"no weight 'm\.bias'"):
        one(lambda ctx, v: ctx.linear(v, "m", True)).build(weights)


PACKED = {"Q4_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}  # where in a block the f16 scales lie


def random_bytes(kind: str, rows: int, columns: int) -> Array:
    """Packed rows of any codes, with scales around 0.01."""
    block, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = RNG.integers(0, 256, (rows, columns // block, nbytes), dtype=np.uint8)
    for at in PACKED[kind]:
        scales = RNG.uniform(0.005, 0.02, (rows, columns // block, 1)).astype(np.float16)
        blocks[..., at:at + 2] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("mode", ["packed", "dense"])
@pytest.mark.parametrize("kind", PACKED)
def test_packed_weights_in_products_lookups_and_as_numbers(kind: str, mode: str) -> None:
    """ggml's own decoder says what the bytes mean."""
    raw = random_bytes(kind, 7, 256)
    meant = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    weights = {"t.weight": packed("t.weight", (7, 256), kind.lower(), raw)}
    x, ids = RNG.normal(size=(3, 256)).astype(np.float32), np.array([[6, 0], [3, 3]])

    def emit(ctx: FlowCtx, v: Value) -> Value:
        ctx.publish_side_output("rows", ctx.embedding(ctx.input("ids"), "t"))
        ctx.publish_side_output("table", ctx.mul(ctx.param("t.weight"), ctx.constant(1.0)))
        return ctx.linear(v, "t")

    model = ModelFlow("packed").input("x", (3, 256)).input("ids", (2, 2), "i64").layer_stage(Emit(emit)).build(weights)
    y, rows, table = rlxpy.compile(model.graph, model.params, options=CompileOptions(weights=mode)).run(x, ids)
    np.testing.assert_allclose(y, x @ meant.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(rows, meant[ids])
    np.testing.assert_array_equal(table, meant)


class Counted:
    """A source that counts what is read."""

    def __init__(self, source: WeightSource) -> None:
        self.source, self.reads = source, Counter[str]()
        self.path, self.metadata, self.names, self.close = source.path, source.metadata, source.names, source.close

    def __contains__(self, name: object) -> bool:
        return name in self.source

    def __getitem__(self, name: str) -> Weight:
        weight = self.source[name]

        def read() -> Array:
            self.reads[name] += 1
            return weight.read()

        return replace(weight, read=read)


def test_building_reads_nothing_and_compiling_reads_what_is_used_once() -> None:
    source = Counted(open_weights(mlp_weights() | {"unused.weight": np.ones(3, np.float32)}))
    model = mlp().build(source)
    assert not source.reads
    assert set(model.weights) == set(model.params) == {"g.weight", "u.weight", "d.weight"}
    assert "g.weight" in model.params
    assert "unused.weight" not in model.params
    assert not source.reads
    rlxpy.compile(model.graph, model.params).run(X)
    assert source.reads == {"g.weight": 1, "u.weight": 1, "d.weight": 1}


def test_a_weight_that_no_output_needs_is_not_part_of_the_model() -> None:
    def emit(ctx: FlowCtx, x: Value) -> Value:
        ctx.param("unread")
        return ctx.add(x, ctx.param("read"))

    weights = {"read": np.array([1, 2], np.float32), "unread": np.zeros(7, np.float32)}
    model = one(emit).build(weights)
    assert set(model.weights) == {"read"}
    assert model.weights_nbytes == 8


def test_weights_stay_in_their_file() -> None:
    weights = mlp_weights()
    model = mlp().build(weights)
    assert all(np.shares_memory(model.params[k], v) for k, v in weights.items())


@pytest.mark.parametrize("store", [write_safetensors, write_folder, write_as_gguf])
def test_large_weights_are_mapped_not_loaded(store: Callable[[Path, dict[str, Array]], Path], tmp_path: Path) -> None:
    big = {"w.weight": np.ones((4096, 2048), np.float32)}  # 32 MiB
    path = store(tmp_path, big)
    tracemalloc.start()
    try:
        model = one(lambda ctx, v: ctx.linear(v, "w"), (1, 2048)).build(path)
        assert is_mapped(model.params["w.weight"])
        got = rlxpy.compile(model.graph, model.params).run(np.ones((1, 2048), np.float32))
        assert tracemalloc.get_traced_memory()[1] < 2e6
    finally:
        tracemalloc.stop()
    assert (got == 2048).all()


# ---- mistakes

def test_a_wrong_key_names_the_nearest_and_the_stage() -> None:
    flow = ModelFlow("mlp").input("x", (2, WIDTH)).layer_stage(GatedMlp("g", "up", "d", name="block.7"))
    with pytest.raises(BuildError) as caught:
        flow.build({"g.weight": np.zeros((INNER, WIDTH), np.float32), "ups.weight": np.zeros(1), "down.weight": np.zeros(1)})
    assert "no weight 'up.weight'" in caught.value.what
    assert "ups.weight" in caught.value.why
    assert "block.7" in caught.value.where


def test_a_wrong_op_names_the_line_and_the_stage() -> None:
    flow = ModelFlow("f").input("x", (2, 3)).layer_stage(Emit(lambda ctx, x: ctx.matmul(x, x), "block.3"))
    with pytest.raises(BuildError, match="3 columns meet 2 rows") as caught:
        flow.build()
    assert f"{Path(__file__).name}" in caught.value.where
    assert "block.3" in caught.value.where


def publish(ctx: FlowCtx, name: str, value: Any) -> Any:
    ctx.publish_side_output(name, value)
    return value


FOREIGN = rlxpy.Builder("elsewhere").input("x", (3, 2))
NONSENSE: dict[str, tuple[Callable[[FlowCtx, Value], Any], str]] = {
    "nothing": (lambda ctx, x: None, "stage 'stage' gave None"),
    "a number": (lambda ctx, x: 3.0, r"gave 3\.0"),
    "an array": (lambda ctx, x: np.ones(2), "gave array"),
    "one in a tuple": (lambda ctx, x: (x,), r"gave \(<"),
    "three in a tuple": (lambda ctx, x: (x, StageArtifacts(), x), r"gave \(<"),
    "no artifacts": (lambda ctx, x: (x, None), r"gave \(<.*, None\)"),
    "another graph's value": (lambda ctx, x: FOREIGN, "a value of graph 'elsewhere'"),
    "another graph's operand": (lambda ctx, x: x + FOREIGN, "a value of graph 'elsewhere'"),
    "another shape": (lambda ctx, x: (x, StageArtifacts((2, 3))), r"another shape(.|\n)*\[2,3\] was promised, the value is f32\[3,2\]"),
    "a side output twice": (lambda ctx, x: publish(ctx, "a", publish(ctx, "a", x)), "side output 'a' is published twice"),
    "a side output that is none": (lambda ctx, x: publish(ctx, "a", np.ones(2)), "side output 'a' is array"),
    "a side output with the result's name": (lambda ctx, x: publish(ctx, "hidden", x), "'hidden', 'hidden'"),
    "an input that is not there": (lambda ctx, x: ctx.input("y"), "no input 'y'(.|\n)*there are x"),
    "an input of another shape": (lambda ctx, x: ctx.input("x", (2,)), "input 'x' is declared twice"),
    "an activation that is not there": (lambda ctx, x: ctx.activation(x, "mish"), "no activation 'mish'(.|\n)*gelu_new"),
    "a vector in a product": (lambda ctx, x: ctx.linear(x, "v"), r"linear with v\.weight \(2,\)"),
}


@pytest.mark.parametrize(("emit", "message"), NONSENSE.values(), ids=NONSENSE)
def test_nonsense_in_a_stage(emit: Callable[[FlowCtx, Value], Any], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        one(emit).build({"v.weight": np.zeros(2, np.float32)})


def test_artifacts_may_say_nothing_or_a_list() -> None:
    for artifacts in (StageArtifacts(), StageArtifacts([3, 2])):  # type: ignore[arg-type]
        assert one(lambda ctx, x, a=artifacts: (x, a)).build().graph.output_types[0].shape == (3, 2)  # type: ignore[misc]


class NamedByMethod:
    def name(self) -> str:
        return "method"

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Value:
        return x


@pytest.mark.parametrize("stage", [None, "mlp", GatedMlp, NamedByMethod(), object(), lambda ctx, x: x], ids=lambda s: type(s).__name__)
def test_what_is_no_stage_is_refused_where_it_is_added(stage: Any) -> None:
    with pytest.raises(BuildError, match=r"is no stage(.|\n)*emit_layer"):
        mlp().layer_stage(stage)


def test_a_flow_needs_inputs_of_different_names() -> None:
    with pytest.raises(BuildError, match="flow 'f' has no input"):
        ModelFlow("f").build()
    with pytest.raises(BuildError, match="two inputs 'x'"):
        ModelFlow("f").input("x", (1,)).input("x", (1,))


@pytest.mark.parametrize(("weights", "error"), [
    (7, LoadError), ("/nowhere/model.gguf", LoadError), ([np.ones(2)], LoadError), (None, BuildError), ({}, BuildError),
])
def test_weights_that_are_none(weights: Any, error: type[RlxError]) -> None:
    with pytest.raises(error):
        mlp().build(weights)


def test_a_weight_of_the_wrong_shape_is_named() -> None:
    weights = mlp_weights() | {"u.weight": np.zeros((INNER, WIDTH + 1), np.float32)}
    with pytest.raises(BuildError, match=f"{WIDTH}(.|\n)*{WIDTH + 1}"):
        mlp().build(weights)
