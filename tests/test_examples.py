"""The examples: short, run on every device, and those that are extensions hold against NumPy, dense matrices and finite differences."""
from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, Graph, compile
from rlxpy.errors import BuildError, RlxError
from rlxpy.extend import Device, backend_registry, pass_registry, register_backend, registry
from rlxpy.ir.differentiate import pull
from rlxpy.ir.functions import swap
from rlxpy.tools.conform import conform

EXAMPLES = Path(__file__).parents[1] / "examples"
SHORT = {  # what each prints, in part
    "gated_mlp": "fused into gated_mlp",
    "my_op": "runs as add exp",
    "fuse_my_pattern": "left: add exp",
    "custom_backend": "matmul: native, sort: host",
    "linalg": "linalg.solve: ",
    "sparse": "",
    "finite_differences": "while: ",
}
RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def _scope(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "sparse", raising=False)  # it registers when it is imported
    with registry(), pass_registry(), backend_registry():
        yield


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", SHORT)
def test_an_example_runs(name: str, device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RLX_DEVICE", device)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert SHORT[name] in capsys.readouterr().out


@pytest.mark.parametrize("name", SHORT)
def test_an_example_has_fewer_than_sixty_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text("utf-8").splitlines()) < 60


def test_the_backend_keeps_the_laws_of_all() -> None:
    register_backend(Device("mine"), loaded("custom_backend")["Mine"])
    told = conform("mine", ["add", "exp", "matmul", "sum", "softmax", "gather", "kv_append", "sort", "transpose", "scan"])
    assert told.kept, told.of("broken")


def loaded(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def graph_of(f: Callable[..., Any], *arrays: np.ndarray) -> Graph:
    b = Builder()
    return b.finish(f(*(b.input(f"x{k}", a.shape, a.dtype.name) for k, a in enumerate(arrays))))


def slope(f: Callable[..., Any], *arrays: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The derivative of sum(f * w) along random directions: by finite differences, and from the gradient, for each input."""
    graph = graph_of(f, *arrays)
    run = compile(graph)
    w = np.random.default_rng(9).normal(size=np.shape(run(*arrays)))
    b = Builder()
    xs = [b.input(f"x{k}", a.shape, a.dtype.name) for k, a in enumerate(arrays)]
    gradients = compile(b.finish(*pull(graph, xs, [b.input("dy", w.shape, "f64")])))(*arrays, w)
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    directions = [np.random.default_rng(k).normal(size=a.shape) for k, a in enumerate(arrays)]
    h = 1e-6

    def along(k: int) -> Any:
        def at(step: float) -> Any:
            return (run(*(a + step * directions[k] if i == k else a for i, a in enumerate(arrays))) * w).sum()
        return (at(h) - at(-h)) / (2 * h)

    return np.array([along(k) for k in range(len(arrays))]), [(g * d).sum() for g, d in zip(gradients, directions, strict=True)]


def definite(*shape: int) -> np.ndarray:
    m = RNG.normal(size=(*shape, shape[-1]))
    return m @ m.swapaxes(-1, -2) + 2 * np.eye(shape[-1])


# ---- linear algebra ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "arrays"), [
    ("solve", (definite(2, 3), RNG.normal(size=(2, 3, 4)))),
    ("solve", (RNG.normal(size=(5, 5)) + 4 * np.eye(5), RNG.normal(size=(5, 1)))),
])
def test_gradients_of_linear_algebra_are_those_of_finite_differences(name: str, arrays: tuple[np.ndarray, ...]) -> None:
    want, got = slope(loaded("linalg")[name], *arrays)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["cholesky", "log_det"])
def test_the_gradient_through_a_factor_is_that_of_finite_differences_along_symmetric_directions(name: str) -> None:
    """NumPy reads one triangle alone, and the gradient is spread over both."""
    f = loaded("linalg")[name]
    want, got = slope(lambda a: f((a + swap(a)) * 0.5), definite(2, 4))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("shapes", "words"), [
    (((3, 4), (3, 1)), r"f64\[3,4\] is no square matrix"),
    (((3, 3), (4, 1)), "a row of b for every row of a"),
])
def test_shapes_that_cannot_be_solved_are_refused_when_the_graph_is_built(shapes: tuple[tuple[int, int], ...], words: str) -> None:
    with pytest.raises(BuildError, match=words) as e:
        graph_of(loaded("linalg")["solve"], *(np.zeros(s) for s in shapes))
    assert "test_examples.py" in str(e.value), "the line that asked"


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_singular_matrix_is_an_error_that_names_the_op(device: str) -> None:
    f = compile(graph_of(loaded("linalg")["solve"], np.zeros((2, 2)), np.zeros((2, 1))), device=device)
    with pytest.raises(RlxError, match=r"linalg\.solve(.|\n)*LinAlgError: Singular matrix"):
        f(np.zeros((2, 2)), np.ones((2, 1)))


# ---- sparse matrices -----------------------------------------------------------------------------------------------
ROW, COLUMN = np.array([0, 2, 2, 3, 0]), np.array([1, 0, 0, 2, 1])  # two places twice, a row that is empty


def coo(values: Any, x: Any, row: np.ndarray = ROW) -> Any:
    matmul = loaded("sparse")["matmul"]
    return matmul(values, values.builder.const(row), values.builder.const(COLUMN), x, height=4)


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_sparse_product_is_the_dense_one(device: str) -> None:
    values, x = RNG.normal(size=5), RNG.normal(size=(3, 7))
    dense = np.zeros((4, 3))
    for v, r, c in zip(values, ROW, COLUMN, strict=True):
        dense[r, c] += v
    f = compile(graph_of(coo, values, x), device=device)
    for _ in range(2):
        np.testing.assert_allclose(f(values, x), dense @ x)
    assert not f(values, x)[1].any()


def test_gradients_of_a_sparse_product_come_from_its_lowering() -> None:
    want, got = slope(coo, RNG.normal(size=5), RNG.normal(size=(3, 2)))
    np.testing.assert_allclose(got, want, rtol=1e-7)


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_place_outside_the_matrix_is_an_error(device: str) -> None:
    f = compile(graph_of(lambda v, x: coo(v, x, np.array([0, 2, 2, 4, 0])), np.zeros(5), np.zeros((3, 2))), device=device)
    with pytest.raises(RlxError, match=r"scatter_add|sparse\.matmul"):
        f(np.zeros(5), np.zeros((3, 2)))
