"""Real models as C99 projects: compiled on their own, they give the golden values."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from c_projects import project, reason

from rlxpy.flow.families import DECODERS, ENCODERS, BertConfig, LlamaConfig, bert, llama
from rlxpy.generate.embedder import pooling
from rlxpy.generate.opened import open_model

GOLDEN = Path(__file__).parent / "golden"
pytestmark = pytest.mark.skipif(isinstance(reason, str), reason=f"no C compiler: {reason}")


def test_minilm_embeds_as_recorded(minilm_folder: Path, tmp_path: Path) -> None:
    model = open_model(minilm_folder, ENCODERS)
    built = bert(BertConfig.of({**model.config, **pooling(minilm_folder, model.weights.metadata)}), max_batch=3, max_length=64).build(model.weights)
    c = project(built.graph, tmp_path, built.params, "-O2")
    cases = json.loads((GOLDEN / "minilm.json").read_text())["cases"][:3]
    longest = max(len(case["ids"]) for case in cases)
    seen = np.array([[k < len(case["ids"]) for k in range(longest)] for case in cases])
    ids = np.zeros(seen.shape, np.int64)
    ids[seen] = [i for case in cases for i in case["ids"]]
    found = c.run(ids, seen, sizes={"B": len(cases), "S": longest})[0]
    assert np.abs(found - np.array([case["embedding"] for case in cases])).max() < 2e-5


def test_smollm2_decodes_as_recorded(smollm2_gguf: Path, tmp_path: Path) -> None:
    """Its weights stay packed.  The prompt in one run, then a token a run."""
    model = open_model(smollm2_gguf, DECODERS)
    case = min(json.loads((GOLDEN / "smollm2.json").read_text())["cases"], key=lambda c: len(c["greedy"]))
    built = llama(LlamaConfig.of(model.config), context=32).build(model.weights)
    c = project(built.graph, tmp_path, built.params, "-O2")
    assert (tmp_path / f"{c.prefix}.weights").stat().st_size < 100e6
    tokens, past, found = case["ids"], 0, list[int]()
    for _ in case["greedy"][:6]:
        logits, = c.run(np.array([tokens]), sizes={"P": past, "T": len(tokens)})
        if not found:
            top, values = zip(*case["last_logits_top5"], strict=True)
            np.testing.assert_allclose(logits[0][list(top)], values, rtol=0, atol=2e-3)
        past += len(tokens)
        tokens = [int(logits[0].argmax())]
        found += tokens
    assert found == case["greedy"][:6]
