"""Forward passes of a decoder and an encoder, written out from the papers in float64 loops: nothing of rlxpy is in them."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


# ---- the decoder, from the papers: rms norm (1910.07467), rope (2104.09864), grouped queries (2305.13245), gated MLP (2002.05202)

def decoder_oracle(config: dict[str, Any], weights: dict[str, Array], tokens: Sequence[int], divisors: Array | None = None) -> Array:
    """f64 [len(tokens), vocab]: logits after each token."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    eps, heads, groups = config["rms_norm_eps"], config["num_attention_heads"], config["num_key_value_heads"]
    x = [w["model.embed_tokens.weight"][t] for t in tokens]
    for i in range(config["num_hidden_layers"]):
        key = f"model.layers.{i}"
        at = f"{key}.self_attn"
        q, k, v = ([split(project(w, f"{at}.{p}_proj", rms(row, w[f"{key}.input_layernorm.weight"], eps)), n) for row in x]
                   for p, n in (("q", heads), ("k", groups), ("v", groups)))
        if f"{at}.q_norm.weight" in w:
            q = [[rms(h, w[f"{at}.q_norm.weight"], eps) for h in row] for row in q]
            k = [[rms(h, w[f"{at}.k_norm.weight"], eps) for h in row] for row in k]
        speeds = turns(config, divisors)
        q, k = ([[turned(h, position, speeds) for h in row] for position, row in enumerate(rows)] for rows in (q, k))
        window = config.get("sliding_window") or len(x)
        for t in range(len(x)):
            mixed = []
            for h in range(heads):
                g = h // (heads // groups)
                seen = range(max(0, t - window + 1), t + 1)
                score = np.array([q[t][h] @ k[s][g] for s in seen]) / math.sqrt(config["head_dim"])
                p = np.exp(score - score.max())
                mixed.append(sum(a * v[s][g] for a, s in zip(p / p.sum(), seen, strict=True)))
            x[t] = x[t] + project(w, f"{at}.o_proj", np.concatenate(mixed))
        for t, row in enumerate(x):
            y = rms(row, w[f"{key}.post_attention_layernorm.weight"], eps)
            gate = project(w, f"{key}.mlp.gate_proj", y)
            x[t] = row + project(w, f"{key}.mlp.down_proj", gate / (1 + np.exp(-gate)) * project(w, f"{key}.mlp.up_proj", y))
    head = w["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return np.array([head @ rms(row, w["model.norm.weight"], eps) for row in x])


def project(w: dict[str, Array], key: str, row: Array) -> Array:
    return w[f"{key}.weight"] @ row + w.get(f"{key}.bias", 0.0)


def split(row: Array, count: int) -> list[Array]:
    return list(row.reshape(count, -1))


def rms(row: Array, scale: Array, eps: float) -> Array:
    return row / math.sqrt(sum(a * a for a in row) / len(row) + eps) * scale


def turns(config: dict[str, Any], divisors: Array | None) -> list[float]:
    """Radians a position for each pair of channels; scaled as Llama 3.1's reference code does it, by wavelength."""
    dims = int(config["head_dim"] * config.get("partial_rotary_factor", 1.0))
    out = [config["rope_theta"] ** (-2 * i / dims) for i in range(dims // 2)]
    scaling = config.get("rope_scaling") or {"rope_type": "default"}
    if scaling["rope_type"] == "linear":
        out = [f / scaling["factor"] for f in out]
    if scaling["rope_type"] == "llama3":
        factor, low, high, old = (scaling[k] for k in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
        for i, f in enumerate(out):
            wave = 2 * math.pi / f
            smooth = (old / wave - low) / (high - low)
            out[i] = f if wave < old / high else f / factor if wave > old / low else (1 - smooth) * f / factor + smooth * f
    return [f / float(d) for f, d in zip(out, divisors, strict=True)] if divisors is not None else out


def turned(head: Array, position: int, speeds: list[float]) -> Array:
    out, half = head.copy(), len(speeds)
    for i, speed in enumerate(speeds):
        c, s = math.cos(position * speed), math.sin(position * speed)
        out[i], out[i + half] = head[i] * c - head[i + half] * s, head[i + half] * c + head[i] * s
    return out


# ---- BERT, from the papers: 1810.04805, layer norm 1607.06450

def bert_oracle(config: dict[str, Any], weights: dict[str, Array], tokens: Sequence[int], pooling: str = "mean",
                normalise: bool = True) -> Array:
    """f64 [hidden_size]: the embedding of one text, without padding."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    eps, heads = config["layer_norm_eps"], config["num_attention_heads"]
    x = [norm(w, "embeddings.LayerNorm", w["embeddings.word_embeddings.weight"][t] + w["embeddings.position_embeddings.weight"][p]
              + w["embeddings.token_type_embeddings.weight"][0], eps) for p, t in enumerate(tokens)]
    for i in range(config["num_hidden_layers"]):
        key = f"encoder.layer.{i}"
        q, k, v = ([split(project(w, f"{key}.attention.self.{p}", row), heads) for row in x] for p in ("query", "key", "value"))
        out = []
        for t, row in enumerate(x):
            mixed = []
            for h in range(heads):
                score = np.array([q[t][h] @ k[s][h] for s in range(len(x))]) / math.sqrt(len(q[t][h]))
                p = np.exp(score - score.max())
                mixed.append(sum(a * v[s][h] for a, s in zip(p / p.sum(), range(len(x)), strict=True)))
            a = norm(w, f"{key}.attention.output.LayerNorm", row + project(w, f"{key}.attention.output.dense", np.concatenate(mixed)), eps)
            up = project(w, f"{key}.intermediate.dense", a)
            act = np.array([u * 0.5 * (1 + math.erf(u / math.sqrt(2))) for u in up])
            out.append(norm(w, f"{key}.output.LayerNorm", a + project(w, f"{key}.output.dense", act), eps))
        x = out
    pooled: Array = {"mean": np.sum(x, axis=0) / len(x), "cls": x[0], "max": np.max(x, axis=0)}[pooling]
    return np.asarray(pooled / math.sqrt(sum(a * a for a in pooled)) if normalise else pooled)


def norm(w: dict[str, Array], key: str, row: Array, eps: float) -> Array:
    mean = sum(row) / len(row)
    return (row - mean) / math.sqrt(sum((a - mean) ** 2 for a in row) / len(row) + eps) * w[f"{key}.weight"] + w[f"{key}.bias"]
