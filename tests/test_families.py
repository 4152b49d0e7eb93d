"""Families against forward passes written out from the papers in float64 loops: every variant, in one go, in chunks, token by token."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from family_oracles import bert_oracle, decoder_oracle
from tiny_models import bert_config, bert_weights, decoder_config, decoder_weights, write_folder, write_model_gguf

import rlxpy
from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.compiler.options import CompileOptions
from rlxpy.errors import BuildError, InputError, LoadError, RlxError
from rlxpy.flow.core import ModelFlow
from rlxpy.flow.ctx import FlowCtx
from rlxpy.flow.families import DECODERS, ENCODERS, BertConfig, LlamaConfig, bert, check_supported, joined_bert, llama
from rlxpy.flow.weights import as_stored, huggingface_view, model_config, open_weights, save_safetensors
from rlxpy.generate.opened import open_model
from rlxpy.ir.builder import Value
from rlxpy.ir.dims import sym
from rlxpy.ir.dtypes import Array, DType

TOKENS = [5, 93, 0, 41, 41, 7, 88, 12, 60, 3, 29]


# ---- variants

LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "untied": {"tie_word_embeddings": False},
    "one key head": {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6},
    "as many key heads": {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 4, "hidden_size": 12},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": False},
    "window of one": {"model_type": "mistral", "sliding_window": 1},
    "window": {"model_type": "mistral", "sliding_window": 4},
    "window beyond": {"model_type": "mistral", "sliding_window": 40},
    "linear rope": {"rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "llama3 rope": {"rope_scaling": LLAMA3},
    "partial rope": {"partial_rotary_factor": 0.5},
    "partial scaled rope": {"partial_rotary_factor": 0.75, "rope_scaling": {"rope_type": "linear", "factor": 3.0}},
}
variants = pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)


def near(got: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=tolerance, atol=tolerance)


def compiled(config: dict[str, Any], weights: Any, weights_as: str = "auto", **options: Any) -> CompiledGraph:
    model = llama(LlamaConfig.of(config), every=True, **options).build(weights)
    return rlxpy.compile(model.graph, model.params, device="reference", options=CompileOptions(weights=weights_as, debug=True))


def fed(graph: CompiledGraph, tokens: Sequence[int], chunks: Iterator[int]) -> Array:
    """Logits after each token, fed in chunks of these lengths to a state of its own."""
    state, done, out = graph.new_state(), 0, []
    while done < len(tokens):
        part = tokens[done:done + next(chunks)]
        out.append(graph.run(np.array([part]), sizes={"P": done}, state=state)[0])
        done += len(part)
    return np.concatenate(out)


def always(n: int) -> Iterator[int]:
    while True:
        yield n


@variants
def test_a_decoder_gives_the_papers_logits_in_one_go_in_chunks_and_token_by_token(changes: dict[str, Any]) -> None:
    config = decoder_config(**changes)
    weights = decoder_weights(config)
    wanted = decoder_oracle(config, weights, TOKENS)
    assert np.std(wanted) > 0.5
    whole = compiled(config, weights, cached=False, batch=1)
    for _ in range(2):
        near(whole.run(np.array([TOKENS]))[0], wanted)
    cached = compiled(config, weights, chunk=11, context=len(TOKENS))
    for chunks in (always(11), always(1), always(3), iter([2, 5, 1, 3])):
        near(fed(cached, TOKENS, chunks), wanted)


@pytest.mark.parametrize("name", ["window of one", "window", "linear rope", "llama3 rope", "partial rope", "partial scaled rope"])
def test_the_oracle_tells_a_variant_from_plain_llama(name: str) -> None:
    """Otherwise the test above could not fail."""
    weights = decoder_weights(decoder_config())
    plain, other = (decoder_oracle(decoder_config(**changes), weights, TOKENS) for changes in ({}, VARIANTS[name]))
    assert np.abs(plain - other).max() > 0.01


def test_sequences_of_a_batch_do_not_meet() -> None:
    config = decoder_config()
    weights = decoder_weights(config)
    rows = [TOKENS[:7], TOKENS[4:11], TOKENS[::-1][:7]]
    wanted = np.array([decoder_oracle(config, weights, row) for row in rows])
    near(compiled(config, weights, cached=False, batch=sym("B", 1, 4)).run(np.array(rows)), wanted)
    cached = compiled(config, weights, batch=3, chunk=4)
    state = cached.new_state()
    parts = [cached.run(np.array(rows)[:, a:b], sizes={"P": a}, state=state) for a, b in ((0, 4), (4, 5), (5, 7))]
    near(np.concatenate(parts, axis=1), wanted)


def test_the_last_position_alone_is_the_last_of_all() -> None:
    config = decoder_config()
    weights = decoder_weights(config)
    model = llama(LlamaConfig.of(config), chunk=11).build(weights)
    graph = rlxpy.compile(model.graph, model.params)
    assert graph.output_names == ("logits",)
    got = graph.run(np.array([TOKENS]), sizes={"P": 0})
    assert got.shape == (1, config["vocab_size"])
    near(got[0], decoder_oracle(config, weights, TOKENS)[-1])


@pytest.mark.parametrize(("dtype", "share"), [(DType.BF16, 0.05), (DType.F16, 0.01)])
def test_a_narrow_cache_is_near_the_wide_one(dtype: DType, share: float) -> None:
    config = decoder_config()
    weights = decoder_weights(config)
    graph = compiled(config, weights, chunk=4, cache=dtype)
    wide = compiled(config, weights, chunk=4)
    assert graph.memory()["state_nbytes"] < 0.6 * wide.memory()["state_nbytes"]
    error = np.abs(fed(graph, TOKENS, always(4)) - decoder_oracle(config, weights, TOKENS)).max()
    assert 1e-4 < error < share * np.abs(decoder_oracle(config, weights, TOKENS)).max()


@pytest.mark.parametrize("changes", [
    {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1},
    {"sliding_window": 4, "use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]},
])
def test_qwens_windows_start_at_a_layer(changes: dict[str, Any]) -> None:
    config = decoder_config("qwen2", **changes)
    assert LlamaConfig.of(config).windows == (0, 4)
    weights = decoder_weights(config)
    full, narrow = (compiled(c, weights, chunk=11) for c in (decoder_config("qwen2"), config))
    first = {k: v for k, v in weights.items() if not k.startswith("model.layers.1")}
    alone = decoder_config("qwen2", num_hidden_layers=1)
    assert np.abs(fed(full, TOKENS, always(11)) - fed(narrow, TOKENS, always(11))).max() > 0.01
    full, narrow = (compiled(c, first, chunk=11) for c in (alone, {**alone, **changes, "layer_types": None}))
    assert np.array_equal(fed(full, TOKENS, always(11)), fed(narrow, TOKENS, always(11)))


def test_qwens_windows_are_off_unless_asked_for() -> None:
    assert LlamaConfig.of(decoder_config("qwen2", sliding_window=4)).windows == ()
    assert LlamaConfig.of(decoder_config("qwen2", sliding_window=4, use_sliding_window=True)).windows == (0, 0)  # from layer 28 on
    assert LlamaConfig.of(decoder_config("mistral", sliding_window=None)).windows == ()
    assert LlamaConfig.of(decoder_config("mistral", sliding_window=7)).windows == (7, 7)


# ---- A33: the window counts the query itself

class Averages:
    """Attention without queries and keys: each position gives the mean of what it sees."""

    name = "averages"

    def __init__(self, window: int, cached: bool) -> None:
        self.window, self.cached = window, cached

    def emit_layer(self, ctx: FlowCtx, v: Value) -> Value:
        past = sym("P", 0, 3) if self.cached else 0
        seen = ctx.kv_cache("v", v, past, 8) if self.cached else v
        nothing, keys = v * 0.0, ctx.kv_cache("k", v * 0.0, past, 8) if self.cached else v * 0.0
        return ctx.attention(nothing, keys, seen, causal=True, window=self.window)


@pytest.mark.parametrize(("window", "wanted"), [
    (2, [1, 1.5, 3, 6]), (1, [1, 2, 4, 8]), (4, [1, 1.5, 7 / 3, 15 / 4]), (9, [1, 1.5, 7 / 3, 15 / 4]),
])
def test_a_window_counts_the_query_itself(window: int, wanted: list[float]) -> None:
    v = np.array([1, 2, 4, 8], np.float32).reshape(1, 1, 4, 1)
    whole = ModelFlow("window").input("v", (1, 1, sym("T", 1, 4), 1)).layer_stage(Averages(window, False)).build()
    near(rlxpy.compile(whole.graph).run(v).ravel(), wanted, 1e-6)
    cached = rlxpy.compile(ModelFlow("window").input("v", (1, 1, sym("T", 1, 4), 1)).layer_stage(Averages(window, True)).build().graph)
    for chunk in (1, 3, 4):
        cached.reset()
        parts = [cached.run(v[:, :, p:p + chunk], sizes={"P": p}).ravel() for p in range(0, 4, chunk)]
        near(np.concatenate(parts), wanted, 1e-6)


# ---- the same weights in a folder, in shards and in GGUF

@pytest.mark.parametrize("changes", [
    {}, {"tie_word_embeddings": False}, {"num_key_value_heads": 3}, {"model_type": "qwen2"}, {"model_type": "qwen3"},
    {"model_type": "mistral"},
], ids=str)
def test_gguf_and_folder_give_the_same_logits(changes: dict[str, Any], tmp_path: Path) -> None:
    config = decoder_config(**changes)
    weights = decoder_weights(config)
    folder = open_weights(write_folder(tmp_path / "one", config, weights))
    shards = open_weights(write_folder(tmp_path / "three", config, weights, shards=3))
    stored = open_weights(write_model_gguf(tmp_path / "a.gguf", config, weights))
    wanted = decoder_oracle(config, weights, TOKENS)
    for source, settings in (*((s, model_config(s)) for s in (folder, shards, huggingface_view(stored))), as_stored(stored)):
        found = LlamaConfig.of(settings)
        model = llama(found, every=True, chunk=11).build(source)
        near(fed(rlxpy.compile(model.graph, model.params), TOKENS, always(11)), wanted)


@pytest.mark.parametrize(("more", "as_config"), [
    ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ({"rope.dimension_count": 4}, {"partial_rotary_factor": 0.5}),
])
def test_ggufs_rope_settings_mean_what_the_folders_do(more: dict[str, Any], as_config: dict[str, Any], tmp_path: Path) -> None:
    config = decoder_config("qwen2")  # rows are stored as they are: only the settings tell
    weights = decoder_weights(config)
    source = huggingface_view(open_weights(write_model_gguf(tmp_path / "a.gguf", config, weights, more)))
    graph = compiled(model_config(source), source, chunk=11)
    near(fed(graph, TOKENS, always(4)), decoder_oracle({**config, **as_config}, weights, TOKENS))


def test_ggufs_rope_divisors(tmp_path: Path) -> None:
    config = decoder_config()
    weights = decoder_weights(config)
    divisors = np.array([1, 1.5, 4, 8], np.float32)
    path = write_model_gguf(tmp_path / "a.gguf", config, weights, extra={"rope_freqs.weight": divisors})
    model = open_model(path, DECODERS)
    built = llama(LlamaConfig.of(model.config), every=True, chunk=11).build(model.weights)
    model.check_complete(built)
    got = fed(rlxpy.compile(built.graph, built.params), TOKENS, always(3))
    near(got, decoder_oracle(config, weights, TOKENS, divisors))


@pytest.mark.parametrize("bad", [[1, 1, 1], [1, 0, 1, 1], [1, np.nan, 1, 1]], ids=str)
def test_rope_divisors_that_are_none(bad: list[float], tmp_path: Path) -> None:
    config = decoder_config()
    path = write_model_gguf(tmp_path / "a.gguf", config, decoder_weights(config), extra={"rope_freqs.weight": np.array(bad, np.float32)})
    source = huggingface_view(open_weights(path))
    with pytest.raises(LoadError, match="no rope divisors"):
        llama(LlamaConfig.of(model_config(source))).build(source)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_packed_and_dense_weights_give_the_logits_of_what_is_stored(kind: str, tmp_path: Path) -> None:
    """The oracle gets what ggml's own decoder makes of the bytes."""
    config = decoder_config(hidden_size=32, intermediate_size=64, num_attention_heads=4, head_dim=16)
    weights = decoder_weights(config)
    q = gguf.quants
    t = gguf.GGMLQuantizationType[kind]
    kept = {n: q.dequantize(q.quantize(a, t), t) if a.ndim == 2 else a for n, a in weights.items()}  # blocks lie in rows: their order is free
    wanted = decoder_oracle(config, kept, TOKENS)
    source = huggingface_view(open_weights(write_model_gguf(tmp_path / "a.gguf", config, weights, kind=kind)))
    graphs = {mode: compiled(model_config(source), source, mode, chunk=11) for mode in ("packed", "dense")}
    for graph in graphs.values():
        near(fed(graph, TOKENS, always(5)), wanted)
    assert np.abs(wanted - decoder_oracle(config, weights, TOKENS)).max() > 1e-3
    packed, dense = (graphs[m].memory()["param_nbytes"] for m in ("packed", "dense"))
    stored = sum(source[n].nbytes for n in source.names())
    plain = sum(a.nbytes for a in weights.values())
    assert stored <= packed < 1.1 * stored + 64 * len(weights)
    assert dense > plain


def test_weights_of_sixteen_bits_are_numbers_of_their_own(tmp_path: Path) -> None:
    config = decoder_config()
    weights = {n: w.astype(DType.BF16.numpy) for n, w in decoder_weights(config).items()}
    write_folder(tmp_path, config, {})
    save_safetensors(tmp_path / "model.safetensors", weights)
    wanted = decoder_oracle(config, weights, TOKENS)
    graphs = [compiled(config, open_weights(tmp_path), mode, chunk=11) for mode in ("packed", "dense")]
    for graph in graphs:
        near(fed(graph, TOKENS, always(4)), wanted)
    packed, dense = (graph.memory()["param_nbytes"] for graph in graphs)
    assert packed < 0.7 * dense


# ---- encoders

TEXTS = [[2, 5, 6, 3], [2, 9, 3], [2, 5, 6, 7, 8, 20, 24, 3], [2, 3], [2, 23, 23, 23, 14, 9, 10, 11, 12, 13, 3]]


def batch(rows: Sequence[Sequence[int]], longest: int, filler: int) -> tuple[Array, Array]:
    ids = np.full((len(rows), longest), filler)
    for i, row in enumerate(rows):
        ids[i, :len(row)] = row
    return ids, np.arange(longest) < np.array([[len(row)] for row in rows])


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_embeddings_are_the_papers_alone_and_in_a_batch_whatever_the_padding(pooling: str, normalise: bool) -> None:
    config = bert_config()
    weights = bert_weights(config)
    model = bert(BertConfig.of({**config, "pooling": pooling, "normalise": normalise}), max_batch=5).build(weights)
    graph = rlxpy.compile(model.graph, model.params, options=CompileOptions(debug=True))
    assert graph.output_names == ("embedding", "hidden")
    wanted = np.array([bert_oracle(config, weights, row, pooling, normalise) for row in TEXTS])
    for filler in (0, 17):
        near(graph.run(*batch(TEXTS, 11, filler))[0], wanted)
    for row, one in zip(TEXTS, wanted, strict=True):
        for longest in {len(row), 11}:
            near(graph.run(*batch([row], longest, 0))[0][0], one)


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_joined_texts_do_not_see_one_another(pooling: str, device: str) -> None:
    """One after another in one row, in any order and number, each as it is alone; the sum of all may exceed the positions of one."""
    config = bert_config()
    weights = bert_weights(config)
    model = joined_bert(BertConfig.of({**config, "pooling": pooling}), max_texts=3 * len(TEXTS), max_length=config["max_position_embeddings"]).build(weights)
    graph = rlxpy.compile(model.graph, model.params, device=device, options=CompileOptions(debug=True))
    assert [n.name for n in graph.plan.graph.inputs] == ["ids", "starts"]
    for rows in (TEXTS, TEXTS[::-1], TEXTS[1:2], [*TEXTS, *TEXTS[2:], *TEXTS]):
        starts = np.cumsum([0, *map(len, rows)])
        near(graph.run(np.array([[i for row in rows for i in row]]), starts)[0], np.array([bert_oracle(config, weights, row, pooling) for row in rows]))


def test_max_is_not_fooled_by_padding_that_is_greater() -> None:
    config = bert_config()
    weights = bert_weights(config)
    weights["encoder.layer.1.output.LayerNorm.bias"] -= 9.0  # all channels of real tokens are negative; a zero would win
    model = bert(BertConfig.of({**config, "pooling": "max", "normalise": False})).build(weights)
    got = rlxpy.compile(model.graph, model.params).run(*batch(TEXTS, 11, 0))[0]
    assert got.max() < 0
    near(got, [bert_oracle(config, weights, row, "max", False) for row in TEXTS])


def test_bert_from_folder_shards_prefix_and_gguf(tmp_path: Path) -> None:
    config = bert_config()
    weights = bert_weights(config)
    wanted = np.array([bert_oracle(config, weights, row) for row in TEXTS])
    plain = open_weights(write_folder(tmp_path / "plain", config, weights))
    shards = open_weights(write_folder(tmp_path / "shards", config, weights, shards=2))
    stored = huggingface_view(open_weights(write_model_gguf(tmp_path / "a.gguf", config, weights)))
    prefixed = open_weights(write_folder(tmp_path / "prefixed", config, {f"bert.{n}": a for n, a in weights.items()}))
    for source, prefix in ((plain, ""), (shards, ""), (stored, ""), (prefixed, "bert.")):
        model = bert(BertConfig.of(model_config(source)), max_batch=5).with_prefix(prefix).build(source)
        near(rlxpy.compile(model.graph, model.params).run(*batch(TEXTS, 11, 0))[0], wanted)


# ---- what cannot be

DECODER_MISTAKES: list[tuple[dict[str, Any], type[RlxError], str]] = [
    ({"num_hidden_layers": None}, LoadError, "has no num_hidden_layers"),
    ({"vocab_size": "many"}, LoadError, "vocab_size is 'many'"),
    ({"num_attention_heads": 0}, LoadError, "num_attention_heads is 0"),
    ({"num_hidden_layers": 10 ** 400}, LoadError, "num_hidden_layers is 1000"),
    ({"num_hidden_layers": True}, LoadError, "num_hidden_layers is True"),
    ({"rms_norm_eps": float("nan")}, LoadError, "rms_norm_eps is nan"),
    ({"rope_theta": -1.0}, LoadError, "rope_theta is -1.0"),
    ({"rope_scaling": [1, 2]}, LoadError, r"rope_scaling is \[1, 2\]"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, LoadError, "'yarn' is not supported(.|\n)*linear, llama3"),
    ({"rope_scaling": {"rope_type": "linear"}}, LoadError, "rope_scaling has no factor"),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, LoadError, "factor is 0"),
    ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, LoadError, "low_freq_factor 4.0 is not below high_freq_factor 4.0"),
    ({"hidden_act": "mish"}, BuildError, "no activation 'mish'"),
    ({"sliding_window": "wide", "model_type": "mistral"}, LoadError, "sliding_window is 'wide'"),
    ({"layer_types": ["full_attention", "linear_attention"]}, LoadError, "layer_types is"),
    ({"layer_types": ["full_attention"]}, LoadError, "2 of full_attention"),
    ({"num_attention_heads": 4}, BuildError, "4 heads of 8 channels(.|\n)*they are 32, the weights give 48"),
    ({"head_dim": 12}, BuildError, "6 heads of 12 channels"),
    ({"num_hidden_layers": 3}, BuildError, "no weight 'model.layers.2.input_layernorm.weight'"),
    ({"partial_rotary_factor": 0.4}, BuildError, "rope over 3"),
    ({"tie_word_embeddings": False}, BuildError, "no weight 'lm_head.weight'"),
]


@pytest.mark.parametrize(("changes", "error", "message"), DECODER_MISTAKES, ids=lambda v: str(v)[:40])
def test_a_decoder_that_cannot_be(changes: dict[str, Any], error: type[RlxError], message: str) -> None:
    weights = decoder_weights(decoder_config())
    with pytest.raises(error, match=message):
        llama(LlamaConfig.of(decoder_config(**changes))).build(weights)


@pytest.mark.parametrize(("changes", "error", "message"), [
    ({"max_position_embeddings": None}, LoadError, "has no max_position_embeddings"),
    ({"position_embedding_type": "relative_key"}, LoadError, "position_embedding_type is 'relative_key'(.|\n)*absolute"),
    ({"pooling": "lasttoken"}, LoadError, "pooling is 'lasttoken'(.|\n)*mean or cls or max"),
    ({"normalise": 1}, LoadError, "normalise is 1"),
    ({"max_position_embeddings": 512}, BuildError, "texts of up to 512 tokens(.|\n)*has 11 rows"),
    ({"num_attention_heads": 5}, BuildError, "12"),
], ids=lambda v: str(v)[:40])
def test_an_encoder_that_cannot_be(changes: dict[str, Any], error: type[RlxError], message: str) -> None:
    with pytest.raises(error, match=message):
        bert(BertConfig.of(bert_config(**changes))).build(bert_weights(bert_config()))


@pytest.mark.parametrize(("options", "message"), [
    ({"context": 0}, "a context of 0 tokens(.|\n)*1..40"), ({"context": 41}, "a context of 41 tokens(.|\n)*--context 40"),
    ({"chunk": 0}, "chunk = 0"), ({"cache": DType.I8}, "a cache of i8"),
])
def test_sizes_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        llama(LlamaConfig.of(decoder_config()), **options)


@pytest.mark.parametrize(("wanted", "kind", "says"), [
    (DECODERS, "bert", "supported are llama, mistral, qwen2, qwen3(.|\n)*rlx embed"),
    (ENCODERS, "qwen2", "supported are bert(.|\n)*rlx run"),
    (DECODERS, "mamba", "'mamba' is not supported(.|\n)*docs/add_a_block.md"), (ENCODERS, None, "None"),
])
def test_a_model_type_that_is_not_supported_names_what_is(wanted: tuple[str, ...], kind: str | None, says: str) -> None:
    with pytest.raises(LoadError, match=says):
        check_supported({"model_type": kind}, wanted)


@pytest.mark.parametrize("write", [write_folder, write_model_gguf])
def test_the_wrong_command_names_the_right_one(write: Callable[..., Path], tmp_path: Path) -> None:
    encoder = write(tmp_path / "encoder", bert_config(), bert_weights(bert_config()))
    decoder = write(tmp_path / "decoder", decoder_config(), decoder_weights(decoder_config()))
    with pytest.raises(LoadError, match="rlx embed"):
        open_model(encoder, DECODERS)
    with pytest.raises(LoadError, match="rlx run"):
        open_model(decoder, ENCODERS)


def test_a_checkpoint_with_an_unknown_weight_is_refused(tmp_path: Path) -> None:
    config = decoder_config()
    extra: dict[str, Array] = {"model.layers.0.self_attn.gate.weight": np.ones(3, np.float32)}
    idle: dict[str, Array] = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    for name, more, refused in (("a", extra, True), ("b", idle, False)):
        model = open_model(write_folder(tmp_path / name, config, {**decoder_weights(config), **more}), DECODERS)
        built = llama(LlamaConfig.of(model.config)).build(model.weights)
        if refused:
            with pytest.raises(LoadError, match=r"1 weights of a have no place(.|\n)*self_attn\.gate\.weight"):
                model.check_complete(built)
        else:
            model.check_complete(built)


def test_layers_that_the_configuration_leaves_out_are_refused(tmp_path: Path) -> None:
    config = decoder_config()
    model = open_model(write_folder(tmp_path, {**config, "num_hidden_layers": 1}, decoder_weights(config)), DECODERS)
    with pytest.raises(LoadError, match=r"have no place(.|\n)*model\.layers\.1"):
        model.check_complete(llama(LlamaConfig.of(model.config)).build(model.weights))


def test_berts_heads_for_training_are_no_part_of_it(tmp_path: Path) -> None:
    config = bert_config()
    more: dict[str, Array] = {
        "pooler.dense.weight": np.ones((12, 12), np.float32), "embeddings.position_ids": np.arange(11)[None],
        "cls.predictions.bias": np.ones(3, np.float32),
    }
    model = open_model(write_folder(tmp_path, config, {**bert_weights(config), **more}), ENCODERS)
    model.check_complete(bert(BertConfig.of(model.config)).build(model.weights))


def test_an_embedding_of_a_token_beyond_the_table_says_so() -> None:
    config = decoder_config()
    graph = compiled(config, decoder_weights(config))
    with pytest.raises(InputError, match=f"index {config['vocab_size']}(.|\n)*{config['vocab_size']} elements"):
        graph.run(np.array([[1, config["vocab_size"]]]), sizes={"P": 0})

