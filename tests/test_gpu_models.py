"""Whole models on the simulated GPU: tiny ones against the reference, real ones against PyTorch's figures."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_device import gpu as gpu, on_host
from tiny_models import bert_config, bert_weights, decoder_config, decoder_weights, write_folder

from rlxpy.generate.embedder import Embedder
from rlxpy.generate.generator import Generator

GOLDEN = Path(__file__).parent / "golden"
PROMPT = "the cat sat on the mat"


def rows_of(graph: Any) -> set[str]:
    """The kernels of a plan, at any size."""
    return {v.choice.name for s in graph.plan.steps for v in s.variants}


def test_a_tiny_llama_writes_what_the_reference_writes(gpu: str, tmp_path: Path) -> None:
    """Prefill in chunks, then one token at a time; twice, on one compiled graph."""
    config = decoder_config(max_position_embeddings=64)
    folder = write_folder(tmp_path, config, decoder_weights(config, seed=1))
    here, there = (Generator.load(folder, device=device, chunk=12, debug=True) for device in (gpu, "reference"))
    assert rows_of(here.graph) >= {f"gpu/fused.{kind}{form}" for kind in ("attention", "gated_mlp", "matmul") for form in ("", ".few")}
    assert not on_host(here.graph)
    np.testing.assert_allclose(here.conversation().feed(here.tokenizer.encode(PROMPT)), there.conversation().feed(there.tokenizer.encode(PROMPT)), atol=1e-4)
    want = there.generate(PROMPT, max_tokens=12)
    for _ in range(2):
        found = here.generate(PROMPT, max_tokens=12)
        assert (found.ids, found.reason) == (want.ids, want.reason)


def test_a_tiny_bert_embeds_as_the_reference_does(gpu: str, tmp_path: Path) -> None:
    config = bert_config()
    folder = write_folder(tmp_path, config, bert_weights(config, seed=2))
    here, there = (Embedder.load(folder, device=device, debug=True) for device in (gpu, "reference"))
    assert not on_host(here.graph)
    for texts in (["the cat sat"], ["the cat", "a mat", "the cat sat abc"]):
        np.testing.assert_allclose(here.embed(texts).vectors, there.embed(texts).vectors, atol=1e-5)


# ---- real models: each on one wave size, for in simulation all their products are made one thread after another
@pytest.mark.parametrize("gpu", ["rocm gfx1100", "cuda"], indirect=True)
def test_smollm2_writes_pytorchs_tokens(gpu: str, smollm2_gguf: Path) -> None:
    """From packed weights: the shortest prompt, its logits, and what comes after one token more."""
    case = min(json.loads((GOLDEN / "smollm2.json").read_text())["cases"], key=lambda c: len(c["ids"]))
    conversation = Generator.load(smollm2_gguf, device=gpu, weights="packed", context=48).conversation()
    logits = conversation.feed(case["ids"])
    top, values = zip(*case["last_logits_top5"], strict=True)
    assert np.argsort(-logits)[:5].tolist() == list(top)
    np.testing.assert_allclose(logits[list(top)], values, rtol=0, atol=2e-3)
    assert [logits.argmax(), conversation.feed(case["greedy"][:1]).argmax()] == case["greedy"][:2]


@pytest.mark.parametrize("gpu", ["rocm gfx942", "cuda"], indirect=True)
def test_minilm_embeds_as_pytorch_does(gpu: str, minilm_folder: Path) -> None:
    cases = json.loads((GOLDEN / "minilm.json").read_text())["cases"][:4]
    found = Embedder.load(minilm_folder, device=gpu).embed([c["text"] for c in cases])
    assert np.abs(found.vectors - np.array([c["embedding"] for c in cases])).max() < 2e-5
