"""Profiles: what a `*.rlx.toml` may say, and what is said about one that says something else."""
from __future__ import annotations

from pathlib import Path

import pytest

from rlxpy.errors import InputError, LoadError
from rlxpy.flow.profile import Compile, Profile, Sampling, Sizes
from rlxpy.generate.sampling import Sampler

WHOLE = """
[sizes]
context = 512
chunk = 16
batch = 8
length = 128

[compile]
device = ["cpu", "reference"]
weights = "packed"
numerics = "high"
cache = "bf16"

[sampling]
temperature = 1      # a whole number is a number
top_k = 40
top_p = 0.9
min_p = 0.05
repetition_penalty = 1.1
repeat_window = 32
seed = 7
max_tokens = 100
stop = ["\\n\\n", "né"]
system = "Be brief."
"""


def load(path: Path, text: str | bytes) -> Profile:
    file = path / "p.rlx.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return Profile.load(file)


def test_every_setting_is_read(tmp_path: Path) -> None:
    assert load(tmp_path, WHOLE) == Profile(
        Sizes(512, 16, 8, 128), Compile(("cpu", "reference"), "packed", "high", "bf16"),
        Sampling(1, 40, 0.9, 0.05, 1.1, 32, 7, 100, ("\n\n", "né"), "Be brief."))


def test_what_is_not_said_keeps_its_default(tmp_path: Path) -> None:
    assert load(tmp_path, "") == Profile()
    found = load(tmp_path, "[sampling]\ntemperature = 0.5\n[compile]\ndevice = 'cpu'\n")
    assert found == Profile(compile=Compile(device=("cpu",)), sampling=Sampling(temperature=0.5))
    assert Profile.load(str(tmp_path / "p.rlx.toml")) == found


def test_sampling_is_a_samplers(tmp_path: Path) -> None:
    assert Sampler(**Profile().sampling.sampler()) == Sampler()
    made = Sampler(**load(tmp_path, WHOLE).sampling.sampler())
    assert made == Sampler(temperature=1, top_k=40, top_p=0.9, min_p=0.05, repetition_penalty=1.1, repeat_window=32, seed=7)
    with pytest.raises(InputError, match="top_p"):
        Sampler(**load(tmp_path, "[sampling]\ntop_p = 1.5").sampling.sampler())


MISTAKES = [
    ("[sizes]\ncontxt = 5", r"unknown key 'contxt'(.|\n)*\[sizes\](.|\n)*context, chunk(.|\n)*near it: context"),
    ("[sampler]\ntop_k = 5", r"unknown table 'sampler'(.|\n)*sizes, compile, sampling"),
    ("top_k = 5", r"unknown table 'top_k'"),
    ("sizes = 5", r"table is expected(.|\n)*\[sizes\](.|\n)*found int"),
    ("[[sizes]]\ncontext = 5", "table is expected(.|\n)*found list"),
    ("[sizes]\ncontext = 5.0", r"context = 5\.0(.|\n)*float was given, int \| None is wanted"),
    ("[sizes]\ncontext = true", "context = True(.|\n)*bool was given"),
    ("[sizes]\ncontext = '5'", "context = '5'(.|\n)*str was given"),
    ("[sampling]\ntemperature = 'hot'", "temperature = 'hot'(.|\n)*float is wanted"),
    ("[sampling]\ntemperature = false", "temperature = False"),
    ("[sampling]\nmax_tokens = 1e3", r"max_tokens = 1000\.0"),
    ("[sampling]\nstop = ['a', 3]", r"stop = \['a', 3\](.|\n)*tuple\[str, \.\.\.\] is wanted"),
    ("[sampling]\nstop = [['a']]", "stop = "),
    ("[sampling]\nsystem = 1979-05-27", "system = (.|\n)*date was given"),
    ("[compile]\nweights = {a = 1}", "weights = (.|\n)*dict was given"),
    ("[compile]\ndevice = 3", "device = 3"),
    ("[sizes\ncontext = 5", "cannot be read"),
    ("[sizes]\ncontext = 5\ncontext = 6", "cannot be read"),
    (b"[sampling]\nsystem = '\xff'", "cannot be read"),
    (b"\x00", "cannot be read"),
    ("a = " + "[" * 100_000, "cannot be read"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=lambda v: repr(v)[:30])
def test_a_profile_that_cannot_be(text: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        load(tmp_path, text)
    assert "p.rlx.toml" in str(caught.value)


@pytest.mark.parametrize("path", ["nowhere.rlx.toml", ".", "a\0b"])
def test_no_file_there(path: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cannot be read"):
        Profile.load(tmp_path / path)
