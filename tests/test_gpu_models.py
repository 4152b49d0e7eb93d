"""Whole models on the simulated GPU: tiny ones against the reference, real ones against PyTorch's figures."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_device import rocm as rocm
from tiny_models import bert_config, bert_weights, decoder_config, decoder_weights, write_folder

from rlxpy.generate.embedder import Embedder
from rlxpy.generate.generator import Generator

pytestmark = pytest.mark.usefixtures("rocm")
PROMPT = "the cat sat on the mat"


def rows_of(graph: Any) -> set[str]:
    """The kernels of a plan, at any size."""
    return {v.choice.name for s in graph.plan.steps for v in s.variants}


def test_a_tiny_llama_writes_what_the_reference_writes(tmp_path: Path) -> None:
    """Prefill in chunks, then one token at a time; twice, on one compiled graph."""
    config = decoder_config(max_position_embeddings=64)
    folder = write_folder(tmp_path, config, decoder_weights(config, seed=1))
    here, there = (Generator.load(folder, device=device, chunk=12, debug=True) for device in ("rocm", "reference"))
    assert rows_of(here.graph) >= {f"gpu/fused.{kind}{form}" for kind in ("attention", "gated_mlp", "matmul") for form in ("", ".few")}
    np.testing.assert_allclose(here.conversation().feed(here.tokenizer.encode(PROMPT)), there.conversation().feed(there.tokenizer.encode(PROMPT)), atol=1e-4)
    want = there.generate(PROMPT, max_tokens=12)
    for _ in range(2):
        found = here.generate(PROMPT, max_tokens=12)
        assert (found.ids, found.reason) == (want.ids, want.reason)


def test_a_tiny_bert_embeds_as_the_reference_does(tmp_path: Path) -> None:
    config = bert_config()
    folder = write_folder(tmp_path, config, bert_weights(config, seed=2))
    here, there = (Embedder.load(folder, device=device, debug=True) for device in ("rocm", "reference"))
    for texts in (["the cat sat"], ["the cat", "a mat", "the cat sat abc"]):
        np.testing.assert_allclose(here.embed(texts).vectors, there.embed(texts).vectors, atol=1e-5)
