"""`rlx ops, opt, viz, devices` and `rlx inspect` of graphs: in this process, and as children where pipes and exit codes matter."""
from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import rlxpy
from rlxpy import Graph, Op, Value, parse, show
from rlxpy.cli.app import app
from rlxpy.compiler.devices import choose
from rlxpy.extend.passes import pass_registry, register_ir_pass
from rlxpy.fusion.pipeline import run as run_passes, standard
from rlxpy.fusion.rebuild import rebuild
from rlxpy.tools.equivalence import compare
from rlxpy.tools.op_table import example

for command in ("devices", "emit", "inspect", "ops", "opt", "tune", "viz", "why"):
    import_module(f"rlxpy.cli.{command}")
RLX = (sys.executable, "-m", "rlxpy")
SPEC = choose("reference").backend.spec
LAYER = """graph layer(B in 1..8) {
  %0 = input {name='x'} : f32[B,16]
  %1 = param {name='w'} : f32[16,32]
  %2 = param {name='b'} : f32[32]
  %3 = matmul %0, %1 : f32[B,32]
  %4 = add %3, %2 : f32[B,32]
  %5 = gelu %4 : f32[B,32]
  %6 = neg %5 : f32[B,32]
  %7 = neg %6 : f32[B,32]
  return y=%7
}
"""


@pytest.fixture
def layer(tmp_path: Path) -> str:
    path = tmp_path / "layer.rlx"
    path.write_text(LAYER)
    return str(path)


def rlx(*args: str, text: str | bytes | None = None) -> Any:
    """In this process.  Whatever ends a command is an exit code, never another exception."""
    done = CliRunner().invoke(app, list(args), input=text)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def told(*args: str, text: str | None = None) -> Any:
    done = rlx(*args, "--json", text=text)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


# ---- ops
def test_ops_lists_every_op_of_the_table() -> None:
    rows = told("ops")
    assert [r["name"] for r in rows] == [op.text for op in Op if op is not Op.CUSTOM]
    by_name = {r["name"]: r for r in rows}
    assert by_name["softmax"]["attrs"] == ["axis: int = -1"]
    assert by_name["add"]["elementwise"]
    assert not by_name["matmul"]["elementwise"]
    assert by_name["gather"]["dtypes"] == ["any", "index"]
    assert by_name["layer_norm"]["inputs"] == "1 to 3"
    assert by_name["concat"]["inputs"] == "1 or more"
    assert by_name["argmax"]["cells"]["vjp"].startswith("not differentiable")
    assert len(rlx("ops").stdout.splitlines()) == len(rows) + 1


@pytest.mark.parametrize("op", [op for op in Op if op is not Op.CUSTOM], ids=lambda op: op.text)
def test_every_op_has_a_page_and_its_lowering_computes_the_same(op: Op) -> None:
    data, text = told("ops", op.text), rlx("ops", op.text).stdout
    assert text.startswith(f"{op.text} (")
    assert op.row.doc in text
    assert (data["lowering"] is not None) == (callable(op.row.lower) and op is not Op.FUSED)
    if data["lowering"]:
        alone = example(op.text)
        assert alone is not None
        lowered = parse(data["lowering"])
        assert op not in {n.op for n in lowered}
        assert all(d.same for d in compare(alone, lowered))


def test_extensions_are_in_the_table() -> None:
    from rlxpy.ir.extension import OpExtension, register_op, registry

    with registry():
        register_op(OpExtension("acme.twice", Op.NEG.row))
        assert told("ops")[-1]["name"] == "acme.twice"
        assert told("ops", "acme.twice")["extension"]
        assert rlx("ops", "acme.twise").stderr.count("acme.twice") == 1


def test_an_unknown_op_names_what_is_near() -> None:
    done = rlx("ops", "sofmax")
    assert done.exit_code == 1
    assert "softmax" in done.stderr
    assert json.loads(rlx("ops", "sofmax", "--json").stdout)["what"] == "no op 'sofmax'"


# ---- devices
def test_devices_tells_which_work_and_which_is_the_default() -> None:
    data = told("devices")
    rows = {d["device"]: d for d in data["devices"]}
    assert rows["reference"]["usable"]
    assert rows["reference"]["missing"] == ""
    assert rows[data["default"]]["usable"]
    assert all(d["usable"] or d["missing"] for d in data["devices"])
    assert rlx("devices").stdout.splitlines()[0].split() == ["device", "usable", "default", "comes", "with", "reason"]


def test_devices_fails_when_the_environment_names_none_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_DEVICE", "nosuch")
    done = rlx("devices", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["default"] is None
    assert json.loads(done.stdout)["error"]["what"] == "no device 'nosuch'"


# ---- opt
def test_opt_prints_what_the_pipeline_makes(layer: str) -> None:
    done = rlx("opt", layer)
    blocks = done.stdout.rstrip("\n").split("\n\n")
    names = [b.split()[1].rstrip(":") for b in blocks]
    assert names == ["input", *(r.name for r in run_passes(parse(LAYER), standard(SPEC))[1].runs)]
    graphs = [parse(b) for b in blocks if "graph" in b]
    assert graphs[0] == parse(LAYER)
    assert graphs[-1] == run_passes(parse(LAYER), standard(SPEC))[0]
    assert all(b.endswith(": unchanged") for b in blocks if "graph" not in b)
    assert f"fused matmul: matmul add gelu : f32[B,32]  ({layer}:7)" in done.stderr


def test_opt_reads_stdin_and_runs_what_it_is_told(layer: str) -> None:
    piped, named = rlx("opt", "-", "--passes", "canonicalise", "--final", text=LAYER), rlx("opt", layer, "--passes", " canonicalise ,", "--final")
    assert [n.op for n in parse(piped.stdout)] == [Op.INPUT, Op.PARAM, Op.PARAM, Op.MATMUL, Op.ADD, Op.GELU]
    assert parse(piped.stdout) == parse(named.stdout)
    assert parse(rlx("opt", layer, "--passes", "", "--final").stdout) == parse(LAYER)


def test_opt_picks_one_stage(layer: str) -> None:
    assert len(parse(rlx("opt", layer, "--after", "canonicalise").stdout)) == 6
    assert [n.label for n in parse(rlx("opt", layer, "--after", "legalise").stdout)] == ["input", "param", "param", "fused matmul"]
    done = rlx("opt", layer, "--passes", "fuse", "--after", "canonicalise")
    assert done.exit_code == 1
    assert "these did: input, fuse" in done.stderr


def test_opt_report_as_json(layer: str) -> None:
    data = told("opt", layer, "--check")
    assert (data["graph"], data["device"]) == ("layer", "reference")
    assert [p["name"] for p in data["passes"]] == ["input", *(r.name for r in run_passes(parse(LAYER), standard(SPEC))[1].runs)]
    assert parse(data["passes"][0]["text"]) == parse(LAYER)
    fused = [n for p in data["passes"] for n in p["notes"] if n["kind"] == "fused"]
    assert [n["label"] for n in fused] == ["matmul"]
    assert [(c["name"], c["same"]) for c in data["check"]] == [("y", True)] * 2
    assert [p["text"] is not None for p in told("opt", layer, "--final")["passes"]][-2:] == [False, True]


def test_opt_lists_passes() -> None:
    data = told("opt", "--list")
    assert data["order"] == [p.name for p in standard(SPEC)]
    assert {p["name"] for p in data["passes"]} >= {"canonicalise", "find-composites", "fuse", "legalise", "lower-extensions"}
    assert all(p["does"].endswith(".") for p in data["passes"])


class Wrong:
    """A pass that keeps every type and changes a value."""

    name = "wrong"

    def __call__(self, graph: Graph) -> Graph:
        return rebuild(graph, lambda b, n, xs, new: xs[0] + xs[1] + 1e-3 if n.op is Op.ADD else None, self.name)


def test_check_finds_a_wrong_pass(layer: str) -> None:
    with pass_registry():
        register_ir_pass(Wrong())
        done = rlx("opt", layer, "--passes", "wrong", "--check", "--json")
        assert done.exit_code == 1
        assert [c["same"] for c in json.loads(done.stdout)["check"]] == [False, False]
        assert "DIFFERENT" in done.stderr
        assert rlx("opt", layer, "--passes", "canonicalise", "--check").exit_code == 0


@pytest.mark.parametrize(("text", "words"), [
    ("", "ends too early"),
    (LAYER.replace("gelu", "gelux"), "line 7: %5 = gelux %4 : f32[B,32]"),
    (LAYER.replace("%5 = gelu %4 : f32[B,32]", "%5 = gelu %4 : f32[B,31]"), ":7"),
    (LAYER.replace("%5 = gelu %4", "%5 = gelu %9"), "line 7"),
    (LAYER.replace("%5 = gelu", "%6 = gelu"), "line 7"),
    (LAYER.replace("name='w'", "nam='w'"), "line 3"),
    (LAYER.replace("add %3, %2", "add %3"), ":6"),
    (LAYER.replace("f32[32]", "f33[32]"), "line 4"),
    (LAYER.replace("return y=%7", "return y=%8"), "line 10"),
    (LAYER + "more", "after the end"),
    (LAYER.replace("gelu", "acme.gelu"), "not registered"),
    ("{}", "line 1"),
])
def test_a_wrong_text_is_an_error_with_its_line(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "g.rlx"
    path.write_text(text)
    for command in ("opt", "inspect", "viz"):
        done = rlx(command, str(path))
        assert done.exit_code == 1
        assert done.stdout == ""
        assert words in done.stderr, done.stderr


@pytest.mark.parametrize(("args", "code", "words"), [
    (["opt"], 2, "FILE"),
    (["opt", "nosuch.rlx"], 1, "No such file"),
    (["opt", "."], 1, "directory"),
    (["opt", "\0"], 1, "cannot read"),
    (["opt", "-", "--passes", "fuse,nosuch"], 1, "no pass 'nosuch'"),
    (["opt", "-", "--device", "nosuch"], 1, "no device 'nosuch'"),
    (["opt", "-", "--device", ""], 1, "device"),
    (["opt", "-", "--seed", "-1", "--check"], 2, "--seed"),
    (["opt", "-", "--seed", "x"], 2, "--seed"),
    (["opt", "-", "--nosuch"], 2, "--nosuch"),
    (["viz"], 2, "FILE|MODEL"),
    (["viz", "nosuch/model"], 1, "no model 'nosuch/model'"),
    *(([command, "nosuch.rlx"], 1, "No such file") for command in ("inspect", "viz")),
    (["viz", "-", "--boxes", "0"], 2, "--boxes"),
    (["viz", "-", "--boxes", "many"], 2, "--boxes"),
    (["viz", "-", "--html", "-", "--dot", "-"], 2, "stdout"),
    (["viz", "-", "--html", "nosuch/folder/out.html"], 1, "cannot write"),
    (["viz", "-", "--dot", "."], 1, "cannot write"),
    (["viz", "-", "--after", "nosuch"], 1, "did not run"),
    (["ops", "a", "b"], 2, "b"),
    (["devices", "surplus"], 2, "surplus"),
])
def test_misuse_is_told(args: list[str], code: int, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    done = rlx(*args, text=LAYER)
    assert (done.exit_code, done.stdout) == (code, "")
    assert words in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_text_is_told() -> None:
    done = rlx("opt", "-", text=b"graph \xff")
    assert done.exit_code == 1
    assert "byte 6" in done.stderr


def test_damaged_texts_never_end_in_a_traceback() -> None:
    rng = random.Random(0)
    alphabet = "%0123456789[]{}(),:=#'\" abfgix.-\n\\"
    for _ in range(300):
        text = LAYER
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(("", rng.choice(alphabet), text[at] * 2)) + text[at + rng.choice((0, 1, 1, 7)):]
        done = rlx("opt", "-", "--final", text=text)
        assert done.exit_code in (0, 1)
        assert (done.exit_code == 0) == (done.stdout != "")


# ---- viz
def test_viz_prints_a_digraph_for_every_pass_or_for_one(layer: str) -> None:
    assert re.findall('^digraph "layer.rlx: (.*)" {', rlx("viz", layer).stdout, re.MULTILINE) == ["input", "canonicalise", "fuse"]
    one = rlx("viz", layer, "--after", "fuse").stdout
    assert len(re.findall("^digraph ", one, re.MULTILINE)) == 1
    assert "fused matmul" in one


def test_viz_writes_files_whole_and_says_so(layer: str, tmp_path: Path) -> None:
    html, text = tmp_path / "out.html", tmp_path / "out.dot"
    html.write_text("old")
    done = rlx("viz", layer, "--html", str(html), "--dot", str(text))
    assert done.stdout == ""
    assert done.stderr == f"wrote {html}\nwrote {text}\n"
    assert html.read_text("utf-8").startswith("<!doctype html>")
    assert text.read_text("utf-8").startswith("digraph")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["layer.rlx", "out.dot", "out.html"]
    assert rlx("--quiet", "viz", layer, "--html", os.devnull).stderr == ""
    assert rlx("viz", "-", "--html", "-", text=LAYER).stdout.endswith("</html>\n")


def test_why_and_tune_speak_of_the_graph_that_embed_runs(minilm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts one after another, not side by side: what was tuned for another graph would serve nothing.  Sizes may be given as texts and their length."""
    from rlxpy.tools import tune

    asked: list[tuple[set[str], dict[str, int]]] = []

    def measured(graph: Graph, params: Any, *, sizes: dict[str, int], **_: Any) -> tuple[()]:
        asked.append((set(graph.symbols), sizes))
        return ()

    monkeypatch.setattr(tune, "tune", measured)
    for sizes in ((), ("--sizes", "B=2,S=8"), ("--sizes", "B=2,N=16")):
        assert rlx("tune", str(minilm_folder), *sizes).exit_code == 0
    assert asked == [({"B", "N"}, {"B": 1, "N": 16}), ({"B", "N"}, {"B": 2, "N": 16}), ({"B", "N"}, {"B": 2, "N": 16})]
    types = {n["type"] for n in json.loads(rlx("why", str(minilm_folder), "--node", "attention", "--json").stdout)["nodes"]}
    assert types == {"f32[1,12,N,32]"}
    launches = json.loads(rlx("emit", str(minilm_folder), "--json").stdout)["launches"]
    assert {launch["text"].split(" : ")[1] for launch in launches if "attention" in launch["op"]} == {"f32[1,N,384]"}


def test_viz_draws_a_model_and_says_what_it_folded(minilm_folder: Path) -> None:
    done = rlx("viz", str(minilm_folder), "--after", "fuse")
    assert done.exit_code == 0
    assert "folded: layer.2 .. layer.5 (4 blocks, " in done.stderr
    assert 'label="layer.0"' in done.stdout
    assert "starts" in done.stdout  # texts lie one after another, as embed runs them
    assert "word_embeddings.weight" in done.stdout


# ---- inspect
def test_inspect_knows_graph_files(layer: str, tmp_path: Path) -> None:
    data = told("inspect", layer)
    assert (data["graph"], data["nodes"]) == ("layer", 8)
    assert data["sizes"] == {"B": {"least": 1, "most": 8, "step": 1}}
    assert [(v["role"], v["name"], v["type"], v["nbytes"]) for v in data["values"]] == [
        ("input", "x", "f32[B,16]", 512), ("param", "w", "f32[16,32]", 2048), ("param", "b", "f32[32]", 128), ("output", "y", "f32[B,32]", 1024)]
    assert data["ops"]["neg"] == 2
    text = rlx("inspect", layer).stdout
    assert "B     1..8" in text
    other = tmp_path / "named_otherwise"
    other.write_text("// made by hand\n\n" + LAYER)
    assert rlx("inspect", str(other)).stdout == text


# ---- equality of graphs
def binary(make: Any, dtype: str = "f32") -> Graph:
    b = rlxpy.Builder()
    x, y = b.input("x", (5, 3), dtype), b.input("y", (3,), dtype)
    return b.finish(make(x, y))


@pytest.mark.parametrize(("dtype", "right", "wrong"), [
    ("f32", lambda x, y: (x - y) * (x + y), lambda x, y: (x - y) * (x + y) * 1.0001),
    ("f64", lambda x, y: x * y, lambda x, y: x * y + 1e-9),
    ("f16", lambda x, y: x + y, lambda x, y: x + y + 0.125),
    ("i32", lambda x, y: x * y, lambda x, y: x * y + 1),
    ("f32", lambda x, y: x / (y - y), lambda x, y: x.abs() / (y - y)),
])
def test_compare_tells_equal_from_different(dtype: str, right: Any, wrong: Any) -> None:
    first = binary(right, dtype)
    assert all(d.same for d in compare(first, first))
    assert not all(d.same for d in compare(first, binary(wrong, dtype)))


def test_compare_runs_twice_so_that_a_lost_state_shows() -> None:
    def counting(keep: bool) -> Graph:
        b = rlxpy.Builder()
        x, kept = b.input("x", (3,)), b.state("sum", (3,))
        total = kept + x
        b.update(kept, total if keep else kept)
        return b.finish(total)

    assert [d.same for d in compare(counting(True), counting(True))] == [True, True]
    assert [d.same for d in compare(counting(True), counting(False))] == [True, False]


def test_compare_finds_indices_that_the_graph_accepts_and_sizes_that_fit() -> None:
    b = rlxpy.Builder()
    s = rlxpy.sym("S", 4, 64, step=4)
    at = b.input("at", (s,), "i64")
    y = b.param("table", (2, 7)).gather(at, axis=0)
    g = b.finish(y)
    assert all(d.same and d.type == "f32[S,7]" for d in compare(g, g))


def test_compare_packs_weights_as_their_encoding_wants() -> None:
    b = rlxpy.Builder()
    x, w = b.input("x", (2, 64)), b.param("w", (3, 68), "u8")
    packed: Value = x.qmatmul(w, encoding="q8_0", shape=(3, 64))
    g = b.finish(packed)
    got = compare(g, run_passes(g, standard(SPEC))[0])
    assert all(d.same for d in got)
    assert np.isfinite([d.error for d in got]).all()


# ---- as a child
def child(*args: str, stdin: bytes = b"", **more: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*RLX, *args], input=stdin, capture_output=True, check=False, timeout=120, **more)


def test_a_child_keeps_stdout_for_data_and_stderr_for_talk() -> None:
    done = child("opt", "-", "--json", "--check", stdin=LAYER.encode())
    assert done.returncode == 0
    assert json.loads(done.stdout)["check"][0]["same"]
    assert done.stderr.startswith(b"fuse: fused matmul")
    assert child("--quiet", "opt", "-", "--check", stdin=LAYER.encode()).stderr == b""
    assert show(parse(child("opt", "-", "--passes", "", "--final", stdin=LAYER.encode()).stdout.decode())) + "\n" == LAYER


@pytest.mark.parametrize("args", [["ops"], ["opt", "-"], ["viz", "-"]])
def test_a_reader_that_has_seen_enough_ends_it_quietly(args: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as out:
        done = subprocess.run([*RLX, "--quiet", *args], input=LAYER.encode(), stdout=out, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr == b""


@pytest.mark.parametrize("name", ["kept.safetensors", "kept.rlx"])
def test_commands_read_a_compiled_graph_that_was_saved(name: str, tmp_path: Path) -> None:
    """Under the name of a text, too."""
    b = rlxpy.Builder("kept")
    path = str(tmp_path / name)
    rlxpy.compile(b.finish((b.input("x", (2, 3)) @ b.param("w", (3, 4))).softmax(axis=-1)), {"w": np.ones((3, 4), np.float32)}, device="reference").save(path)
    assert "softmax" in rlx("why", path, "--device", "reference").stdout
    assert "digraph" in rlx("viz", path).stdout
    out = tmp_path / "made"
    rlx("emit", path, "--target", "c99", "-o", str(out))
    assert (out / "kept.weights").read_bytes() == np.ones((3, 4), np.float32).tobytes()
    assert "its own" in rlx("emit", path, "--target", "c99", "-o", str(out), "--params", path).stderr


# ---- emit --target
def test_emit_writes_a_project(layer: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "w.npz", w=rng.normal(size=(16, 32)).astype(np.float32), b=np.ones(32, np.float32))
    out = str(tmp_path / "made")
    report = told("emit", layer, "--target", "c99", "-o", out, "--params", str(tmp_path / "w.npz"))
    assert report["target"] == "c99"
    assert [Path(p).name for p in report["files"]] == ["layer.h", "layer.c", "layer_test.c", "Makefile", "layer.weights", "layer.examples"]
    assert (tmp_path / "made" / "layer.weights").stat().st_size == 4 * (16 * 32 + 32)
    assert "index.html" in rlx("emit", layer, "--target", "html", "-o", out).stdout  # a drawing needs no weights


@pytest.mark.parametrize(("args", "code", "said"), [
    (("--target", "c99"), 2, "--out"), (("--target", "c98", "-o", "made"), 1, "no target 'c98'"), (("--target", "c99", "-o", "made"), 1, "2 of 2 params are missing"),
    (("--target", "c99", "-o", "made"), 1, "--params FILE"),
])
def test_a_project_that_cannot_be_is_an_error(layer: str, args: tuple[str, ...], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = rlx("emit", layer, *args)
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "made").exists()
