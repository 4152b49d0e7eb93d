"""What one sees of a compiled graph: the C that was emitted, times by launch, work and traffic, and their pictures."""
from __future__ import annotations

import json
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models as tiny
from typer.testing import CliRunner

import rlxpy
from rlxpy import CompileOptions, Graph, compile
from rlxpy.backends.cpu.build import flags_of
from rlxpy.backends.cpu.compilers import Compiler, find_compiler
from rlxpy.backends.cpu.isa import ISAS, named
from rlxpy.cli.app import app
from rlxpy.errors import InputError
from rlxpy.flow.families import BertConfig, joined_bert
from rlxpy.ir.op import Op
from rlxpy.tools.bench import Bench, Case, TextBench, check_sizes, default_sizes
from rlxpy.tools.costs import cost
from rlxpy.tools.emit import emit
from rlxpy.tools.profile import chrome_trace, profile
from rlxpy.tools.profile_page import page
from rlxpy.tools.roofline import Roofline, roofline

for command in ("bench", "emit"):
    import_module(f"rlxpy.cli.{command}")


def layer() -> tuple[Graph, dict[str, Any]]:
    b = rlxpy.Builder("layer")
    x = b.input("x", (rlxpy.sym("N", 1, 64), 24))
    graph = b.finish((x @ b.param("mlp.up/weight", (24, 40)) + b.param("mlp.up/bias", (40,))).gelu().softmax(axis=-1))
    rng = np.random.default_rng(1)
    return graph, {"mlp.up/weight": rng.normal(size=(24, 40)).astype(np.float32), "mlp.up/bias": rng.normal(size=40).astype(np.float32)}


def compiler() -> Compiler:
    found = find_compiler()
    if not isinstance(found, Compiler):
        pytest.skip(f"no C compiler here: {found}")
    return found


# ---- emit
def test_emitted_c_has_the_users_names_and_lines() -> None:
    graph, _ = layer()
    made = emit(graph)
    assert "w_mlp_up_bias" in made.text
    assert "mlp_up_weight" in made.text
    assert all(name in made.text for name in made.kernels)
    assert any("gelu" in name for name in made.kernels)
    assert any("softmax" in name for name in made.kernels)
    assert all(Path(__file__).name in row["where"] for row in made.launches)
    assert {row["function"] for row in made.launches} == set(made.kernels)
    assert made.kernel("softmax").count("static") == 1


@pytest.mark.parametrize("isa", [i.name for i in ISAS if i.machine in ("x86_64", "")])
def test_emitted_c_compiles_on_its_own(isa: str, tmp_path: Path) -> None:
    c = compiler()
    if "x86_64" not in c.version and "x86_64" not in subprocess.run([*c.argv, "-dumpmachine"], capture_output=True, text=True, check=False).stdout:
        pytest.skip("this compiler writes for another kind of machine")
    graph, _ = layer()
    unit = tmp_path / "unit.c"
    unit.write_text(emit(graph, isa=isa).text)
    flags = [f for f in flags_of(named(isa), c) if f != "-shared"]
    done = subprocess.run([*c.argv, *flags, "-c", "-Wall", "-Werror=implicit-function-declaration", "-o", str(tmp_path / "unit.o"), str(unit)],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_same_graph_gives_the_same_text_and_names_never_meet() -> None:
    b = rlxpy.Builder("names")
    x = b.input("x", (3, 3))
    graph = b.finish(x @ b.param("a.b", (3, 3)) @ b.param("a_b", (3, 3)) @ b.param("a b", (3, 3)))
    text = emit(graph).text
    assert text == emit(graph).text
    assert all(f"  w_a_b{suffix} = " in text for suffix in ("", "_2", "_3"))


@pytest.mark.parametrize(("given", "what"), [
    ({"isa": "avx9"}, "no instruction set 'avx9'"), ({"isa": "avx2+amx9"}, "avx2 has no feature 'amx9'"), ({"device": "reference"}, "generates no source"),
    ({"device": "abacus"}, "no device"), ({"device": "reference", "isa": "avx2"}, "isa='avx2' with device")])
def test_what_cannot_be_emitted_says_why(given: dict[str, str], what: str) -> None:
    with pytest.raises(InputError, match=what):
        emit(layer()[0], given.get("device", "cpu"), isa=given.get("isa", ""))


def test_unknown_kernel() -> None:
    source = emit(layer()[0])
    with pytest.raises(InputError, match="no kernel named 'tanh'") as e:
        source.kernel("tanh")
    assert all(name in str(e.value) for name in source.kernels)


# ---- costs, against values worked out by hand
def only(graph: Graph, op: Op) -> Any:
    return next(n for n in graph if n.op is op)


def test_costs_by_hand() -> None:
    b = rlxpy.Builder("costs")
    n = rlxpy.sym("N", 1, 64)
    x, w = b.input("x", (2, n, 8)), b.param("w", (8, 16))
    q, k = b.input("q", (1, 4, n, 8)), b.input("k", (1, 2, n, 8))
    idx, big = b.input("idx", (5,), "i64"), b.param("table", (1000, 4))
    graph = b.finish(x @ w, x.exp(), q.attention(k, k, scale=0.5, mask="causal"), big.gather(idx, axis=0))
    sizes = {"N": 3}
    product = cost(graph, only(graph, Op.MATMUL), sizes)
    assert (product.flops, product.nbytes) == (2 * 2 * 3 * 16 * 8, 4 * (2 * 3 * 8 + 8 * 16 + 2 * 3 * 16))
    assert cost(graph, only(graph, Op.EXP), sizes).flops == 2 * 3 * 8
    pairs = 3 * 3 - 3  # the last query sees three keys, the first one
    assert cost(graph, only(graph, Op.ATTENTION), sizes).flops == 4 * pairs * (2 * 8 + 2 * 8 + 4)
    assert cost(graph, only(graph, Op.GATHER), sizes).nbytes == 5 * 8 + 2 * 5 * 4 * 4  # indices, rows read, rows written


@pytest.mark.parametrize("mask", ["none", "causal", "window"])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (7, 3), (1, 6)])
def test_pairs_of_an_attention_are_those_that_masks_and_spans_let_be_seen(mask: str, queries: int, keys: int) -> None:
    """Counted one by one."""
    b = rlxpy.Builder("attend")
    q, k, s = b.input("q", (2, 4, queries, 8)), b.input("k", (2, 2, keys, 8)), b.input("spans", (2, 1, queries, 2), "i64")
    attrs = {"scale": 1.0, "mask": mask, "window": 2 if mask == "window" else 0}
    graph = b.finish(q.apply("attention", (q, k, k), attrs), q.apply("attention", (q, k, k, s), attrs))
    spans = np.random.default_rng(0).integers(-1, keys + 2, (2, 1, queries, 2))
    back = np.arange(queries)[:, None] + keys - queries - np.arange(keys)
    seen = np.broadcast_to({"none": back < keys, "causal": back >= 0, "window": (back >= 0) & (back < 2)}[mask], (2, 4, queries, keys))
    within = (np.arange(keys) >= spans[..., :1]) & (np.arange(keys) < spans[..., 1:])
    plain, spanned = (n for n in graph if n.op is Op.ATTENTION)
    assert cost(graph, plain, {}).flops == seen.sum() * (8 + 8 + 2) * 2
    assert cost(graph, spanned, {}, spans=spans).flops == (seen & within).sum() * (8 + 8 + 2) * 2


def test_a_profile_counts_the_pairs_that_lengths_leave() -> None:
    """Five texts of 9 tokens, one after another: of every 5 pairs of tokens one is of the same text."""
    config = tiny.bert_config()
    model = joined_bert(BertConfig.of(config), max_texts=8, max_length=11).build(tiny.bert_weights(config))
    sizes = {"B": 5, "N": 45}
    f = compile(model.graph, model.params, device="reference")
    found = profile(f, *TextBench(model.graph, {}).inputs(sizes).values(), sizes=sizes, rounds=1)
    attentions = [x.flops for x in found.launches if "attention" in x.op]
    heads = config["num_attention_heads"]
    assert attentions == [5 * 9 * 9 * (4 * config["hidden_size"] + 4 * heads)] * config["num_hidden_layers"]


def test_a_fused_node_costs_what_its_chain_does_and_moves_less() -> None:
    graph, params = layer()
    fused, plain = (compile(graph, params, device="reference", options=CompileOptions(optimise=o)) for o in (True, False))
    both = [[cost(f.plan.graph, s.node, {"N": 5}) for s in f.plan.steps] for f in (fused, plain)]
    flops, nbytes = ([sum(getattr(c, field) for c in found) for found in both] for field in ("flops", "nbytes"))
    assert flops[0] == flops[1]
    assert nbytes[0] < nbytes[1]


# ---- profiles
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_profile_has_every_launch_once_and_its_times_fit_into_the_run(device: str, count: int) -> None:
    if device == "cpu":
        compiler()
    from rlxpy.tools.bench import using_threads

    graph, params = layer()
    f = compile(graph, params, device=device)
    x = np.random.default_rng(0).normal(size=(33, 24)).astype(np.float32)
    before = f(x)
    with using_threads(count):
        p = profile(f, x, rounds=3)
    np.testing.assert_array_equal(f(x), before)
    assert [x.node for x in p.launches] == [f"%{s.node.id}" for s in f.plan.steps]
    assert all(x.seconds > 0 and x.busy_seconds > 0 for x in p.launches)
    assert sum(p.share(x) for x in p.launches) == pytest.approx(1)
    ends = [s.end_ns for s in p.spans]
    assert all(s.begin_ns <= s.end_ns for s in p.spans)
    assert sum(s.end_ns - s.begin_ns for s in p.spans) <= (max(ends) - min(s.begin_ns for s in p.spans)) * max(count, 1)
    assert {s.thread for s in p.spans} <= set(range(count if device == "cpu" else 1))
    json.dumps(p.to_json())


def test_a_host_step_is_in_the_profile() -> None:
    compiler()
    b = rlxpy.Builder("host")
    x = b.input("x", (4, 6), "c64")
    f = compile(b.finish((x * x).T), device="cpu")
    tiers = {s.choice.tier for s in f.plan.steps}
    p = profile(f, np.ones((4, 6), np.complex64), rounds=2)
    assert {x.tier for x in p.launches} == tiers
    assert len(p.launches) == len(f.plan.steps)


def test_pictures_and_traces_tell_the_same() -> None:
    graph, params = layer()
    p = profile(compile(graph, params, device="reference"), np.ones((9, 24), np.float32), rounds=2)
    html, trace = page(p, "a <b> & c"), chrome_trace(p)
    assert "a &lt;b&gt; &amp; c" in html
    assert "http" not in html.replace("http-equiv", "")
    assert all(x.function in html for x in p.launches)
    assert len(trace["traceEvents"]) == len(p.spans)
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in trace["traceEvents"])


def test_the_roofline_is_the_slower_of_work_and_traffic() -> None:
    r = Roofline(1, 100.0, 10.0)
    assert r.seconds(100 * 10**9, 10**9) == 1.0
    assert r.seconds(10**9, 10 * 10**9) == 1.0


def test_the_machines_roofline_is_measured_once() -> None:
    compiler()
    first = roofline(1)
    assert first.gflops > 0.1
    assert first.gbytes > 0.1
    assert roofline(1) == first


# ---- bench
def test_bench_times_every_case_and_refuses_sizes_that_do_not_fit() -> None:
    graph, params = layer()
    cases = [Case({"N": n}, device="reference") for n in (1, 64)]
    timings = Bench(graph, params).run(cases, rounds=3)
    assert [t.case for t in timings] == cases
    assert all(len(t.seconds) == 3 and t.median > 0 for t in timings)
    assert timings[1].elements == 64 * 24
    for sizes, what in (({"N": 65}, "N=65"), ({"N": 900}, "try: N=64"), ({"N": -3}, "try: N=1"), ({"M": 3}, "no size 'M'"), ({}, "sizes of N are missing")):
        with pytest.raises(InputError, match=what):
            check_sizes(graph, sizes)
    assert default_sizes(graph) == [{"N": 1}]
    b = rlxpy.Builder("texts")
    with pytest.raises(InputError, match="or B texts of S tokens"):
        check_sizes(b.finish(b.input("x", (rlxpy.sym("B"), rlxpy.sym("N")))), {"S": 8})


def rlx(*args: str) -> Any:
    done = CliRunner().invoke(app, list(args))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def test_bench_takes_the_words_for_weights_that_run_takes(tmp_path: Path) -> None:
    config = tiny.decoder_config(hidden_size=64, intermediate_size=64)
    model = str(tiny.write_folder(tmp_path / "tiny", config, tiny.decoder_weights(config)))

    def benched(words: str, *more: str) -> Any:
        done = rlx("bench", model, "--device", "reference", "--rounds", "1", "--sizes", "P=0,T=3", "--weights", words, "--json", *more)
        assert done.exit_code == 0, done.output
        case = json.loads(done.stdout)["cases"][0]
        return case["numerics"], case["memory"]["param_nbytes"]

    (exact, plain), (rounded, int8), (still, q4) = map(benched, ("dense", "int8", "q4_0"))
    assert (exact, rounded, still) == ("highest", "low", "highest")
    assert q4 < int8 < plain / 2
    assert benched("int8", "--numerics", "high") == ("high", int8)
    file = tmp_path / "layer.rlx"
    file.write_text(rlxpy.show(layer()[0]))
    for source, words, says in ((model, "q4_9", "near it: q4_k"), (str(file), "int8", "packed while it is loaded"), (str(file), "q4_9", "near it: q4_k")):
        done = rlx("bench", source, "--device", "reference", "--weights", words)
        assert done.exit_code == 1
        assert says in done.output


def test_an_encoder_is_timed_as_it_is_run_without_padding(minilm_folder: Path) -> None:
    done = rlx("bench", str(minilm_folder), "--sizes", "B=3,S=5", "--sizes", "B=2,N=7", "--device", "reference", "--rounds", "1", "--profile", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [c["sizes"] for c in told["cases"]] == [{"B": 3, "N": 15}, {"B": 2, "N": 7}]
    assert [c["elements"] for c in told["cases"]] == [15, 7]
    assert told["cases"][0]["threads"] is told["profile"]["threads"] is None
    b = rlxpy.Builder("texts")
    ids, starts = b.input("ids", (1, rlxpy.sym("N", 1, 64)), "i64"), b.input("starts", (rlxpy.sym("B", 1, 8) + 1,), "i64")
    texts = TextBench(b.finish(ids * 2, starts * 2), {})
    assert default_sizes(texts.graph) == [{"N": 16, "B": 1}, {"N": 64, "B": 1}, {"N": 64, "B": 8}]
    for b_, n in ((1, 1), (3, 64), (8, 9)):
        given = texts.inputs({"B": b_, "N": n})["starts"]
        assert (given[0], given[-1], len(given)) == (0, n, b_ + 1)
        assert (np.diff(given) >= n // b_).all()


def test_commands(tmp_path: Path) -> None:
    graph, params = layer()
    file, html, trace = tmp_path / "layer.rlx", tmp_path / "p.html", tmp_path / "t.json"
    file.write_text(rlxpy.show(graph))
    done = rlx("bench", str(file), "--sizes", "N=7", "--device", "reference", "--rounds", "2", "--profile", "--html", str(html), "--trace", str(trace), "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["cases"][0]["sizes"] == {"N": 7}
    assert len(told["profile"]["launches"]) == len(compile(graph, params, device="reference").plan.steps)
    assert html.read_text().startswith("<!doctype html>")
    assert json.loads(trace.read_text())["traceEvents"]
    text = rlx("bench", str(file), "--sizes", "N=7", "--device", "reference", "--rounds", "1", "--profile", "--by", "op")
    assert text.exit_code == 0
    assert "softmax" in text.output
    emitted = rlx("emit", str(file), "--isa", "sse2", "--kernel", "softmax", "--json")
    assert emitted.exit_code == 0
    assert json.loads(emitted.stdout)["source"].count("static") == 1
    for args, code in ((["bench", str(file), "--sizes", "N"], 1), (["bench", str(file), "--threads", "two"], 1), (["bench", str(file), "--html", "x"], 2),
                       (["bench", str(file), "--by", "mood"], 2), (["emit", str(tmp_path / "none.rlx")], 1), (["emit", str(file), "--backend", "abacus"], 1)):
        assert rlx(*args).exit_code == code, args
