"""BERT encoders that turn texts into embeddings.  Weight keys are Hugging Face's."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlxpy.errors import BuildError
from rlxpy.flow.config import MOST_LAYERS, Settings
from rlxpy.flow.core import ModelFlow
from rlxpy.flow.ctx import FlowCtx
from rlxpy.ir import functions as F
from rlxpy.ir.builder import Value
from rlxpy.ir.dims import sym, upper
from rlxpy.ir.dtypes import DType

POOLINGS = ("mean", "cls", "max")


@dataclass(frozen=True)
class BertConfig:
    """Sizes and constants, as config.json names them; pooling and normalise as sentence-transformers' modules say."""

    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    pooling: str = "mean"
    normalise: bool = True

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> BertConfig:
        """From config.json's keys (weights.model_config).  Raises LoadError naming one that is missing or cannot be."""
        read = Settings(config)
        read.text("position_embedding_type", "absolute", among=("absolute",))
        return cls(
            read.count("num_hidden_layers", most=MOST_LAYERS), read.count("num_attention_heads"), read.count("max_position_embeddings"),
            read.number("layer_norm_eps", 1e-12), read.text("hidden_act", "gelu"), read.text("pooling", "mean", among=POOLINGS),
            read.flag("normalise", True))


@dataclass(frozen=True)
class BertEmbed:
    config: BertConfig
    name: str = "embeddings"

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Value:
        words = ctx.embedding(x, "embeddings.word_embeddings")
        table = ctx.weight("embeddings.position_embeddings.weight")
        if upper(x.shape[1]) > table.shape[0]:
            raise BuildError(f"texts of up to {upper(x.shape[1])} tokens", where=ctx.graph.scope_path,
                             why=f"{table.name} has {table.shape[0]} rows", fix="weights and config.json must be of one model")
        places = ctx.embedding(ctx.iota((x.shape[1],), 0), "embeddings.position_embeddings")
        kinds = ctx.embedding(ctx.constant([0], DType.I64), "embeddings.token_type_embeddings")
        return ctx.layer_norm(words + kinds + places, "embeddings.LayerNorm", self.config.layer_norm_eps)


@dataclass(frozen=True)
class BertLayer:
    """norm(x + attention(x)), then norm(x + mlp(x)): the original, post-norm order."""

    index: int
    config: BertConfig

    @property
    def name(self) -> str:
        return f"layer.{self.index}"

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Value:
        key, c = f"encoder.{self.name}", self.config
        b, s, _ = x.shape
        with ctx.graph.scope("attention"):
            q, k, v = (ctx.heads(ctx.linear(x, f"{key}.attention.self.{p}"), c.num_attention_heads) for p in ("query", "key", "value"))
            seen = ctx.reshape(ctx.input("mask"), (b, 1, 1, s))
            mixed = ctx.linear(ctx.merge_heads(ctx.attention(q, k, v, seen)), f"{key}.attention.output.dense")
            x = ctx.layer_norm(x + mixed, f"{key}.attention.output.LayerNorm", c.layer_norm_eps)
        with ctx.graph.scope("mlp"):
            h = ctx.activation(ctx.linear(x, f"{key}.intermediate.dense"), c.hidden_act)
            return ctx.layer_norm(x + ctx.linear(h, f"{key}.output.dense"), f"{key}.output.LayerNorm", c.layer_norm_eps)


@dataclass(frozen=True)
class Pool:
    """[b, s, width] to [b, width]: the mean (or max) over seen tokens, or the first token; to unit length if asked."""

    config: BertConfig
    name: str = "pool"

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Value:
        ctx.publish_side_output("hidden", x)
        y = getattr(self, f"_{self.config.pooling}")(ctx, x)
        if not self.config.normalise:
            return y  # type: ignore[no-any-return]
        length = (y * y).sum(axes=(-1,), keep=True).sqrt()
        return y / length.maximum(1e-12)  # type: ignore[no-any-return]

    def _mean(self, ctx: FlowCtx, x: Value) -> Value:
        seen = F.unsqueeze(ctx.input("mask").cast(to=x.dtype), -1)
        return (x * seen).sum(axes=(1,)) / seen.sum(axes=(1,)).maximum(1.0)  # type: ignore[no-any-return]

    def _cls(self, ctx: FlowCtx, x: Value) -> Value:
        return x[:, 0]  # type: ignore[no-any-return]

    def _max(self, ctx: FlowCtx, x: Value) -> Value:
        seen = F.unsqueeze(ctx.input("mask"), -1)
        return seen.where(x, F.full_like(x, float("-inf"))).max(axes=(1,))  # type: ignore[no-any-return]


def bert(config: BertConfig, *, max_batch: int = 64, max_length: int | None = None) -> ModelFlow:
    """ids i64 [B, S] and mask bool [B, S] (True is a token, False is padding) to embeddings f32 [B, width]."""
    longest = min(max_length or config.max_position_embeddings, config.max_position_embeddings)
    b, s = sym("B", 1, max_batch), sym("S", 1, longest)
    return (ModelFlow("bert").input("ids", (b, s), DType.I64).input("mask", (b, s), DType.BOOL).then(BertEmbed(config))
            .repeat(config.num_hidden_layers, lambda i: BertLayer(i, config)).then(Pool(config)).output("embedding"))
