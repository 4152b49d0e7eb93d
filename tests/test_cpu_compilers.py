"""The door to the C compiler: which one, which instructions, and libraries kept on disk whatever happens beside them."""
from __future__ import annotations

import ctypes
import multiprocessing
import os
import shlex
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlxpy import Builder, compile, settings
from rlxpy.backends import cache
from rlxpy.backends.cpu import build as building, compilers
from rlxpy.backends.cpu.build import SUFFIX, build, prelude
from rlxpy.backends.cpu.compilers import Compiler, find_compiler, probe
from rlxpy.backends.cpu.isa import ISAS, Isa, available, cpu_flags, detect
from rlxpy.errors import CompileError, InputError

FOUND = find_compiler()
needs_compiler = pytest.mark.skipif(isinstance(FOUND, str), reason=f"nothing was compiled: {FOUND}")
PLAIN = Isa("portable", 4)
GCC_SAYS = "echo 'gcc 1.0'; echo 'Copyright (C) Free Software Foundation, Inc.'"


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def found(named: str) -> Compiler | str:
    with settings.override(cc=named):
        return find_compiler()


# ---- which compiler
@needs_compiler
def test_this_machines_compiler_is_named_whole() -> None:
    assert isinstance(FOUND, Compiler)
    assert Path(FOUND.argv[0]).is_absolute()
    assert FOUND.family in ("gcc", "clang", "zig")
    assert FOUND.text.startswith(FOUND.argv[0])


@pytest.mark.parametrize(("text", "words"), [
    ("echo boom >&2; exit 1", ("exits 1", "boom")),
    ("exit 1", ("exits 1", "says nothing")),
    ("echo tcc version 0.9.27", ("tcc version 0.9.27", "neither gcc nor clang nor zig")),
    ("sleep 30 & wait", ("no answer",)),
])
def test_a_compiler_of_no_use_is_refused_with_its_own_words(text: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "PROBE_SECONDS", 1.0)
    reason = found(str(script(tmp_path / "mycc", text)))
    assert isinstance(reason, str)
    assert all(w in reason for w in ("RLX_CC", "mycc", *words))


def test_a_compiler_that_is_not_there(tmp_path: Path) -> None:
    reason = found("/nonexistent")
    assert isinstance(reason, str)
    assert "/nonexistent is not there" in reason
    (tmp_path / "notes.txt").write_text("no program")
    assert "no program" in str(found(str(tmp_path / "notes.txt")))
    assert "no command line" in str(found('gcc "unbalanced'))


def test_the_setting_may_be_a_path_with_spaces_or_a_command_line(tmp_path: Path) -> None:
    spaced = script(tmp_path / "my compilers" / "gcc it is", GCC_SAYS)
    assert found(str(spaced)) == Compiler((str(spaced),), "gcc 1.0\nCopyright (C) Free Software Foundation, Inc.\n", "gcc")
    asked = found(f"{shlex.quote(str(spaced))} -m64 '-DA=b c'")
    assert isinstance(asked, Compiler)
    assert asked.argv[1:] == ("-m64", "-DA=b c")


def test_the_search_passes_a_broken_cc_and_takes_what_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "cc", "exit 1")
    script(tmp_path / "clang", "echo 'clang version 18.0.0'")
    monkeypatch.setenv("PATH", str(tmp_path))
    taken = found("")
    assert isinstance(taken, Compiler)
    assert (taken.argv, taken.family) == ((str(tmp_path / "clang"),), "clang")


def test_the_ziglang_package_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zig = script(tmp_path / "site" / "ziglang" / "zig", '[ "$1 $2" = "cc --version" ] && echo "clang version 20.1.0"')
    (zig.parent / "__init__.py").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(compilers, "find_spec", lambda name: None)
    nothing = found("")
    assert isinstance(nothing, str)
    assert all(word in nothing for word in ("cc", "gcc", "clang", "ziglang", "pip install 'rlxpy[cc]'", "RLX_CC"))
    compilers._find.cache_clear()  # the same PATH again, with the package
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "ziglang", raising=False)
    taken = found("")
    compilers._find.cache_clear()
    assert isinstance(taken, Compiler)
    assert (taken.argv, taken.family) == ((str(zig), "cc"), "zig")


def test_a_compiler_is_asked_once(tmp_path: Path) -> None:
    counted = script(tmp_path / "cc", f"echo >>{tmp_path}/asked; {GCC_SAYS}")
    assert found(str(counted)) is found(str(counted))
    assert (tmp_path / "asked").read_text() == "\n"


# ---- which instructions
AVX2 = {"sse4_1", "avx2", "fma", "f16c"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(("machine", "flags", "names"), [
    ("x86_64", AVX512, ["avx512", "avx2", "sse4", "sse2", "portable"]),
    ("x86_64", AVX512 - {"avx512bw"}, ["avx2", "sse4", "sse2", "portable"]),
    ("x86_64", AVX2 - {"fma"}, ["sse4", "sse2", "portable"]),
    ("x86_64", set(), ["sse2", "portable"]),
    ("aarch64", {"asimd"}, ["neon", "portable"]),
    ("riscv64", set(), ["portable"]),
])
def test_what_a_cpu_can_run_follows_from_its_flags(machine: str, flags: set[str], names: list[str]) -> None:
    assert [isa.name for isa in available(machine, flags)] == names


def test_extras_are_features_and_flags_of_their_instruction_set_only() -> None:
    both = available("x86_64", AVX512 | {"avx512_vnni", "avx512_bf16"})
    assert both[0].features == {"vnni", "bf16"}
    assert {"-mavx512vnni", "-mavx512bf16"} <= set(both[0].flags)
    assert available("x86_64", AVX512 | {"avx512_bf16"})[0].features == {"bf16"}
    assert not any(isa.features for isa in both[1:])


def test_the_best_is_taken_and_a_lower_one_can_be_forced() -> None:
    assert detect() == available()[0]
    for isa in available():
        with settings.override(isa=isa.name):
            assert detect() == isa


def test_what_this_cpu_lacks_is_refused_by_name() -> None:
    with settings.override(isa="avx51"), pytest.raises(InputError, match="avx51") as unknown:
        detect()
    assert "avx512" in unknown.value.why
    for isa in set(ISAS) - {replace(a, flags=next(i.flags for i in ISAS if i.name == a.name), features=frozenset()) for a in available()}:
        with settings.override(isa=isa.name), pytest.raises(InputError, match=f"cannot run {isa.name}") as lacking:
            detect()
        assert any(flag in lacking.value.why for flag in isa.needs - cpu_flags()) or isa.machine in lacking.value.why


# ---- building
@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The folder of compiled code."""
    with settings.override(cache=tmp_path / "cache", quiet=False):
        yield tmp_path / "cache" / "code"


def answer(number: int) -> str:
    return f'__attribute__((visibility("default"))) int answer(void) {{ return {number}; }}\n'


def ask(library: Path) -> int:
    return int(ctypes.CDLL(str(library)).answer())


def entries(home: Path) -> list[Path]:
    return sorted(home.glob(f"*/*{SUFFIX}"))


@pytest.fixture
def counting(tmp_path: Path) -> Callable[[], int]:
    """How often the compiler below was run."""
    return lambda: len((tmp_path / "ran").read_text().splitlines()) if (tmp_path / "ran").exists() else 0


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    """This machine's, with its runs counted."""
    assert isinstance(FOUND, Compiler)
    wrapped = script(tmp_path / "counted", f'echo run >>{tmp_path}/ran; exec {shlex.join(FOUND.argv)} "$@"')
    return replace(FOUND, argv=(str(wrapped),))


@needs_compiler
def test_a_library_is_compiled_once_and_found_again(home: Path, compiler: Compiler, counting: Callable[[], int]) -> None:
    first, second = build(answer(41), PLAIN, compiler), build(answer(41), PLAIN, compiler)
    assert first == second
    assert ask(first) == 41
    assert counting() == 1
    assert (home / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")


@needs_compiler
def test_whatever_changes_the_code_changes_its_place(home: Path, compiler: Compiler) -> None:
    places = [build(answer(1), PLAIN, compiler), build(answer(2), PLAIN, compiler), build(answer(1), PLAIN, compiler, ("-O0",)),
              build(answer(1), replace(PLAIN, name="other"), compiler), build(answer(1), replace(PLAIN, vector=8), compiler),
              build(answer(1), PLAIN, replace(compiler, version="another"))]
    assert len({p.parent for p in places}) == len(places)


@needs_compiler
def test_an_error_shows_the_lines_around_it_and_leaves_nothing(home: Path, compiler: Compiler) -> None:
    assert isinstance(FOUND, Compiler)
    lines = [f"int line{n};" for n in range(1, 30)]
    lines[16] = "int wrong = nowhere;"
    with pytest.raises(CompileError) as caught:
        build("\n".join(lines), PLAIN, compiler)
    error = caught.value
    assert "nowhere" in error.why
    assert "line 17" in error.where
    assert "> " in error.where
    assert "   17 int wrong = nowhere;" in error.where
    assert "int line13;" in error.where
    assert "int line12;" not in error.where
    assert str(compiler.argv[0]) in error.log.splitlines()[0]
    assert "-O3" in error.log.splitlines()[0]
    assert "nowhere" in error.log.partition("\n")[2]
    assert [p.name for p in home.iterdir()] == ["CACHEDIR.TAG"]


@pytest.mark.parametrize(("text", "words"), [
    ("echo out of memory >&2; exit 3", "ends with 3: out of memory"),
    ("exit 0", "says nothing"),
    ("kill -9 $$", "ends with -9"),
])
def test_a_compiler_that_breaks_says_how(text: str, words: str, home: Path, tmp_path: Path) -> None:
    with pytest.raises(CompileError) as caught:
        build(answer(1), PLAIN, Compiler((str(script(tmp_path / "cc", text)),), "1", "gcc"))
    assert words in caught.value.why
    assert not entries(home)


@pytest.mark.parametrize("text", ["echo rubbish > $out", ": > $out", "echo 'int other;' | {cc} -shared -fPIC -x c - -o $out"])
@needs_compiler
def test_what_does_not_load_is_named_and_not_kept(text: str, home: Path, tmp_path: Path) -> None:
    """Rubbish, nothing, and a library of something else."""
    assert isinstance(FOUND, Compiler)
    named = script(tmp_path / "cc", f"if [ $1 = --version ]; then {GCC_SAYS}; exit; fi\nfor word; do [ \"$last\" = -o ] && out=$word; last=$word; done\n{text.format(cc=shlex.join(FOUND.argv))}")
    b = Builder("unloadable")
    graph = b.finish(b.input("x", (4,)).exp() + 1.0)
    with settings.override(cc=str(named)):
        f = compile(graph, device="cpu", wait=False)
        with pytest.raises(CompileError, match="does not load"):
            f.wait()
    assert f.run([0.0] * 4).tolist() == [2.0] * 4
    assert not entries(home)


def test_a_compiler_that_hangs_is_stopped_with_its_children(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "COMPILE_SECONDS", 0.5)
    hanging = script(tmp_path / "cc", f"sleep 60 & echo $! >{tmp_path}/child; wait")
    began = time.monotonic()
    with pytest.raises(CompileError, match="no result in 0 s") as caught:
        build(answer(1), PLAIN, Compiler((str(hanging),), "1", "gcc"))
    assert time.monotonic() - began < 30
    assert caught.value.log
    child = Path("/proc") / (tmp_path / "child").read_text().strip()
    assert not child.exists() or "Z" in (child / "stat").read_text().split()[2:3]


@needs_compiler
def test_source_with_letters_that_have_no_bytes_is_compiled(home: Path, compiler: Compiler) -> None:
    assert ask(build(f"/* {chr(0xD800)} λ */\n{answer(5)}", PLAIN, compiler)) == 5


# ---- what may happen to a cache
@needs_compiler
@pytest.mark.parametrize("damage", [lambda b: b[:-100], lambda b: b"", lambda b: bytes([b[0] ^ 1]) + b[1:]], ids=["truncated", "empty", "one bit"])
def test_a_damaged_entry_is_made_again(damage: Callable[[bytes], bytes], home: Path, compiler: Compiler, counting: Callable[[], int]) -> None:
    library = build(answer(6), PLAIN, compiler)
    library.write_bytes(damage(library.read_bytes()))
    again = build(answer(6), PLAIN, compiler)
    assert ask(again) == 6
    assert counting() == 2
    assert entries(home) == [again]


@needs_compiler
def test_leftovers_of_killed_writers_do_no_harm_and_go_when_old(home: Path, compiler: Compiler) -> None:
    old, fresh = home / ".scratch-old", home / ".scratch-fresh"
    for folder in (old, fresh):
        folder.mkdir(parents=True)
        (folder / f"made{SUFFIX}").write_bytes(b"half")
    os.utime(old, (0, 0))
    assert ask(build(answer(7), PLAIN, compiler)) == 7
    assert not old.exists()
    assert fresh.exists()


@needs_compiler
def test_a_folder_that_cannot_be_written_is_replaced_with_one_note(tmp_path: Path, compiler: Compiler, counting: Callable[[], int],
                                                                   capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    with settings.override(cache=tmp_path / "file" / "cache", quiet=False):
        first, second = build(answer(8), PLAIN, compiler), build(answer(8), PLAIN, compiler)
        other = build(answer(9), PLAIN, compiler)
    assert first == second
    assert (ask(first), ask(other)) == (8, 9)
    assert counting() == 2
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 1
    assert str(tmp_path / "file" / "cache") in notes[0]
    assert "RLX_CACHE" in notes[0]
    assert stat.S_IMODE(first.parents[1].stat().st_mode) == 0o700
    with settings.override(cache=tmp_path / "file" / "quiet", quiet=True):
        build(answer(8), PLAIN, compiler)
    assert capsys.readouterr().err == ""


@needs_compiler
def test_entries_of_a_folder_that_can_only_be_read_are_used(home: Path, compiler: Compiler, counting: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    library = build(answer(10), PLAIN, compiler)
    monkeypatch.setattr(cache, "_prepare", lambda home: pytest.fail("it was written to"))  # root may write anywhere, so permissions prove nothing here
    assert build(answer(10), PLAIN, compiler) == library
    assert counting() == 1


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "ST_NOEXEC"), reason="noexec was not tried: this system does not tell how disks are mounted")
def test_a_disk_that_lets_no_code_run_is_not_used(home: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kept = build(answer(11), PLAIN, compiler)
    told = os.statvfs

    class NoExec:
        f_flag = os.ST_NOEXEC

    monkeypatch.setattr(os, "statvfs", lambda path: NoExec if home in (Path(path), *Path(path).parents) else told(path))
    elsewhere = build(answer(11), PLAIN, compiler)
    assert home not in elsewhere.parents
    assert kept.name == elsewhere.name
    assert ask(elsewhere) == 11
    assert "noexec" in capsys.readouterr().err


def _rounds(barrier: Any, root: Path, compiler: Compiler, results: Any) -> None:
    try:
        for n in range(20):
            barrier.wait(120)
            with settings.override(cache=root / str(n)):
                for number in (n, 100 + n, 200 + n):
                    value = ask(build(answer(number), PLAIN, compiler, ("-O0",)))
                    assert value == number, f"{value} instead of {number}"
        results.put("")
    except BaseException as e:
        barrier.abort()
        results.put(repr(e))


@needs_compiler
def test_eight_processes_fill_one_empty_cache_twenty_times(tmp_path: Path) -> None:
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    barrier, results = context.Barrier(8), context.Queue()
    processes = [context.Process(target=_rounds, args=(barrier, tmp_path, FOUND, results)) for _ in range(8)]
    for p in processes:
        p.start()
    assert [results.get(timeout=300) for _ in processes] == [""] * 8
    for p in processes:
        p.join(60)
    for n in range(20):
        code = tmp_path / str(n) / "code"
        assert len(entries(code)) == 3
        assert sorted(p.name for p in code.iterdir() if not p.is_dir()) == ["CACHEDIR.TAG"]
        assert not list(code.glob(".scratch-*"))


def test_the_prelude_needs_no_other_file() -> None:
    assert "#include" not in prelude()
    assert probe(("/nonexistent",)) == "/nonexistent is not there, or is no program"
