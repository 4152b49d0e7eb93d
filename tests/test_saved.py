"""`f.save(path)` and `rlxpy.load(path)`: the same results from one file, its extension ops with it, and errors that say what is missing."""
from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import rlxpy
from rlxpy import Builder, CompileOptions, compile, sym, while_loop
from rlxpy.errors import InputError, LoadError
from rlxpy.extend import Attrs, OpExtension, OpRow, TensorType, Why, declare_op, op, register_cpu_kernel, register_op, registry
from rlxpy.ir.quantize import quantize


@dataclass(frozen=True)
class Cap(Attrs):
    cap: float
    label: str = "a 'quoted' word"


def softcap(lower: Any = lambda x, cap, label: (x / cap).tanh() * cap) -> OpExtension:
    return register_op(OpExtension("acme.softcap", OpRow(
        1, shape=lambda x, cap, label: x.shape, dtype=lambda x, cap, label: x.dtype, ref=lambda x, cap, label: np.tanh(x / cap) * cap, lower=lower, attrs=Cap)))


def model(op: OpExtension | None = None) -> tuple[Any, dict[str, Any]]:
    """Symbolic sizes, a constant with NaN, a packed weight, a narrow one, one that safetensors has no type for, a state."""
    b, n = Builder("saved"), sym("N", 1, 9)
    x = b.input("x", (n, 32))
    planes = quantize(np.random.default_rng(0).normal(size=(5, 32)).astype(np.float32), "q8_0")
    y = x.apply("qmatmul", (x, b.param("w/q", planes[0].shape, "u8")), {"encoding": "q8_0", "shape": (5, 32)})
    y = y + b.param("bias", (5,), "bf16").cast(to="f32") + b.param("codes", (5,), "i4").cast(to="f32")
    total = b.state("total", (5,))
    b.update(total, total + y.sum(axes=(0,)))
    if op is not None:
        y = op(y, cap=3.0)
    params = {"w/q": planes[0], "bias": np.linspace(-1, 1, 5).astype(rlxpy.DType.BF16.numpy), "codes": np.array([-8, 7, 0, 1, -1]).astype(rlxpy.DType.I4.numpy)}
    return b.finish(y, total, (y > b.const(np.array([0, np.nan, 1, -np.inf, 2], np.float32))), names=("y", "total", "more")), params


def same(a: Any, b: Any) -> None:
    for rows in (3, 1, 9):
        x = np.random.default_rng(rows).normal(size=(rows, 32)).astype(np.float32)
        for got, want in zip(a.run(x), b.run(x), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_loaded_graph_gives_the_same_results(tmp_path: Path) -> None:
    graph, params = model()
    f = compile(graph, params, options=CompileOptions(weights="packed", numerics="high"))
    f.set_param("bias", f.source.params[1].type.dtype.numpy.type(2) * params["bias"])
    f.run(np.ones((2, 32), np.float32))
    f.save(tmp_path / "m.safetensors")
    g = rlxpy.load(tmp_path / "m.safetensors")
    assert (g.source, g.options) == (f.source, f.options)
    f.reset()  # a state is no part of the file
    same(f, g)


def test_other_readers_see_the_weights(tmp_path: Path) -> None:
    graph, params = model()
    compile(graph, params).save(tmp_path / "m.safetensors")
    seen = safetensors.numpy.load_file(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(seen["param/w/q"], params["w/q"])
    assert rlxpy.parse(seen["graph"].tobytes().decode()) == graph


def test_an_extension_that_is_registered_is_used(tmp_path: Path) -> None:
    with registry():
        graph, params = model(softcap())
        f = compile(graph, params)
        f.save(tmp_path / "m")
        g = rlxpy.load(tmp_path / "m")
        assert g.source == graph
        same(f, g)


def test_an_extension_that_is_not_here_runs_as_its_lowering_and_a_note_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with registry():
        graph, params = model(softcap())
        f = compile(graph, params)
        f.save(tmp_path / "m")
        g_there = rlxpy.load(tmp_path / "m")
    assert "acme.softcap" not in capsys.readouterr().err
    g = rlxpy.load(tmp_path / "m")
    assert "acme.softcap of the module test_saved, of no installed package is not registered here, so its lowering" in capsys.readouterr().err
    same(g_there, g)
    with safetensors.safe_open(tmp_path / "m", "numpy") as file:
        op, = json.loads(file.metadata()["ops"])
    assert (op["name"], op["module"]) == ("acme.softcap", "test_saved")
    assert "np.tanh(x / cap) * cap" in op["source"]["ref"]


def test_without_a_lowering_the_error_names_op_and_package(tmp_path: Path) -> None:
    with registry():
        graph, params = model(softcap(Why("it has a kernel only")))
        compile(graph, params, device="reference").save(tmp_path / "m")
    with pytest.raises(LoadError, match=r"1 op not registered here[\s\S]*acme.softcap is of the module test_saved[\s\S]*import test_saved"):
        rlxpy.load(tmp_path / "m")


def test_ops_with_a_lowering_need_none_of_the_others(tmp_path: Path) -> None:
    """One that only a kernel runs stays an op in the file; the lowering of the rest stands in for them."""
    def median() -> OpExtension:
        @declare_op("acme.median")
        def median(x): return TensorType(x.shape[:-1], x.dtype)  # type: ignore[no-untyped-def]
        return register_cpu_kernel(median, lambda x: np.median(x, axis=-1).astype(x.dtype))

    x = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
    with registry():
        double = op("acme.double")(lambda x: x + x)
        b = Builder("mixed")
        n, v = b.input("n", (), "i64"), b.input("x", (2, 5))
        looped = while_loop(lambda c: c[0] > 0, lambda c: (c[0] - 1, double(c[1])), (n, v))[1]
        f = compile(b.finish(median()(looped)))
        want = f(2, x)
        f.save(tmp_path / "m")
    with pytest.raises(LoadError, match=r"needs 1 op not registered here[\s\S]*acme.median is of the module test_saved"):
        rlxpy.load(tmp_path / "m")
    with registry():
        median()
        np.testing.assert_array_equal(rlxpy.load(tmp_path / "m")(2, x), want)
    np.testing.assert_array_equal(want, np.median(4 * x, -1))


@pytest.mark.parametrize("route", ["lower", "numpy", "c"])
def test_a_file_says_who_wrote_its_ops_and_how(tmp_path: Path, route: str) -> None:
    """By whichever way they were written: what rlxpy makes of a function is not whose it is."""
    with registry():
        if route == "lower":
            made = op("acme.mine")(lambda x: x * 3.0)
        else:
            made = declare_op("acme.mine")(lambda x: x)
            made = register_cpu_kernel(made, (lambda x: x * 3) if route == "numpy" else "void rlx_custom(const float *x, float *out) { *out = *x * 3; }")
        b = Builder()
        compile(b.finish(made(b.input("x", (1,)))), device="reference").save(tmp_path / "m")
    with safetensors.safe_open(tmp_path / "m", "numpy") as file:
        found, = json.loads(file.metadata()["ops"])
    assert (found["module"], found["package"], found["lowers"]) == ("test_saved", "", route == "lower")
    assert any("* 3" in text for text in found["source"].values())
    assert not any("rlxpy" in text for text in found["source"].values())


@pytest.mark.parametrize("path", [None, 3, b"name"])
def test_what_is_no_path_is_an_error(path: Any) -> None:
    graph, params = model()
    with pytest.raises(InputError, match="is no path"):
        compile(graph, params, device="reference").save(path)
    with pytest.raises(InputError, match="is no path"):
        rlxpy.load(path)


def test_an_op_that_means_something_else_here_is_seen(tmp_path: Path) -> None:
    with registry():
        graph, params = model(softcap())
        compile(graph, params).save(tmp_path / "m")
    with registry():
        register_op(OpExtension("acme.softcap", OpRow(1, shape=lambda x, cap, label: x.shape[:1], dtype=lambda x, cap, label: x.dtype, ref=lambda x, cap, label: x[:, 0], attrs=Cap)))
        with pytest.raises(LoadError, match="its graph cannot be read"):
            rlxpy.load(tmp_path / "m")


@pytest.mark.parametrize(("key", "value", "said"), [
    ("format", "rlxpy graph 99", "is no saved graph"), ("options", '{"later": 1}', "options that this rlxpy lacks"), ("options", '{"weights": "none"}', "its options cannot be read"),
    ("options", "{", "its options cannot be read"), ("options", '{"optimise": "no"}', "its options cannot be read"), ("options", '{"debug": []}', "its options cannot be read"),
    ("ops", '[{"name": "a.b", "module": 3}]', "list of its ops"), ("ops", "7", "list of its ops"), ("ops", '[{"x": 1}]', "list of its ops"),
])
def test_a_file_that_is_not_right_is_a_load_error(tmp_path: Path, key: str, value: str, said: str) -> None:
    graph, params = model()
    compile(graph, params).save(tmp_path / "m")
    tensors = safetensors.numpy.load_file(tmp_path / "m")
    with safetensors.safe_open(tmp_path / "m", "numpy") as file:
        metadata = file.metadata()
    safetensors.numpy.save_file(tensors, tmp_path / "n", {**metadata, key: value})
    with pytest.raises(LoadError, match=said):
        rlxpy.load(tmp_path / "n")


def test_damaged_and_missing_files_are_errors(tmp_path: Path) -> None:
    graph, params = model()
    compile(graph, params).save(tmp_path / "m")
    raw = (tmp_path / "m").read_bytes()
    for cut in (0, 7, 100, len(raw) - 1):
        (tmp_path / "cut").write_bytes(raw[:cut])
        with pytest.raises(LoadError):
            rlxpy.load(tmp_path / "cut")
    (tmp_path / "bent").write_bytes(raw.replace(b"qmatmul", b"qmatmux"))
    with pytest.raises(LoadError, match=r"its graph cannot be read[\s\S]*qmatmux"):
        rlxpy.load(tmp_path / "bent")
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(LoadError):
            rlxpy.load(path)
    with pytest.raises(LoadError, match="cannot write"):
        compile(graph, params).save(tmp_path / "absent" / "m")
    assert not (tmp_path / "absent").exists()
    with pytest.raises(InputError):
        rlxpy.load(tmp_path / "m", device="nowhere")
