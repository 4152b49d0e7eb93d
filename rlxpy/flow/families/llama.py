"""Decoders of the Llama family: Llama, SmolLM, Mistral, Qwen 2 and 3.  Weight keys are Hugging Face's."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlxpy.errors import BuildError, InputError, LoadError
from rlxpy.flow.config import MOST_LAYERS, Settings
from rlxpy.flow.core import ModelFlow
from rlxpy.flow.ctx import FlowCtx
from rlxpy.flow.rope import frequencies
from rlxpy.frozen import dataclass
from rlxpy.ir import functions as F
from rlxpy.ir.builder import Value
from rlxpy.ir.dims import Dim, sym
from rlxpy.ir.dtypes import DType, dtype
from rlxpy.ir.encoding import encoding

PACKED_CACHE = "q8_0"  # the encoding that a cache may have: 32 int8 and an f16 scale
LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes and constants, as config.json names them."""

    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    hidden_act: str = "silu"
    windows: tuple[int, ...] = ()  # how many keys each layer sees, the query's own included; 0, or no entry, is all
    rope_scaling: tuple[tuple[str, Any], ...] = ()
    rotary_dim: int = 0
    rope_style: str = "half"  # "interleaved" where a GGUF file's rows are taken as they lie (weights.as_stored)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """From config.json's keys (weights.model_config).  Raises LoadError naming one that is missing or cannot be."""
        read = Settings(config)
        layers, head_dim = read.count("num_hidden_layers", most=MOST_LAYERS), read.count("head_dim")
        return cls(
            layers, head_dim=head_dim,
            **{k: read.count(k) for k in ("num_attention_heads", "num_key_value_heads", "vocab_size", "max_position_embeddings")},
            rms_norm_eps=read.number("rms_norm_eps"), rope_theta=read.number("rope_theta", 10_000.0),
            tie_word_embeddings=read.flag("tie_word_embeddings"), hidden_act=read.text("hidden_act", "silu"),
            windows=_windows(read, layers), rope_scaling=tuple(sorted(read.table("rope_scaling").items())),
            rotary_dim=int(head_dim * read.number("partial_rotary_factor", 1.0)), rope_style=read.text("rope_style", "half"))


def _windows(read: Settings, layers: int) -> tuple[int, ...]:
    """As Hugging Face's MistralConfig and Qwen2Config say it; the second's windows are off unless asked for, and start at a layer."""
    qwen = read.text("model_type", "llama").startswith("qwen")
    first = read.count("max_window_layers", 28 if qwen else 0, least=0)
    kinds = read.values.get("layer_types") or [LAYER_TYPES[i >= first] for i in range(layers)]
    if not isinstance(kinds, (list, tuple)) or len(kinds) != layers or any(k not in LAYER_TYPES for k in kinds):
        raise LoadError(f"layer_types is {kinds!r:.60}", why=f"{layers} of {' or '.join(LAYER_TYPES)} are needed")
    window = read.count("sliding_window", 0, least=0) if read.flag("use_sliding_window", not qwen) else 0
    return tuple(window if k == LAYER_TYPES[1] else 0 for k in kinds) if window else ()


@dataclass(frozen=True)
class Cache:
    """Persistent keys and values.  `past` rows are filled before a run; `capacity` holds the context and one chunk; `stored` is how."""

    past: Dim
    capacity: int
    stored: DType | str = DType.F32


@dataclass(frozen=True)
class Embed:
    key: str = "model.embed_tokens"
    name: str = "embed"

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Value:
        return ctx.embedding(x, self.key)


@dataclass(frozen=True)
class DecoderLayer:
    """x + attention(norm(x)), then x + down(act(gate(norm(x))) * up(norm(x)))."""

    index: int
    config: LlamaConfig
    cache: Cache | None

    @property
    def name(self) -> str:
        return f"layers.{self.index}"

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Value:
        key, c = f"model.{self.name}", self.config
        with ctx.graph.scope("self_attn"):
            x = ctx.residual(x, self._attention(ctx, ctx.rms_norm(x, f"{key}.input_layernorm", c.rms_norm_eps), f"{key}.self_attn"))
        with ctx.graph.scope("mlp"):
            h = ctx.rms_norm(x, f"{key}.post_attention_layernorm", c.rms_norm_eps)
            gate = ctx.activation(ctx.linear(h, f"{key}.mlp.gate_proj"), c.hidden_act)
            return ctx.residual(x, ctx.linear(gate * ctx.linear(h, f"{key}.mlp.up_proj"), f"{key}.mlp.down_proj"))

    def _attention(self, ctx: FlowCtx, h: Value, key: str) -> Value:
        c = self.config
        q, k, v = (self._heads(ctx, ctx.linear(h, f"{key}.{p}_proj"), n) for p, n in
                   (("q", c.num_attention_heads), ("k", c.num_key_value_heads), ("v", c.num_key_value_heads)))
        if ctx.has(f"{key}.q_norm.weight"):  # Qwen 3
            q, k = ctx.rms_norm(q, f"{key}.q_norm", c.rms_norm_eps), ctx.rms_norm(k, f"{key}.k_norm", c.rms_norm_eps)
        past = self.cache.past if self.cache else 0
        position = ctx.iota((h.shape[1],), 0) + ctx.size(past)
        turn = frequencies(c.rotary_dim or c.head_dim, c.rope_theta, dict(c.rope_scaling), ctx.weights)
        freq = None if turn is None else ctx.constant(turn)
        q, k = (ctx.rope(a, position, freq, theta=c.rope_theta, style=c.rope_style, dims=c.rotary_dim) for a in (q, k))
        if self.cache:
            k = ctx.kv_cache(f"{self.name}.k", k, past, self.cache.capacity, self.cache.stored)
            v = ctx.kv_cache(f"{self.name}.v", v, past, self.cache.capacity, self.cache.stored)
        window = c.windows[self.index] if c.windows else 0
        return ctx.linear(ctx.merge_heads(ctx.attention(q, k, v, causal=True, window=window)), f"{key}.o_proj")

    def _heads(self, ctx: FlowCtx, x: Value, count: int) -> Value:
        if x.shape[-1] != count * self.config.head_dim:
            raise BuildError(f"{count} heads of {self.config.head_dim} channels", where=ctx.graph.scope_path,
                             why=f"they are {count * self.config.head_dim}, the weights give {x.shape[-1]}",
                             fix="weights and config.json must be of one model")
        return ctx.heads(x, count)


@dataclass(frozen=True)
class Head:
    """Final norm and logits, f32 [b, vocab] of the last position, or [b, t, vocab] of all."""

    config: LlamaConfig
    every: bool
    name: str = "head"

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Value:
        b, t, _ = x.shape
        if not self.every:
            x = F.cut(x, 1, t - 1, t)
        x = ctx.rms_norm(x, "model.norm", self.config.rms_norm_eps)
        logits = ctx.linear(x, "model.embed_tokens" if self.config.tie_word_embeddings else "lm_head")
        return logits if self.every else ctx.reshape(logits, (b, logits.shape[-1]))


def llama(config: LlamaConfig, *, batch: Dim = 1, chunk: int = 64, context: int | None = None, cached: bool = True, every: bool = False,
          cache: DType | str = DType.F32) -> ModelFlow:
    """tokens i64 [batch, T] to logits.  Cached: T in 1..chunk follow P earlier tokens, so one graph serves prefill in chunks and decode.

    context: most tokens of a conversation (None: the model's own limit).  cache: how keys and values are kept, a float type or "q8_0".  Raises InputError for sizes and types that cannot be."""
    most = config.max_position_embeddings
    context = most if context is None else context
    if not 1 <= context <= most:
        raise InputError(f"a context of {context} tokens", why=f"the model was made for 1..{most}", fix=f"--context {most}")
    if chunk < 1:
        raise InputError(f"chunk = {chunk}", why="at least 1 token a run is needed")
    stored = PACKED_CACHE if cache == PACKED_CACHE else dtype(cache)
    if isinstance(stored, DType) and not stored.is_float:
        raise InputError(f"a cache of {stored}", why="keys and values are fractions", fix=f"f32, bf16, f16 or {PACKED_CACHE}")
    block = encoding(PACKED_CACHE).block
    if stored == PACKED_CACHE and config.head_dim % block:
        raise InputError(f"a cache of {stored}", why=f"heads have {config.head_dim} channels, its blocks hold {block}", fix="f32, bf16 or f16")
    t = sym("T", 1, min(chunk, context) if cached else context)
    kept = Cache(sym("P", 0, max(context - 1, 1)), context + min(chunk, context), stored) if cached else None
    return (ModelFlow("llama").input("tokens", (batch, t), DType.I64).then(Embed())
            .repeat(config.num_hidden_layers, lambda i: DecoderLayer(i, config, kept)).then(Head(config, every)).output("logits"))
