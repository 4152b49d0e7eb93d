"""SystemVerilog in simulation, bit for bit: every op of the subset on its types' extremes, networks, refusals; and what other tools say of the text."""
from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, DType, Graph, sym
from rlxpy.errors import InputError, LegaliseError
from rlxpy.extend import OpExtension, OpRow, register_op, registry
from rlxpy.extend.target import Target
from rlxpy.ir import spatial_functions as S
from rlxpy.ir.dtypes import Array
from rlxpy.ir.op import Op
from rlxpy.ir.row import BITS
from rlxpy.targets.projects import record, target, write
from rlxpy.targets.systemverilog.project import SystemVerilog
from rlxpy.targets.systemverilog.steps import design
from rlxpy.targets.systemverilog.subset import EXPRESSIONS, FOLDS, SUBSET, VIEWS, literal

TYPES = [d for d in DType if d in BITS]
SECONDS = 100


def needs(*tools: str, package: str) -> pytest.MarkDecorator:
    missing = [t for t in tools if not shutil.which(t)]
    return pytest.mark.skipif(bool(missing), reason=f"SystemVerilog did not run: no {', '.join(missing)} here; apt-get install {package}")


simulated = needs("iverilog", "vvp", "make", package="iverilog")


def make(folder: Path, goal: str = "test") -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "--silent", goal], cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)


def project(folder: Path, graph: Graph, runs: Sequence[Mapping[str, Array]] = (), params: Mapping[str, Array] | None = None) -> Path:
    write(graph, params or {}, "systemverilog", folder, record(graph, params or {}, runs))
    return folder


def passes(folder: Path, graph: Graph, runs: Sequence[Mapping[str, Array]] = (), params: Mapping[str, Array] | None = None) -> str:
    """The test bench compares every number of every run, and the tools have nothing to say."""
    done = make(project(folder, graph, runs, params))
    assert done.returncode == 0, done.stdout + done.stderr
    numbers = sum(int(t.numel) for t in graph.output_types)
    assert f"PASS: {numbers * (len(runs) or 2)} numbers" in done.stdout
    assert not done.stderr
    return done.stdout


def whole(rng: np.random.Generator, shape: Sequence[int], d: DType = DType.I8) -> Array:
    """All of the type's range, its ends among them."""
    low, high = d.range
    made = rng.integers(low, high, tuple(shape), endpoint=True, dtype=np.int64 if d.kind != "u" else np.uint64).astype(d.numpy)
    made.flat[0] = low
    made.flat[-1] = high
    return made


def extremes(d: DType) -> Array:
    low, high = d.range
    return np.array(sorted({low, low + 1, low // 2, -1, 0, 1, 2, 3, 7, d.bits - 1, d.bits, high // 2, high - 1, high} & set(range(low, high + 1)))
                    if d.bits < 32 else [v for v in (low, low + 1, -65537, -1, 0, 1, 2, 3, 7, d.bits - 1, d.bits, 65536, high - 1, high) if low <= v <= high], d.numpy)


def requantise(total: Any, scale: int, shift: int, zero: int = 0) -> Any:
    return (((total.cast(to="i64") * scale + (1 << (shift - 1))) >> shift) + zero).clamp(-128, 127).cast(to="i8")


# ---- ops -----------------------------------------------------------------------------------------------------------
def every_op(d: DType) -> tuple[Graph, dict[str, Array]]:
    """Each elementwise op that the type has, on every pair of its extremes and a third of them."""
    some = extremes(d)
    triples = np.array([(x, y, some[(i + 3 * j) % len(some)]) for (i, x), (j, y) in product(enumerate(some), repeat=2)], d.numpy)
    b = Builder(f"every_{d}")
    xs = [b.input(name, (len(triples),), d) for name in "xyz"]
    outputs = []
    for op in EXPRESSIONS:
        assert isinstance(op.row.arity, int)
        accepted = [op.row.dtypes[min(k, len(op.row.dtypes) - 1)] for k in range(op.row.arity)]
        if op is Op.WHERE:
            outputs.append((xs[0] < xs[1]).where(xs[1], xs[2]) if d is not DType.BOOL else xs[0].where(xs[1], xs[2]))
        elif op is Op.CAST:
            outputs += [xs[0].cast(to=to) for to in TYPES if to is not d]
        elif all(d in a for a in accepted):
            outputs.append(b.emit(op, *xs[: len(accepted)]))
    return b.finish(*outputs), dict(zip("xyz", triples.T, strict=True))


@simulated
@pytest.mark.parametrize("d", TYPES, ids=str)
def test_every_elementwise_op_wraps_and_compares_as_numpy_does(d: DType, tmp_path: Path) -> None:
    graph, inputs = every_op(d)
    passes(tmp_path, graph, [inputs])


def test_every_op_of_the_subset_is_in_some_test() -> None:
    met = {n.op for d in TYPES for n in every_op(d)[0]} | {n.op for graph, *_ in (*FOLDED.values(), mlp()) for n in graph}
    assert met >= SUBSET


def folded(name: str, build: Any, *shapes: tuple[int, ...], d: DType = DType.I8) -> tuple[Graph, list[dict[str, Array]]]:
    b, rng = Builder(name), np.random.default_rng(len(name))
    made: Any = build(*(b.input(f"x{k}", shape, d) for k, shape in enumerate(shapes)))
    runs = [{f"x{k}": whole(rng, shape, d) for k, shape in enumerate(shapes)}, {f"x{k}": np.full(shape, d.range[0], d.numpy) for k, shape in enumerate(shapes)}]
    outputs: tuple[Any, ...] = made if isinstance(made, tuple) else (made,)
    return b.finish(*outputs), runs


def wide(x: Any) -> Any: return x.cast(to="i32")


SAMPLES: list[tuple[str, DType, Any, list[tuple[int, ...]]]] = [
    ("matmul", DType.I8, lambda x, y: wide(x) @ wide(y), [(3, 7), (7, 5)]),
    ("matmul_wraps", DType.I8, lambda x, y: x @ y, [(3, 7), (7, 5)]),
    ("matmul_batches", DType.I16, lambda x, y: wide(x) @ wide(y), [(2, 1, 3, 5), (3, 5, 2)]),
    ("matmul_one", DType.I8, lambda x, y: wide(x) @ wide(y), [(1, 1), (1, 1)]),
    ("matmul_views", DType.I8, lambda x, y: wide(x.T) @ wide(y.reverse(axes=(0,)))[:, ::2], [(5, 3), (5, 7)]),
    ("matmul_itself", DType.I8, lambda x: wide(x) @ wide(x.T), [(3, 5)]),
    ("two_products", DType.I8, lambda x, y: (wide(x) @ wide(y)) - (wide(y) @ wide(x)) * 3, [(4, 4), (4, 4)]),
    ("unsigned", DType.U8, lambda x, y: wide(x) @ wide(y), [(3, 7), (7, 5)]),
    ("conv1", DType.I8, lambda x, w: S.conv(wide(x), wide(w), strides=2, padding=[(2, 1)], dilation=2), [(2, 3, 11), (5, 3, 3)]),
    ("conv2_same", DType.I8, lambda x, w: S.conv(wide(x), wide(w), strides=(2, 1), padding="same"), [(2, 3, 5, 7), (4, 3, 3, 2)]),
    ("conv2_groups", DType.I8, lambda x, w: S.conv(wide(x), wide(w), padding=(1, 0), groups=3), [(2, 6, 4, 5), (9, 2, 2, 3)]),
    ("depthwise", DType.I8, lambda x, w: S.conv(wide(x), wide(w), padding=1, groups=3) + wide(w).sum(axes=(1, 2, 3)).reshape(shape=(3, 1, 1)), [(1, 3, 4, 5), (3, 1, 3, 3)]),
    ("conv3", DType.I8, lambda x, w: S.conv(wide(x), wide(w), strides=(1, 2, 1), padding="same"), [(1, 2, 3, 4, 3), (2, 2, 2, 3, 2)]),
    ("max_pool", DType.I8, lambda x: S.max_pool(x, 3, strides=(2, 1), padding=1, dilation=(1, 2)), [(2, 3, 7, 6)]),
    ("max_pool_unsigned", DType.U16, lambda x: S.max_pool(x, 2, padding=[(1, 0), (0, 1)]), [(1, 2, 5, 3)]),
    ("reductions", DType.I8, lambda x: (wide(x).sum(axes=(1,)), x.max(axes=(0, 2), keep=True), x.min(axes=(-1,)) + 1, x.sum(axes=(0, 1, 2)), x.max(axes=())), [(3, 4, 5)]),
    ("pad", DType.I8, lambda x: x.pad(low=(1, 0, 2), high=(0, 3, 1), value=-7.0), [(2, 3, 4)]),
    ("walks", DType.I16, lambda x: (x.T.reshape(shape=(15,)), x[1:, ::2], x.reverse(axes=(0, 1)), x.expand(shape=(2, 3, 5)), x.windows(axis=1, size=3, stride=2), x, x), [(3, 5)]),
    ("narrow_then_wide", DType.I8, lambda x: (x.relu().cast(to="u8").cast(to="i64"), x.cast(to="u32").cast(to="i64"), wide(x), wide(x) * wide(x)), [(5,)]),
    ("broadcasts", DType.I16, lambda x, y, z: (x + y) * z - y.max(axes=(0,)), [(3, 1), (5,), ()]),
    ("chain", DType.I32, lambda x: reduce(lambda y, k: (y + k) ^ (7 * k), range(500), x), [(2,)]),
]
FOLDED = {name: folded(name, build, *shapes, d=d) for name, d, build, shapes in SAMPLES}


@simulated
@pytest.mark.parametrize("name", FOLDED)
def test_folds_and_views(name: str, tmp_path: Path) -> None:
    passes(tmp_path, *FOLDED[name])


@simulated
def test_constants_become_memories_or_numbers(tmp_path: Path) -> None:
    b = Builder("constants")
    x = b.input("x", (3, 2), "i8")
    graph = b.finish(x + b.const(np.array([-128, 5], np.int8)), wide(x) @ b.const(np.full((2, 3), -3, np.int32)), x.maximum(-128), b.const(np.array([7], np.uint8)))
    passes(tmp_path, graph)
    assert (tmp_path / "data/const.hex").read_text() in ("80\n05\n", "fffffffd\n" * 6, "07\n")


# ---- networks ------------------------------------------------------------------------------------------------------
def mlp() -> tuple[Graph, dict[str, Array]]:
    """Two layers of different sizes, so of one structure, and a last one without relu."""
    b, rng = Builder("mlp"), np.random.default_rng(3)
    params: dict[str, Array] = {}
    x = b.input("x", (3, 11), "i8")
    for k, (rows, columns) in enumerate([(11, 7), (7, 9), (9, 5)]):
        params |= {f"layers.{k}.w": whole(rng, (rows, columns)), f"layers.{k}.b": rng.integers(-9999, 9999, columns, np.int32)}
        w, bias = b.param(f"layers.{k}.w", (rows, columns), "i8"), b.param(f"layers.{k}.b", (columns,), "i32")
        x = requantise(wide(x) @ wide(w) + bias, 1518500250 + k, 37)
        x = x.relu() if k < 2 else x
    return b.finish(x, names=("logits",)), params


def by_hand(params: Mapping[str, Array], x: Array) -> Array:
    """The same in Python's integers, which neither wrap nor round."""
    rows: Any = x.tolist()
    for k in range(3):
        w, bias = params[f"layers.{k}.w"].tolist(), params[f"layers.{k}.b"].tolist()
        totals = [[sum(a * w[i][j] for i, a in enumerate(row)) + bias[j] for j in range(len(bias))] for row in rows]
        rows = [[max(-128, min(127, (t * (1518500250 + k) + (1 << 36)) >> 37)) for t in row] for row in totals]
        rows = [[max(v, 0) for v in row] for row in rows] if k < 2 else rows
    return np.array(rows, np.int8)


def mlp_runs() -> list[dict[str, Array]]:
    return [{"x": whole(np.random.default_rng(k), (3, 11))} for k in range(2)] + [{"x": np.full((3, 11), v, np.int8)} for v in (-128, 127, 0)]


def test_the_recorded_runs_are_what_whole_numbers_give_and_some_saturate() -> None:
    graph, params = mlp()
    examples = record(graph, params, mlp_runs())
    for e in examples:
        np.testing.assert_array_equal(e.outputs[0], by_hand(params, e.inputs[0]))
    seen = np.concatenate([e.outputs[0].ravel() for e in examples])
    assert {-128, 127} <= set(seen.tolist())
    assert len(set(seen.tolist())) > 10


@simulated
def test_a_network_in_simulation_and_how_long_it_takes(tmp_path: Path) -> None:
    graph, params = mlp()
    cycles = sum(3 * rows * columns + 1 for rows, columns in [(11, 7), (7, 9), (9, 5)])
    assert f"{cycles} cycles each" in passes(tmp_path, graph, mlp_runs(), params)
    shared = {p.name: p.read_text() for p in (tmp_path / "rtl").iterdir()}
    assert sorted(n for n in shared if "matmul" in n) == ["matmul_add_mul_add_shift_right_clamp.sv", "matmul_add_mul_add_shift_right_clamp_relu.sv"]
    assert shared["rlx_mlp.sv"].count("matmul_add_mul_add_shift_right_clamp_relu #(") == 2


def cnn() -> tuple[Graph, dict[str, Array], list[dict[str, Array]]]:
    b, rng = Builder("cnn"), np.random.default_rng(5)
    x, w, bias = b.input("x", (2, 3, 9, 7), "i8"), b.param("w", (4, 3, 3, 3), "i8"), b.param("b", (4,), "i32")
    y = requantise(S.conv(wide(x), wide(w), bias, strides=(2, 1), padding="same"), 1234567, 27).relu()
    y = S.max_pool(y, 2, padding=(1, 0)).reshape(shape=(2, 36))
    y = requantise(wide(y) @ wide(b.param("w2", (36, 5), "i8")), 1500000, 28, zero=-3)
    params = {"w": whole(rng, (4, 3, 3, 3)), "b": rng.integers(-3000, 3000, 4, np.int32), "w2": whole(rng, (36, 5))}
    return b.finish(y), params, [{"x": whole(rng, (2, 3, 9, 7))}, {"x": np.full((2, 3, 9, 7), -128, np.int8)}, {"x": whole(rng, (2, 3, 9, 7))}]


@simulated
def test_a_convolutional_network_in_simulation(tmp_path: Path) -> None:
    graph, params, runs = cnn()
    passes(tmp_path, graph, runs, params)


@simulated
def test_random_graphs(tmp_path: Path) -> None:
    for seed in range(12):
        passes(tmp_path / str(seed), random_graph(seed))


def random_graph(seed: int) -> Graph:
    """A handful of values of one matrix shape, each made of earlier ones; every one that nobody reads is an output."""
    rng, b = np.random.default_rng(seed), Builder(f"random{seed}")
    values: list[Any] = [b.input(f"x{k}", (3, 3), "i32") for k in range(2)]
    makers = (lambda x, y: x @ y, lambda x, y: x + y.T, lambda x, y: (x > y).where(x, y.max(axes=(0,))), lambda x, y: x.reverse(axes=(1,)) * y, lambda x, y: x.cast(to="i8").cast(to="i32") - y,
              lambda x, y: x.T.reshape(shape=(9,)).reshape(shape=(3, 3)) ^ y, lambda x, y: x.sum(axes=(1,), keep=True) + (y >> 2), lambda x, y: x.cast(to="i64").sum(axes=(0,)).cast(to="i32") | y)
    for _ in range(12):
        x, y = (values[int(rng.integers(len(values)))] for _ in range(2))
        values.append(makers[int(rng.integers(len(makers)))](x, y))
    return b.finish(*values[-3:])


# ---- what is refused, and the test of the test bench ----------------------------------------------------------------
@simulated
@pytest.mark.parametrize("file", ["data/param_layers_1_w.hex", "test/in_x.hex", "test/out_logits.hex"])
def test_the_test_bench_fails_when_one_number_is_another(file: str, tmp_path: Path) -> None:
    graph, params = mlp()
    path = project(tmp_path, graph, mlp_runs(), params) / file
    path.write_text("".join(f"{int(line, 16) ^ 0x55:02x}\n" for line in path.read_text().split()))
    done = make(tmp_path)
    assert done.returncode != 0
    assert re.search(r"FAIL: [1-9]\d* of 75 numbers differ", done.stdout)
    assert "out_logits[" in done.stdout


@simulated
def test_the_test_bench_fails_when_done_never_comes(tmp_path: Path) -> None:
    graph, params = mlp()
    path = project(tmp_path, graph, mlp_runs(), params) / "rtl/rlx_mlp.sv"
    path.write_text(re.sub(r"assign done = .*;", "assign done = 1'b0;", path.read_text()))
    done = make(tmp_path)
    assert done.returncode != 0
    assert "cycles or more" in done.stdout


def test_everything_outside_the_subset_is_refused_at_once_with_its_line() -> None:
    b = Builder("outside")
    x, y, f, s = b.input("x", (3,), "i32"), b.input("y", (0, 2), "i8"), b.input("f", (3,)), b.state("s", (3,), "i32")
    b.update(s, s + x)
    n = b.input("n", (sym("N", 1, 4),), "i8")
    graph = b.finish(x // 3, f.exp(), y, x.cumsum(axis=0), n, x.pad(low=(1,), high=(0,), value=0.5))
    with pytest.raises(LegaliseError) as e:
        target("systemverilog").files(graph, {}, record(graph, {}))
    text = str(e.value)
    for said in ("floor_div : i32[3]", "shift_right divides", "exp : f32[3]", "f32 is neither", "input 'f'", "it has 0 elements", "cumsum", "this one is symbolic", "state 's'",
                 "nothing lives from run to run", "pads with 0.5, which is no i32", "max_pool"):
        assert said in text, f"{said!r} in {text}"
    assert text.count(Path(__file__).name) >= 8


def test_a_project_without_a_recorded_run_is_refused() -> None:
    with pytest.raises(InputError, match="no recorded run"):
        SystemVerilog().files(*mlp(), ())


@simulated
def test_an_extension_is_written_by_its_lowering_and_refused_without_one(tmp_path: Path) -> None:
    def row(lower: Any) -> OpRow:
        return OpRow(1, shape=lambda x: x.shape, dtype=lambda x: x.dtype, ref=lambda x: np.minimum(x * 2, 100), **({"lower": lower} if lower else {}))

    with registry():
        for lower in (lambda x: (x * 2).minimum(100), None):
            op = register_op(OpExtension("acme.twice", row(lower)))
            b = Builder("m")
            graph = b.finish(op(b.input("x", (5,), "i8")) + 1)
            if lower:
                passes(tmp_path, graph)
            else:
                with pytest.raises(LegaliseError, match=r"acme\.twice"):
                    project(tmp_path, graph)


# ---- text ----------------------------------------------------------------------------------------------------------
@simulated
def test_names_are_the_users_and_still_identifiers(tmp_path: Path) -> None:
    b = Builder("endmodule; // 漢字\nmodule")
    names = ["wire", "x.y", "x y", "x_y", "", "漢字", "a\nb", "1", "clk", "x" * 300]
    xs = [b.input(name, (2,), "i8") for name in names]
    total = xs[0]
    for x in xs[1:]:
        total = total + x * b.param(f"param {x.node.name}", (2,), "i8")
    graph = b.finish(total, total * 2, names=("wire", "w\n"))
    params = {n.name: np.array([k, -k], np.int8) for k, n in enumerate(graph.params)}
    passes(tmp_path, graph, [{name: np.array([k - 5, -128], np.int8) for k, name in enumerate(names)}], params)


@pytest.mark.parametrize(("value", "dtype", "text"), [(-128, "I8", "8'sh80"), (-127, "I8", "-8'sd127"), (5, "U16", "16'd5"), (1, "BOOL", "1'd1"), (-(1 << 63), "I64", "64'sh8000000000000000")])
def test_literals_have_the_width_and_sign_of_their_type(value: int, dtype: str, text: str) -> None:
    assert literal(value, DType[dtype]) == text


def test_weights_are_written_as_twos_complement(tmp_path: Path) -> None:
    b = Builder("m")
    graph = b.finish(b.input("x", (3,), "i8") + b.param("w", (3,), "i8"))
    project(tmp_path, graph, params={"w": np.array([-128, -1, 5], np.int8)})
    assert (tmp_path / "data/param_w.hex").read_text() == "80\nff\n05\n"


def test_what_is_elementwise_around_a_product_costs_no_memory() -> None:
    graph, params = mlp()
    made = design(graph, params)
    assert len(made.steps) == 3
    assert [m.dtype for m in made.memories if m.contents is None] == [DType.I8] * 4
    assert sum(m.contents is not None for m in made.memories) == 6


def test_the_target_is_found_by_name_and_every_row_of_its_tables_is_an_op_it_can_mean() -> None:
    assert isinstance(target("systemverilog"), Target)
    assert not [op for op in EXPRESSIONS if not op.row.scalar]
    assert not [op for op in VIEWS if not op.row.view]
    assert not set(FOLDS) & (set(EXPRESSIONS) | VIEWS)


def small() -> tuple[Graph, dict[str, Array]]:
    """Every construct that other tools may read differently: signs, casts, padding, reductions, shared modules."""
    b = Builder("small")
    x, w = b.input("x", (1, 1, 3, 2), "i8"), b.param("w", (1, 1, 2, 2), "i8")
    y = requantise(S.conv(wide(x), wide(w), padding=(1, 0)), 3, 4)
    return b.finish(y.relu(), S.max_pool(y, (2, 1)), x.max(axes=(2,)) < -1), {"w": np.array([[[[-128, 127], [3, -5]]]], np.int8)}


@needs("verilator", "make", package="verilator")
@pytest.mark.parametrize("case", ["small", "mlp", "cnn", *FOLDED])
def test_verilator_has_no_complaint(case: str, tmp_path: Path) -> None:
    graph, params = small() if case == "small" else mlp() if case == "mlp" else cnn()[:2] if case == "cnn" else (FOLDED[case][0], {})
    done = make(project(tmp_path, graph, params=params), "lint")
    assert done.returncode == 0, done.stderr


@simulated
@needs("yosys", package="yosys")
def test_what_yosys_makes_of_it_computes_the_same(tmp_path: Path) -> None:
    graph, params = small()
    done = make(project(tmp_path, graph, params=params), "cells")
    assert done.returncode == 0, done.stderr
    assert "Number of cells" in done.stdout
    netlist = subprocess.run(["iverilog", "-g2012", "-o", "cells", "build/rlx_small_cells.v", "test/rlx_small_test.sv"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert netlist.returncode == 0, netlist.stderr
    ran = subprocess.run(["vvp", "-N", "cells"], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert "PASS" in ran.stdout, ran.stdout
