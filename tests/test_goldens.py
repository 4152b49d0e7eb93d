"""Real models against figures that PyTorch gave in f32: every way to feed a text gives the same tokens and logits."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlxpy
from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.compiler.options import CompileOptions
from rlxpy.flow.families import DECODERS, ENCODERS, BertConfig, LlamaConfig, bert, llama
from rlxpy.generate.embedder import Embedder, pooling
from rlxpy.generate.generator import Generator
from rlxpy.generate.opened import OpenedModel, open_model
from rlxpy.ir.dtypes import Array

GOLDEN = Path(__file__).parent / "golden"
STORIES = json.loads((GOLDEN / "smollm2.json").read_text())["cases"]
SENTENCES = json.loads((GOLDEN / "minilm.json").read_text())["cases"]
CONTEXT = 48  # the longest prompt and its 32 tokens

stories = pytest.mark.parametrize("case", STORIES, ids=lambda case: repr(case["prompt"][:12]))


# ---- SmolLM2: tokens

@pytest.fixture(scope="session")
def smollm2(smollm2_gguf: Path) -> OpenedModel:
    return open_model(smollm2_gguf, DECODERS)


def compiled(model: OpenedModel, weights: str = "dense", **options: Any) -> CompiledGraph:
    """Logits after every token, so that one run proves what many steps of decoding would."""
    built = llama(LlamaConfig.of(model.config), context=CONTEXT, every=True, **options).build(model.weights)
    return rlxpy.compile(built.graph, built.params, device="reference", options=CompileOptions(weights=weights))


@pytest.fixture(scope="session")
def cached(smollm2: OpenedModel) -> CompiledGraph:
    return compiled(smollm2, chunk=CONTEXT)


@pytest.fixture(scope="session")
def uncached(smollm2: OpenedModel) -> CompiledGraph:
    return compiled(smollm2, cached=False)


@pytest.fixture(scope="session")
def packed(smollm2: OpenedModel) -> CompiledGraph:
    return compiled(smollm2, weights="packed", chunk=CONTEXT)


def fed(graph: CompiledGraph, ids: list[int], chunk: int) -> Array:
    """f32 [len(ids), vocab]: logits after each token, fed in chunks to a fresh cache."""
    state = graph.new_state()
    return np.concatenate([graph.run(np.array([ids[p:p + chunk]]), sizes={"P": p}, state=state)[0] for p in range(0, len(ids), chunk)])


def check(case: dict[str, Any], logits: Array) -> None:
    """logits: after each token of the prompt and of the golden answer but its last.  If each prefix picks the golden next token,
    decoding picks the golden answer."""
    start = len(case["ids"]) - 1
    top, values = zip(*case["last_logits_top5"], strict=True)
    assert np.argsort(-logits[start])[:5].tolist() == list(top)
    np.testing.assert_allclose(logits[start][list(top)], values, rtol=0, atol=2e-3)
    assert logits[start:].argmax(-1).tolist() == case["greedy"]


def whole(case: dict[str, Any]) -> list[int]:
    return [*case["ids"], *case["greedy"][:-1]]


@stories
def test_prompts_become_pytorchs_ids(case: dict[str, Any], smollm2: OpenedModel) -> None:
    assert smollm2.tokenizer.encode(case["prompt"]) == case["ids"]
    assert smollm2.tokenizer.decode(case["greedy"], skip_special=False) == case["greedy_text"]


@stories
@pytest.mark.parametrize("chunk", [CONTEXT, 1, 3, 16])
def test_tokens_and_logits_in_one_prefill_and_in_chunks(case: dict[str, Any], chunk: int, cached: CompiledGraph) -> None:
    check(case, fed(cached, whole(case), chunk))


@stories
def test_tokens_and_logits_without_a_cache(case: dict[str, Any], uncached: CompiledGraph) -> None:
    assert uncached.memory()["state_nbytes"] == 0
    check(case, uncached.run(np.array([whole(case)]))[0])


def test_tokens_and_logits_with_packed_weights(packed: CompiledGraph) -> None:
    """The shortest answer, in two runs: every run decodes all 135 million weights."""
    case = min(STORIES, key=lambda c: len(c["greedy"]))
    assert packed.memory()["param_nbytes"] < 100e6
    check(case, fed(packed, whole(case), 16))


PEAK = """
import sys
from pathlib import Path
from rlxpy.generate.generator import Generator
Generator.load(sys.argv[1], context=16, weights="packed").generate("Once", max_tokens=2)
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's largest memory in /proc")
def test_packed_weights_never_fill_the_memory_of_dense_ones(smollm2_gguf: Path) -> None:
    """A process of its own; as f32 the weights alone are 540 MB."""
    done = subprocess.run([sys.executable, "-c", PEAK, str(smollm2_gguf)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300_000


def test_generating_gives_the_golden_answer(smollm2: OpenedModel) -> None:
    """The loop itself, as `rlx run` uses it: one answer to its end token, the others as far as they tell."""
    generator = Generator.of(smollm2, context=CONTEXT, weights="dense")
    for case, reason in zip(STORIES, ("length", "eos", "length"), strict=True):
        found = generator.generate(case["prompt"], max_tokens=8)
        assert (found.prompt_ids, found.ids, found.reason) == (case["ids"], case["greedy"][:8], reason)
        assert case["greedy_text"].removesuffix("<|im_end|>").startswith(found.text)
        assert found.text == smollm2.tokenizer.decode(found.ids)


# ---- MiniLM: embeddings

@pytest.fixture(scope="session")
def minilm(minilm_folder: Path) -> Embedder:
    return Embedder.load(minilm_folder)


def close(got: Array, cases: list[dict[str, Any]]) -> None:
    assert np.abs(got - np.array([c["embedding"] for c in cases])).max() < 2e-5


def test_embeddings_alone_and_in_one_batch(minilm: Embedder) -> None:
    texts = [c["text"] for c in SENTENCES]
    found = minilm.embed(texts)
    assert found.token_counts == tuple(len(c["ids"]) for c in SENTENCES)
    close(found.vectors, SENTENCES)
    for case in SENTENCES:
        assert minilm.tokenizer.encode(case["text"]) == case["ids"]
        close(minilm.embed([case["text"]]).vectors, [case])


def test_embeddings_do_not_depend_on_padding(minilm_folder: Path) -> None:
    model = open_model(minilm_folder, ENCODERS)
    built = bert(BertConfig.of({**model.config, **pooling(minilm_folder, model.weights.metadata)}), max_batch=len(SENTENCES), max_length=128).build(model.weights)
    graph, longest = rlxpy.compile(built.graph, built.params), 21 + max(len(c["ids"]) for c in SENTENCES)
    seen = np.array([[i < len(c["ids"]) for i in range(longest)] for c in SENTENCES])
    for filler in (0, 2000):
        ids = np.full(seen.shape, filler)
        ids[seen] = [i for c in SENTENCES for i in c["ids"]]
        close(graph.run(ids, seen)[0], SENTENCES)
