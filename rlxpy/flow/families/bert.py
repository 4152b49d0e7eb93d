"""BERT encoders that turn texts into embeddings.  Weight keys are Hugging Face's."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlxpy.errors import BuildError
from rlxpy.flow.config import MOST_LAYERS, Settings
from rlxpy.flow.core import ModelFlow
from rlxpy.flow.ctx import FlowCtx
from rlxpy.frozen import dataclass
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
class Padded:
    """Texts as rows of tokens, [b, s], with a mask that is False on padding."""

    def places(self, ctx: FlowCtx, x: Value) -> Value:
        """The position of each token within its text; [s] serves all rows."""
        return ctx.iota((x.shape[1],), 0)

    def seen(self, ctx: FlowCtx, x: Value) -> Value:
        """Attention's mask."""
        b, s, _ = x.shape
        return ctx.reshape(ctx.input("mask"), (b, 1, 1, s))

    def mean(self, ctx: FlowCtx, x: Value) -> Value:
        seen = F.unsqueeze(ctx.input("mask").cast(to=x.dtype), -1)
        return (x * seen).sum(axes=(1,)) / seen.sum(axes=(1,)).maximum(1.0)  # type: ignore[no-any-return]

    def cls(self, ctx: FlowCtx, x: Value) -> Value:
        return x[:, 0]  # type: ignore[no-any-return]

    def max(self, ctx: FlowCtx, x: Value) -> Value:
        seen = F.unsqueeze(ctx.input("mask"), -1)
        return seen.where(x, F.full_like(x, float("-inf"))).max(axes=(1,))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Joined:
    """Texts one after another in one row of tokens, [1, n]: those of text i are starts[i] .. starts[i + 1], so nothing is padding."""

    def places(self, ctx: FlowCtx, x: Value) -> Value:
        return ctx.iota((x.shape[1],), 0) - self._edges(ctx).gather(self._owner(ctx, x), axis=0)  # type: ignore[no-any-return]

    def seen(self, ctx: FlowCtx, x: Value) -> Value:
        edges, owner = self._edges(ctx), self._owner(ctx, x)
        spans = ctx.concat([F.unsqueeze(edges.gather(owner + k, axis=0), -1) for k in (0, 1)])
        return ctx.reshape(spans, (1, 1, x.shape[1], 2))

    def mean(self, ctx: FlowCtx, x: Value) -> Value:
        mine = self._belongs(ctx, x).cast(to=x.dtype)
        return (mine @ x[0]) / mine.sum(axes=(1,), keep=True).maximum(1.0)  # type: ignore[no-any-return]

    def cls(self, ctx: FlowCtx, x: Value) -> Value:
        edges = self._edges(ctx)
        return x[0].gather(F.cut(edges, 0, 0, edges.shape[0] - 1), axis=0)  # type: ignore[no-any-return]

    def max(self, ctx: FlowCtx, x: Value) -> Value:
        mine = F.unsqueeze(self._belongs(ctx, x), -1)
        tall = F.expand(x, (mine.shape[0], *x.shape[1:]))
        return mine.where(tall, F.full_like(tall, float("-inf"))).max(axes=(1,))  # type: ignore[no-any-return]

    def _edges(self, ctx: FlowCtx) -> Value:
        return ctx.input("starts")

    def _owner(self, ctx: FlowCtx, x: Value) -> Value:
        """i64 [n]: which text each token is of."""
        edges = self._edges(ctx)
        ended = F.cut(edges, 0, 1, edges.shape[0]) <= F.unsqueeze(ctx.iota((x.shape[1],), 0), -1)
        return ended.cast(to=DType.I64).sum(axes=(1,))  # type: ignore[no-any-return]

    def _belongs(self, ctx: FlowCtx, x: Value) -> Value:
        """bool [texts, n]"""
        return F.unsqueeze(self._owner(ctx, x), 0).eq(F.unsqueeze(ctx.iota((self._edges(ctx).shape[0] - 1,), 0), -1))  # type: ignore[no-any-return]


Texts = Padded | Joined


@dataclass(frozen=True)
class BertEmbed:
    config: BertConfig
    texts: Texts = Padded()
    longest: int = 0  # tokens of a text at most; 0: as many as the input holds
    name: str = "embeddings"

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Value:
        words = ctx.embedding(x, "embeddings.word_embeddings")
        table = ctx.weight("embeddings.position_embeddings.weight")
        longest = self.longest or upper(x.shape[1])
        if longest > table.shape[0]:
            raise BuildError(f"texts of up to {longest} tokens", where=ctx.graph.scope_path,
                             why=f"{table.name} has {table.shape[0]} rows", fix="weights and config.json must be of one model")
        places = ctx.embedding(self.texts.places(ctx, x), "embeddings.position_embeddings")
        kinds = ctx.embedding(ctx.constant([0], DType.I64), "embeddings.token_type_embeddings")
        return ctx.layer_norm(words + kinds + places, "embeddings.LayerNorm", self.config.layer_norm_eps)


@dataclass(frozen=True)
class BertLayer:
    """norm(x + attention(x)), then norm(x + mlp(x)): the original, post-norm order."""

    index: int
    config: BertConfig
    texts: Texts = Padded()

    @property
    def name(self) -> str:
        return f"layer.{self.index}"

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Value:
        key, c = f"encoder.{self.name}", self.config
        with ctx.graph.scope("attention"):
            q, k, v = (ctx.heads(ctx.linear(x, f"{key}.attention.self.{p}"), c.num_attention_heads) for p in ("query", "key", "value"))
            mixed = ctx.linear(ctx.merge_heads(ctx.attention(q, k, v, self.texts.seen(ctx, x))), f"{key}.attention.output.dense")
            x = ctx.layer_norm(x + mixed, f"{key}.attention.output.LayerNorm", c.layer_norm_eps)
        with ctx.graph.scope("mlp"):
            h = ctx.activation(ctx.linear(x, f"{key}.intermediate.dense"), c.hidden_act)
            return ctx.layer_norm(x + ctx.linear(h, f"{key}.output.dense"), f"{key}.output.LayerNorm", c.layer_norm_eps)


@dataclass(frozen=True)
class Pool:
    """Tokens to texts, [b, width]: the mean (or max) over a text's tokens, or the first; to unit length if asked."""

    config: BertConfig
    texts: Texts = Padded()
    name: str = "pool"

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Value:
        ctx.publish_side_output("hidden", x)
        y: Value = getattr(self.texts, self.config.pooling)(ctx, x)
        if not self.config.normalise:
            return y
        length = (y * y).sum(axes=(-1,), keep=True).sqrt()
        return y / length.maximum(1e-12)  # type: ignore[no-any-return]


def bert(config: BertConfig, *, max_batch: int = 64, max_length: int | None = None) -> ModelFlow:
    """ids i64 [B, S] and mask bool [B, S] (True is a token, False is padding) to embeddings f32 [B, width]."""
    longest = min(max_length or config.max_position_embeddings, config.max_position_embeddings)
    b, s = sym("B", 1, max_batch), sym("S", 1, longest)
    return (ModelFlow("bert").input("ids", (b, s), DType.I64).input("mask", (b, s), DType.BOOL).then(BertEmbed(config))
            .repeat(config.num_hidden_layers, lambda i: BertLayer(i, config)).then(Pool(config)).output("embedding"))


def joined_bert(config: BertConfig, *, max_texts: int, max_length: int) -> ModelFlow:
    """ids i64 [N], texts one after another, and starts i64 [B + 1], where each begins and the last ends, to embeddings f32 [B, width]."""
    longest, texts = min(max_length, config.max_position_embeddings), Joined()
    b, n = sym("B", 1, max_texts), sym("N", 1, max_texts * longest)
    return (ModelFlow("bert").input("ids", (1, n), DType.I64).input("starts", (b + 1,), DType.I64).then(BertEmbed(config, texts, longest))
            .repeat(config.num_hidden_layers, lambda i: BertLayer(i, config, texts)).then(Pool(config, texts)).output("embedding"))
