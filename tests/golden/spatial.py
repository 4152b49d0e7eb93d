"""Makes spatial.json: what PyTorch gives for convolution, pooling and resizing, with gradients.  Run: python spatial.py > spatial.json (PyTorch 2.13)."""
from __future__ import annotations

import json
from math import prod
from typing import Any

import torch
from torch.nn import functional as T

# name of ours, shapes, parameters of ours; torch's spelling is made below
CASES: list[tuple[str, list[list[int]], dict[str, Any]]] = [
    ("conv", [[2, 3, 6, 5], [4, 3, 3, 3], [4]], {"strides": 1, "padding": 1}),
    ("conv", [[2, 4, 7, 9], [6, 2, 3, 2]], {"strides": [2, 1], "padding": [1, 2], "dilation": [1, 2], "groups": 2}),
    ("conv", [[1, 5, 8, 8], [5, 1, 3, 3], [5]], {"strides": 2, "padding": 1, "groups": 5}),
    ("conv", [[2, 3, 11], [4, 3, 4]], {"strides": 3, "dilation": 2}),
    ("conv", [[1, 2, 4, 5, 6], [3, 2, 2, 3, 2]], {"strides": [1, 2, 2], "padding": [0, 1, 1]}),
    ("conv", [[2, 3, 5, 6], [4, 3, 2, 3]], {"padding": "same"}),
    ("conv_transpose", [[2, 4, 3, 4], [4, 3, 3, 3], [3]], {"strides": 2, "padding": 1, "extra": 1}),
    ("conv_transpose", [[1, 4, 5], [4, 2, 3]], {"strides": 3, "dilation": 2, "groups": 2, "extra": 2}),
    ("conv_transpose", [[1, 2, 2, 3, 2], [2, 3, 2, 2, 2]], {"strides": [1, 2, 1]}),
    ("max_pool", [[2, 3, 7, 8]], {"size": 3, "strides": 2, "padding": 1}),
    ("max_pool", [[1, 2, 9]], {"size": 2, "dilation": 3}),
    ("max_pool", [[1, 2, 4, 5, 3]], {"size": [2, 2, 1]}),
    ("avg_pool", [[2, 3, 7, 8]], {"size": 3, "strides": 2, "padding": 1}),
    ("avg_pool", [[2, 3, 7, 8]], {"size": [3, 2], "strides": 2, "padding": 1, "count_pad": False}),
    ("avg_pool", [[1, 2, 4, 5, 3]], {"size": [2, 2, 3], "strides": 1}),
    *[("resize", [[2, 2, 5, 4]], {"shape": shape, "method": method, "points": points}) for shape in ([8, 9], [3, 2], [1, 7])
      for method, points in (("nearest", "half_pixel"), ("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "corners"))],
    ("resize", [[1, 2, 3, 4, 2]], {"shape": [5, 3, 4], "method": "linear", "points": "half_pixel"}),
    ("resize", [[2, 3, 6]], {"shape": [11], "method": "linear", "points": "corners"}),
]


def values(shape: list[int], salt: int) -> list[float]:
    """Quarters from -8 to 8 in no order, without ties in a window: tests/test_spatial.py makes the same."""
    return [((i * 7919 + salt * 104729) % 65 - 32) / 4 for i in range(prod(shape))]


def torch_call(name: str, rank: int, xs: list[Any], given: dict[str, Any]) -> Any:
    a: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    if name == "resize":
        modes = {("nearest", "half_pixel"): "nearest-exact", ("nearest", "asymmetric"): "nearest"}
        mode = modes.get((a["method"], a["points"]), {1: "linear", 2: "bilinear", 3: "trilinear"}[rank])
        return T.interpolate(xs[0], a["shape"], mode=mode, align_corners=a["points"] == "corners" if "linear" in mode else None)
    spelled = {"strides": "stride", "size": "kernel_size", "extra": "output_padding", "count_pad": "count_include_pad"}
    return getattr(T, f"{name}{rank}d")(*xs, **{spelled.get(k, k): v for k, v in a.items()})


def case(name: str, shapes: list[list[int]], given: dict[str, Any]) -> dict[str, Any]:
    xs = [torch.tensor(values(s, k), dtype=torch.float64).reshape(s).requires_grad_() for k, s in enumerate(shapes)]
    y = torch_call(name, len(shapes[0]) - 2, xs, given)
    dy = torch.tensor(values(list(y.shape), 9), dtype=torch.float64).reshape(y.shape)
    grads = torch.autograd.grad(y, xs, dy)
    return {"name": name, "shapes": shapes, "given": given, "shape": list(y.shape), "y": [round(v, 12) for v in y.flatten().tolist()],
            "gradients": [[round(v, 12) for v in g.flatten().tolist()] for g in grads]}


if __name__ == "__main__":
    print("[" + ",\n".join(json.dumps(case(*c)) for c in CASES) + "]")
