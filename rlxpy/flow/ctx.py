"""What a stage may touch while it emits: the graph so far, weights by name, and a builder for everything a real model needs."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlxpy.errors import BuildError, nearest
from rlxpy.flow.weights import Weight, WeightSource
from rlxpy.ir import functions as F, spatial_functions as spatial
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.dims import Dim, Shape, upper
from rlxpy.ir.dtypes import DType, dtype
from rlxpy.ir.spatial_functions import Each, Padding

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "softplus")
# spellings of Hugging Face's config.json
ACTIVATION_NAMES = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "swish": "silu", **{a: a for a in ACTIVATIONS}}


class FlowCtx:
    """`graph` is the raw builder: whatever is not a method here is one step away."""

    def __init__(self, graph: Builder, weights: WeightSource, prefix: str = "") -> None:
        self.graph, self.weights, self.prefix = graph, weights, prefix
        self.used: dict[str, Weight] = {}
        self.side: dict[str, Value] = {}
        self.inputs: dict[str, Value] = {}

    # ---- inputs, weights, state
    def input(self, name: str, shape: Sequence[Dim] | None = None, dt: DType | str = DType.F32) -> Value:
        """A declared input of the flow by name; with a shape, a new one.  Raises BuildError naming the nearest."""
        if shape is not None:
            self.inputs[name] = self.graph.input(name, tuple(shape), dt)
        if name not in self.inputs:
            raise BuildError(f"no input {name!r}", where=self.graph.scope_path, why=f"there are {', '.join(self.inputs)}",
                             fix=f"near it: {nearest(name, list(self.inputs))}; a new one needs a shape")
        return self.inputs[name]

    def has(self, key: str) -> bool:
        return self.prefix + key in self.weights

    def weight(self, key: str) -> Weight:
        """Raises BuildError naming the nearest weights."""
        name = self.prefix + key
        if name not in self.weights:
            raise BuildError(f"no weight {name!r}", where=self.graph.scope_path, why=f"nearest: {nearest(name, self.weights.names())}", fix="check the key, or the weight source")
        if name not in self.used:
            self.used[name] = self.weights[name]
        return self.used[name]

    def stored(self, key: str) -> tuple[tuple[Value, ...], Weight]:
        """The weight as it is stored, packed or not, one array or several, recorded so that the model ships exactly what it uses."""
        w = self.weight(key)
        self.used |= {o.name: o for o in w.beside}
        return tuple(self.graph.param(o.name, *o.stored) for o in (w, *w.beside)), w

    def param(self, key: str) -> Value:
        """The weight as numbers; a packed one through `dequantize`."""
        planes, w = self.stored(key)
        return planes[0] if w.encoding is None else F.dequantize(planes, w.encoding, w.shape)

    def state(self, name: str, shape: Sequence[Dim], dt: DType | str = DType.F32) -> Value:
        """Memory that lives from run to run, zero at first; `update` says what it holds next."""
        return self.graph.state(name, tuple(shape), dt)

    def update(self, state: Value, new: Value) -> None:
        self.graph.update(state, new)

    def publish_side_output(self, name: str, value: Value) -> None:
        """An output after the primary one, under this name."""
        if name in self.side:
            raise BuildError(f"side output {name!r} is published twice", where=self.graph.scope_path, fix="choose another name")
        if not isinstance(value, Value) or value.builder is not self.graph:
            raise BuildError(f"side output {name!r} is {value!r:.80}", where=self.graph.scope_path, fix="publish a value of this ctx")
        self.side[name] = value

    # ---- products
    def matmul(self, a: Value, b: Value) -> Value: return a @ b  # type: ignore[no-any-return]

    def linear(self, x: Value, key: str, bias: bool | None = None) -> Value:
        """x @ W^T + b with `key`.weight [out, in], packed or plain, and `key`.bias (None: if there is one)."""
        (w, *beside), stored = self.stored(f"{key}.weight")
        if len(stored.shape) != 2:
            raise BuildError(f"linear with {stored.name} {stored.shape}", where=self.graph.scope_path, why="a matrix [out, in] is needed")
        y: Value = x @ self.cast(w, x.dtype).T if stored.encoding is None else x.qmatmul(w, *beside, encoding=stored.encoding, shape=stored.shape)
        return self.add(y, self.cast(self.param(f"{key}.bias"), x.dtype)) if (self.has(f"{key}.bias") if bias is None else bias) else y

    def embedding(self, ids: Value, key: str, dt: DType | str = DType.F32) -> Value:
        """Rows of `key`.weight by id, in `dt`; a packed table is decoded row by row, never whole."""
        planes, stored = self.stored(f"{key}.weight")
        rows = tuple(p.gather(ids, axis=0) for p in planes)
        return self.cast(rows[0] if stored.encoding is None else F.dequantize(rows, stored.encoding, (*ids.shape, stored.shape[-1])), dt)

    # ---- arithmetic
    def add(self, a: Value, b: Value) -> Value: return a + b  # type: ignore[no-any-return]
    def sub(self, a: Value, b: Value) -> Value: return a - b  # type: ignore[no-any-return]
    def mul(self, a: Value, b: Value) -> Value: return a * b  # type: ignore[no-any-return]
    def residual(self, x: Value, y: Value) -> Value: return x + y  # type: ignore[no-any-return]
    def cast(self, x: Value, to: DType | str) -> Value: return x if x.dtype is dtype(to) else x.cast(to=dtype(to))

    def activation(self, x: Value, name: str) -> Value:
        """By name, Hugging Face's spellings included.  Raises BuildError listing them."""
        if name not in ACTIVATION_NAMES:
            raise BuildError(f"no activation {name!r}", where=self.graph.scope_path, fix=f"one of: {', '.join(ACTIVATION_NAMES)}")
        return x.apply(ACTIVATION_NAMES[name], (x,), {})  # type: ignore[no-any-return]

    def relu(self, x: Value) -> Value: return self.activation(x, "relu")
    def gelu(self, x: Value) -> Value: return self.activation(x, "gelu")
    def silu(self, x: Value) -> Value: return self.activation(x, "silu")
    def softmax(self, x: Value, axis: int = -1) -> Value: return x.softmax(axis=axis)  # type: ignore[no-any-return]

    # ---- norms, attention, positions
    def rms_norm(self, x: Value, key: str, eps: float = 1e-6) -> Value:
        return x.rms_norm(self.cast(self.param(f"{key}.weight"), x.dtype), eps=eps)  # type: ignore[no-any-return]

    def layer_norm(self, x: Value, key: str, eps: float = 1e-5) -> Value:
        """With `key`.weight and, where there is one, `key`.bias."""
        parts = [self.param(f"{key}.{p}") for p in ("weight", "bias") if p == "weight" or self.has(f"{key}.bias")]
        return x.layer_norm(*(self.cast(p, x.dtype) for p in parts), eps=eps)  # type: ignore[no-any-return]

    def heads(self, x: Value, count: int) -> Value:
        """[b, t, count * d] to [b, count, t, d]."""
        b, t, width = x.shape
        return F.reshape(x, (b, t, count, width // count)).transpose(perm=(0, 2, 1, 3))  # type: ignore[no-any-return]

    def merge_heads(self, x: Value) -> Value:
        """[b, h, t, d] to [b, t, h * d]."""
        b, h, t, d = x.shape
        return F.reshape(x.transpose(perm=(0, 2, 1, 3)), (b, t, h * d))  # type: ignore[no-any-return]

    def attention(self, q: Value, k: Value, v: Value, mask: Value | None = None, *, scale: float | None = None, causal: bool = False,
                  window: int = 0, softcap: float = 0.0) -> Value:
        """q [b, h, t, d], k and v [b, g, s, d]; scale None is 1 / sqrt(d).  mask: bool (True is seen) or additive,
        broadcast to [b, h, t, s], or integers [b, h, t, 2]: the first key that a query sees and the one past the last."""
        kind = "window" if window else "causal" if causal else "none"
        operands = (q, k, v) if mask is None else (q, k, v, mask)
        attrs = {"scale": upper(q.shape[-1]) ** -0.5 if scale is None else scale, "mask": kind, "window": window, "softcap": softcap}
        return q.apply("attention", operands, attrs)  # type: ignore[no-any-return]

    def rope(self, x: Value, position: Value, freq: Value | None = None, *, theta: float = 10_000.0, style: str = "half", dims: int = 0) -> Value:
        """x [b, h, t, d] turned by position [t]; freq (radians a position) replaces those that theta gives."""
        operands = (x, position) if freq is None else (x, position, freq)
        return x.apply("rope", operands, {"theta": theta, "style": style, "dims": dims})  # type: ignore[no-any-return]

    def kv_cache(self, name: str, new: Value, past: Dim, capacity: int, stored: DType | str = DType.F32) -> Value:
        """Append new [b, g, t, d] at row `past` of the persistent cache `name`; gives all rows so far, [b, g, past + t, d].

        stored: the float type of its elements, or an encoding whose blocks divide d, as "q8_0"."""
        b, g, t, d = new.shape
        packed = isinstance(stored, str) and stored not in {t.text for t in DType}
        row = new.quantize(encoding=stored) if packed else self.cast(new, stored)
        kept = self.state(name, (b, g, capacity, row.shape[-1]), row.dtype)
        full = kept.kv_append(row, F.size(new, past), axis=2)
        self.update(kept, full)
        seen = F.cut(full, 2, 0, past + t)
        return self.cast(seen.dequantize(encoding=stored, shape=(b, g, past + t, d)) if packed else seen, new.dtype)

    # ---- images, volumes, sound: [batch, channels, *space]
    def conv(self, x: Value, key: str, *, strides: Each = 1, padding: Padding = "valid", dilation: Each = 1, groups: int = 1) -> Value:
        """With `key`.weight [out, c / groups, *size] and, where there is one, `key`.bias.  padding: "valid", "same", or numbers."""
        return spatial.conv(x, *self._kernel(key, x), strides=strides, padding=padding, dilation=dilation, groups=groups)  # type: ignore[no-any-return]

    def conv_transpose(self, x: Value, key: str, *, strides: Each = 1, padding: Padding = "valid", dilation: Each = 1, groups: int = 1, extra: Each = 0) -> Value:
        """With `key`.weight [c, out / groups, *size] and, where there is one, `key`.bias."""
        return spatial.conv_transpose(x, *self._kernel(key, x), strides=strides, padding=padding, dilation=dilation, groups=groups, extra=extra)  # type: ignore[no-any-return]

    def _kernel(self, key: str, x: Value) -> tuple[Value, ...]:
        return tuple(self.cast(self.param(f"{key}.{p}"), x.dtype) for p in ("weight", "bias") if p == "weight" or self.has(f"{key}.bias"))

    def max_pool(self, x: Value, size: Each, *, strides: Each | None = None, padding: Padding = "valid", dilation: Each = 1) -> Value:
        return spatial.max_pool(x, size, strides=strides, padding=padding, dilation=dilation)  # type: ignore[no-any-return]

    def avg_pool(self, x: Value, size: Each, *, strides: Each | None = None, padding: Padding = "valid", count_pad: bool = True) -> Value:
        return spatial.avg_pool(x, size, strides=strides, padding=padding, count_pad=count_pad)  # type: ignore[no-any-return]

    def resize(self, x: Value, shape: Sequence[Dim] | None = None, *, scale: Each | None = None, method: str = "nearest", points: str = "half_pixel") -> Value:
        return spatial.resize(x, shape, scale=scale, method=method, points=points)  # type: ignore[no-any-return]

    # ---- shape
    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value: return F.reshape(x, shape)  # type: ignore[no-any-return]
    def transpose(self, x: Value, *perm: int) -> Value: return x.transpose(perm=perm)  # type: ignore[no-any-return]
    def concat(self, xs: Sequence[Value], axis: int = -1) -> Value: return F.concat(xs, axis)  # type: ignore[no-any-return]
    def split(self, x: Value, sizes: Sequence[Dim], axis: int = -1) -> tuple[Value, ...]: return F.split(x, sizes, axis)
    def gather(self, x: Value, indices: Value, axis: int = 0) -> Value: return x.gather(indices, axis=axis)  # type: ignore[no-any-return]
    def iota(self, shape: Shape, axis: int = -1, dt: DType | str = DType.I64) -> Value: return self.graph.emit("iota", shape=shape, axis=axis, to=dt)  # type: ignore[no-any-return]
    def size(self, dim: Dim) -> Value: return self.graph.emit("size", dim=dim)  # type: ignore[no-any-return]
    def constant(self, value: Any, dt: DType | str | None = None) -> Value: return self.graph.const(value, dt)


def lazy(weights: Mapping[str, Weight]) -> Mapping[str, Any]:
    """Arrays by name, read when asked for."""
    return _Lazy(weights)


class _Lazy(Mapping[str, Any]):
    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self._weights = dict(weights)

    def __getitem__(self, name: str) -> Any: return self._weights[name].array()
    def __contains__(self, name: object) -> bool: return name in self._weights  # Mapping's own would read the array
    def __iter__(self) -> Any: return iter(self._weights)
    def __len__(self) -> int: return len(self._weights)
