"""A graph runs at once and changes over to compiled code: nothing is lost, nothing hangs, and what goes wrong is told once."""
from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, CompileOptions, compile, notes, settings, sym
from rlxpy.backends.cpu import execute, tiers
from rlxpy.backends.cpu.build import SUFFIX
from rlxpy.backends.cpu.compilers import Compiler, find_compiler
from rlxpy.backends.cpu.packing import pack
from rlxpy.backends.cpu.tiers import reference_seconds
from rlxpy.errors import BackendMissing, CompileError, InputError
from rlxpy.ir.quantize import quantize

FOUND = find_compiler()
needs_compiler = pytest.mark.skipif(isinstance(FOUND, str), reason=f"nothing was compiled: {FOUND}")
GRAPH = """
import sys, time, numpy as np, rlxpy
b = rlxpy.Builder("tiny")
x = b.input("x", (rlxpy.sym("N", 1, 8), 4))
graph = b.finish((x @ b.param("w", (4, 3)) * 2.0).tanh())
w, ones = np.full((4, 3), 0.25, np.float32), np.ones((2, 4), np.float32)
want = np.tanh(np.full((2, 3), 2, np.float32))
"""


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def slow(tmp_path: Path) -> Callable[[float], str]:
    """This machine's compiler after some seconds of sleep."""
    assert isinstance(FOUND, Compiler)
    real = " ".join(FOUND.argv)
    return lambda seconds: str(script(tmp_path / "slow-cc", f'[ "$1" = --version ] || sleep {seconds}\nexec {real} "$@"'))


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """A compiler that compiles nothing."""
    return str(script(tmp_path / "broken-cc", 'if [ "$1" = --version ]; then echo "gcc 1.0 Free Software Foundation"; else echo no luck today >&2; exit 1; fi'))


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RLX_")}
    return subprocess.run([sys.executable, "-c", GRAPH + textwrap.dedent(code)], env={**kept, **env}, capture_output=True, text=True, timeout=120, check=False)


def counting() -> Any:
    """Rows appended to a state, a running sum in another, and a product that a weight has a part in."""
    b = Builder("counting")
    rows, total = b.state("rows", (8, 3)), b.state("total", (3,))
    x = b.input("x", (1, 3)) * b.param("w", (3,))
    new = rows.kv_append(x, b.input("at", (), "i64"), axis=0)
    b.update(rows, new)
    b.update(total, total + x.reshape(shape=(3,)))
    return b.finish(new.sum(axes=(0,)), total + x.reshape(shape=(3,)))


@needs_compiler
def test_state_and_weights_go_from_one_tier_to_the_other(slow: Callable[[float], str], tmp_path: Path) -> None:
    with settings.override(cc=slow(1), cache=tmp_path):
        run = compile(counting(), {"w": np.ones(3, np.float32)}, device="cpu", wait=False)
    other, seen, w = run.new_state(), [], 1.0
    for k in range(8):
        if k in (2, 6):
            w = float(k)
            run.set_param("w", np.full(3, w, np.float32))
        if k == 4:
            run.wait()
        seen.append(run.tier)
        for state in (None, other):
            got = run(np.full((1, 3), k, np.float32), k, state=state)
            want = sum(j * (1.0 if j < 2 else 2.0 if j < 6 else 6.0) for j in range(k + 1))
            for g in got:
                np.testing.assert_allclose(g, np.full(3, want), rtol=1e-6)
    assert seen == ["reference"] * 4 + ["cpu"] * 4
    assert "tier cpu" in run.explain()


@needs_compiler
def test_calls_of_many_threads_meet_the_change(slow: Callable[[float], str], tmp_path: Path) -> None:
    b = Builder()
    x = b.input("x", (sym("N", 1, 64), 5))
    with settings.override(cc=slow(0.2), cache=tmp_path):
        run = compile(b.finish((x * 2.0).exp().sum(axes=(-1,))), device="cpu", wait=False)

    def work(k: int) -> set[str]:
        seen: set[str] = set()
        while run.tier == "reference" or len(seen) < 2:
            seen.add(run.tier)
            ones = np.full((k + 1, 5), k / 8, np.float32)
            np.testing.assert_allclose(run(ones), np.exp(2 * ones).sum(-1), rtol=1e-5)
        return seen

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [{"reference", "cpu"}] * 4


@needs_compiler
@pytest.mark.parametrize("called", [True, False])
def test_the_first_call_has_a_head_start_and_nobody_waits_for_a_call(called: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(tiers, "HEAD_START_SECONDS", 20 if called else 0.05)
    monkeypatch.setattr(tiers, "prepare", lambda: begun.append(True))
    with settings.override(cache=tmp_path):
        run = compile(counting(), {"w": np.ones(3, np.float32)}, device="cpu", wait=False)
        if called:
            time.sleep(0.1)
            assert not begun
            run(np.ones((1, 3), np.float32), 0)
            assert run.tier == "reference"
        while run.tier == "reference":
            time.sleep(0.01)
    assert begun == [True]


@needs_compiler
def test_weights_are_laid_out_while_the_compiler_runs_and_those_of_meanwhile_are_not_lost(slow: Callable[[float], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, compiled = threading.Event(), list[bool]()

    def noted(*args: Any) -> Any:
        compiled.append(any(tmp_path.glob(f"code/*/*{SUFFIX}")))
        made = pack(*args)
        packed.set()
        return made

    monkeypatch.setattr(execute, "pack", noted)
    b = Builder()
    graph = b.finish(b.input("x", (40, 24)) @ b.param("w", (24, 48)) + b.param("c", (48,)))
    weights = {"w": np.ones((24, 48), np.float32), "c": np.ones(48, np.float32)}
    ones = np.ones((40, 24), np.float32)
    with settings.override(cc=slow(0.7), cache=tmp_path):
        run = compile(graph, weights, device="cpu", wait=False)
        assert packed.wait(20)
        run.set_param("w", np.full((24, 48), 2, np.float32))
        run.wait()
    assert run.tier == "cpu"
    for _ in range(2):
        np.testing.assert_array_equal(run(ones), np.full((40, 48), 49))
    assert compiled == [False, True], "once for each set of weights, first while the compiler sleeps"


def test_what_fails_in_the_background_is_told_once_and_kept(broken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes.note_once.cache_clear()
    with settings.override(cc=broken, cache=tmp_path, quiet=False):
        runs = [compile(counting(), {"w": np.ones(3, np.float32)}, device="cpu", wait=False) for _ in range(2)]
        for run in runs:
            with pytest.raises(CompileError, match="no luck today"):
                run.wait()
            assert run(np.ones((1, 3), np.float32), 0)[0].tolist() == [1, 1, 1]
            assert run.tier == "reference"
            assert "no luck today" in run.explain()
        with pytest.raises(CompileError, match="no luck today"):
            compile(counting(), {"w": np.ones(3, np.float32)}, device="cpu", wait=True)
    for thread in [r._executable for r in runs]:
        thread.join(10)  # type: ignore[attr-defined]
    assert capsys.readouterr().err.count("stays on the reference") == 1


@needs_compiler
def test_an_interrupted_wait_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    run = compile(counting(), {"w": np.ones(3, np.float32)}, device="cpu", wait=True)
    again = tiers.TieredGraph(run.plan, {"w": np.ones(3, np.float32)}, False, run._executable._build)  # type: ignore[attr-defined]
    build = again._build

    def interrupted() -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(again, "_build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        again.wait()
    assert again.tier == "reference"
    monkeypatch.setattr(again, "_build", build)
    again.wait()
    assert again.tier == "cpu"


@needs_compiler
def test_a_call_that_would_be_slow_waits_and_a_quick_one_does_not(slow: Callable[[float], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    w = np.ones((512, 512), np.float32)
    graph = b.finish(b.input("x", (sym("N", 1, 4096), 512)) @ b.param("w", (512, 512)))
    with settings.override(cc=slow(0.3), cache=tmp_path):
        run = compile(graph, {"w": w}, device="cpu", wait=False)
    run(np.ones((1, 512), np.float32))
    assert run.tier == "reference"
    monkeypatch.setattr(tiers, "SECONDS_PRODUCT", 1e-6)
    np.testing.assert_array_equal(run(np.ones((2048, 512), np.float32)), np.full((2048, 512), 512))
    assert run.tier == "cpu"


@needs_compiler
def test_without_a_thread_to_be_had_the_reference_stays_and_waiting_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    b = Builder()
    graph, x = b.finish((b.input("x", (4,)) * 2.0).exp()), np.ones(4, np.float32)
    with monkeypatch.context() as m:
        m.setattr(threading.Thread, "start", none)
        f = compile(graph, device="cpu", wait=False)
        np.testing.assert_array_equal(f(x), compile(graph, device="reference")(x))
        assert f.tier == "reference"
        f.wait()
    assert f.tier == "cpu"


def test_the_guess_of_seconds_grows_with_what_there_is_to_do() -> None:
    def guess(make: Callable[[Any], Any], rows: int) -> float:
        b = Builder()
        plan = compile(b.finish(make(b.input("x", (sym("N", 1, 4096), 64)))), device="reference", options=CompileOptions(weights="packed")).plan
        return sum(reference_seconds(plan.graph, s.node, {"N": rows}) for s in plan.steps)

    packed = quantize(np.ones((96, 64), np.float32), "q8_0")[0]
    for make in (lambda x: x.exp(), lambda x: x @ x.T, lambda x: x.qmatmul(x.builder.const(packed), encoding="q8_0", shape=(96, 64))):
        assert 0 < guess(make, 1) < guess(make, 100) < guess(make, 4096)
    assert guess(lambda x: x @ x.T, 4096) > 10 * guess(lambda x: x.exp(), 4096)


@needs_compiler
def test_memory_tells_of_weights_that_are_laid_out_anew() -> None:
    b = Builder()
    graph, w = b.finish(b.input("x", (8, 64)) @ b.param("w", (64, 48))), np.ones((64, 48), np.float32)
    memory = compile(graph, {"w": w}, device="cpu", wait=True).memory()
    assert memory["packed_nbytes"] >= w.nbytes == memory["param_nbytes"]
    assert "packed_nbytes" not in compile(graph, {"w": w}, device="reference").memory()


# ---- processes
@needs_compiler
def test_a_process_that_ends_while_it_compiles_ends_at_once(tmp_path: Path) -> None:
    assert isinstance(FOUND, Compiler)
    cc = script(tmp_path / "cc", f'[ "$1" = --version ] && exec {FOUND.argv[0]} --version\necho $$ >{tmp_path}/pid\nsleep 60')
    begun = time.monotonic()
    done = python("""
        run = rlxpy.compile(graph, {"w": w}, device="cpu")
        assert np.allclose(run(ones), want, rtol=1e-6)
        from pathlib import Path
        while not (Path(PID).exists() and Path(PID).read_text()): time.sleep(0.01)
        assert run.tier == "reference"
    """.replace("PID", repr(str(tmp_path / "pid"))), RLX_CC=str(cc), RLX_CACHE=str(tmp_path / "cache"))
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - begun < 30
    pid = (tmp_path / "pid").read_text().strip()
    assert not Path("/proc", pid).exists() or "Z" in Path("/proc", pid, "stat").read_text().split()[2:3]
    assert not list((tmp_path / "cache").glob("code/.scratch-*"))


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing was forked: this system cannot")
def test_a_fork_while_it_compiles_and_one_afterwards(slow: Callable[[float], str], tmp_path: Path) -> None:
    done = python("""
        import os, warnings
        warnings.simplefilter("ignore")  # of forks beside threads
        run = rlxpy.compile(graph, {"w": w}, device="cpu")
        time.sleep(0.2)
        for child in range(2):
            pid = os.fork()
            if pid == 0:
                run.wait()
                assert run.tier == "cpu" and np.allclose(run(ones), want, rtol=1e-6)
                run.set_param("w", w * 0)
                assert not run(ones).any()
                sys.exit(7)
            run.wait()
            assert run.tier == "cpu" and np.allclose(run(ones), want, rtol=1e-6)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    """, RLX_CC=slow(0.5), RLX_CACHE=str(tmp_path / "cache"))
    assert (done.returncode, done.stderr) == (0, "")


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing was forked: this system cannot")
def test_a_fork_while_the_compiling_thread_imports(tmp_path: Path) -> None:
    done = python("""
        import os, signal, threading, warnings
        warnings.simplefilter("ignore")  # of forks beside threads
        begun = threading.Event()

        class Slow:
            def find_spec(self, name, path=None, target=None):
                if name == "jinja2":
                    begun.set()
                    time.sleep(0.3)

        assert "jinja2" not in sys.modules
        sys.meta_path.insert(0, Slow())
        run = rlxpy.compile(graph, {"w": w}, device="cpu", wait=False)
        assert begun.wait(20)
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            run.wait()
            os._exit(7 if run.tier == "cpu" and np.allclose(run(ones), want, rtol=1e-6) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        run.wait()
        assert np.allclose(run(ones), want, rtol=1e-6)
    """, RLX_CACHE=str(tmp_path / "cache"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("named", ["", "/nonexistent", "broken"])
def test_without_a_compiler_auto_says_so_once_and_runs_on_the_reference(named: str, tmp_path: Path) -> None:
    """A22."""
    cc = str(script(tmp_path / "cc", "echo its licence has run out >&2; exit 1")) if named == "broken" else named
    done = python("""
        for device in (None, "auto"):
            run = rlxpy.compile(graph, {"w": w}, device=device)
            assert run.device == run.tier == "reference" and np.allclose(run(ones), want, rtol=1e-6)
    """, RLX_CC=cc, PATH=str(tmp_path / "empty"), RLX_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    said, = done.stderr.splitlines()
    assert "the reference" in said
    assert {"": "rlxpy[cc]", "/nonexistent": "/nonexistent", "broken": "its licence has run out"}[named] in said


def test_without_a_compiler_cpu_by_name_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with settings.override(cc=str(tmp_path / "nowhere")), pytest.raises(BackendMissing, match="nowhere"):
        compile(counting(), {"w": np.ones(3, np.float32)}, device="cpu")


@needs_compiler
def test_a_state_of_another_graph_is_refused_on_both_tiers(slow: Callable[[float], str], tmp_path: Path) -> None:
    with settings.override(cc=slow(1), cache=tmp_path):
        runs = [compile(counting(), {"w": np.ones(3, np.float32)}, device="cpu", wait=False) for _ in range(2)]
    for _ in range(2):
        with pytest.raises(InputError, match="not one of this graph"):
            runs[0](np.ones((1, 3), np.float32), 0, state=runs[1].new_state())
        runs[0].wait()
