"""Decoders of the Llama family: Llama, SmolLM, Mistral, Qwen 2 and 3.  Weight keys are Hugging Face's."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlxpy.errors import LoadError
from rlxpy.flow.core import ModelFlow
from rlxpy.flow.ctx import FlowCtx
from rlxpy.flow.rope import frequencies
from rlxpy.ir import functions as F
from rlxpy.ir.builder import Value
from rlxpy.ir.dims import Dim, sym
from rlxpy.ir.dtypes import DType


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
    sliding_window: int = 0
    rope_scaling: tuple[tuple[str, Any], ...] = ()
    rotary_dim: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """From config.json's keys (weights.model_config).  Raises LoadError naming a missing one."""
        try:
            return cls(**{k: config[k] for k in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
                                                 "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings")},
                       rope_theta=config.get("rope_theta", 10_000.0), hidden_act=config.get("hidden_act", "silu"),
                       sliding_window=(config.get("sliding_window") or 0) if config.get("use_sliding_window", True) else 0,
                       rope_scaling=tuple(sorted((config.get("rope_scaling") or {}).items())),
                       rotary_dim=int(config["head_dim"] * config.get("partial_rotary_factor", 1.0)))
        except KeyError as e:
            raise LoadError(f"the model's configuration has no {e.args[0]}", why=f"it has {', '.join(sorted(config))}") from None


@dataclass(frozen=True)
class Cache:
    """Persistent keys and values.  `past` rows are filled before a run; `capacity` holds the context and one chunk."""

    past: Dim
    capacity: int
    dtype: DType = DType.F32


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
        q, k, v = (ctx.heads(ctx.linear(h, f"{key}.{p}_proj"), n) for p, n in
                   (("q", c.num_attention_heads), ("k", c.num_key_value_heads), ("v", c.num_key_value_heads)))
        if ctx.has(f"{key}.q_norm.weight"):  # Qwen 3
            q, k = ctx.rms_norm(q, f"{key}.q_norm", c.rms_norm_eps), ctx.rms_norm(k, f"{key}.k_norm", c.rms_norm_eps)
        past = self.cache.past if self.cache else 0
        position = ctx.iota((h.shape[1],), 0) + ctx.size(past)
        turn = frequencies(c.rotary_dim or c.head_dim, c.rope_theta, dict(c.rope_scaling), ctx.weights)
        freq = None if turn is None else ctx.constant(turn)
        q, k = (ctx.rope(a, position, freq, theta=c.rope_theta, dims=c.rotary_dim) for a in (q, k))
        if self.cache:
            k = ctx.kv_cache(f"{self.name}.k", k, past, self.cache.capacity, self.cache.dtype)
            v = ctx.kv_cache(f"{self.name}.v", v, past, self.cache.capacity, self.cache.dtype)
        return ctx.linear(ctx.merge_heads(ctx.attention(q, k, v, causal=True, window=c.sliding_window)), f"{key}.o_proj")


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
          cache_dtype: DType = DType.F32) -> ModelFlow:
    """tokens i64 [batch, T] to logits.  Cached: T in 1..chunk follow P earlier tokens, so one graph serves prefill in chunks and decode.

    context: most tokens of a conversation (None: the model's own limit).  Raises LoadError beyond that limit."""
    most = config.max_position_embeddings
    context = most if context is None else context
    if not 1 <= context <= most:
        raise LoadError(f"a context of {context} tokens", why=f"the model was made for 1..{most}", fix=f"--context {most}")
    t = sym("T", 1, min(chunk, context) if cached else context)
    cache = Cache(sym("P", 0, max(context - 1, 1)), context + min(chunk, context), cache_dtype) if cached else None
    return (ModelFlow("llama").input("tokens", (batch, t), DType.I64).then(Embed())
            .repeat(config.num_hidden_layers, lambda i: DecoderLayer(i, config, cache)).then(Head(config, every)).output("logits"))
