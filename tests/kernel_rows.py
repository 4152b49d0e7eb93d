"""Kernel rows that are told apart by their results, and graphs for them."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlxpy import Builder, DType, Graph, Op
from rlxpy.extend.kernels import Constraint, KernelLibrary, KernelRow
from rlxpy.extend.libraries import register_kernel_library
from rlxpy.ir.dims import Dim
from rlxpy.ir.dtypes import Array

DEVICES = ["reference", "cpu"]


def filled(value: float) -> Callable[[Sequence[Array], Sequence[Array], Mapping[str, Any]], None]:
    """A kernel that is wrong in a way of its own, so that results tell which one ran."""
    def launch(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
        outs[0][...] = value
    return launch


def lib(name: str, *rows: KernelRow, **more: Any) -> KernelLibrary:
    return register_kernel_library(KernelLibrary(name, rows, **more))


def row(value: float, *constraints: Constraint, op: Op = Op.EXP, name: str = "", **more: Any) -> KernelRow:
    return KernelRow(name or f"fills{value:g}", op, filled(value), constraints=constraints, **more)


def graph_of(f: Callable[..., Any], *shapes: tuple[Dim, ...], dtype: Any = DType.F32) -> Graph:
    b = Builder()
    return b.finish(f(*(b.input(f"x{i}", s, dtype) for i, s in enumerate(shapes))))


def exp(*shape: Dim, dtype: Any = DType.F32) -> Graph:
    return graph_of(lambda x: x.exp(), shape, dtype=dtype)


def matmul(m: Dim = 4, k: Dim = 4160, n: Dim = 8, dtype: Any = DType.F32) -> Graph:
    return graph_of(lambda x, w: x @ w, (m, k), (k, n), dtype=dtype)
