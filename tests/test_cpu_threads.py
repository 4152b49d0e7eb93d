"""The workers of the cpu backend: how many there may be, and that results never depend on who came to help."""
from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Thread, get_ident
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, CompileOptions, DType, compile, sym
from rlxpy.backends.cpu import threads
from rlxpy.backends.cpu.build import build, prelude
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.backends.cpu.isa import detect
from rlxpy.backends.templates import read
from rlxpy.errors import InputError, RlxError
from rlxpy.ir.op import Op
from rlxpy.ir.trace import scan

reason = find_compiler()
needs_compiler = pytest.mark.skipif(isinstance(reason, str), reason=f"nothing was compiled: {reason}")


@pytest.fixture(autouse=True)
def any_number() -> Iterator[None]:
    yield
    threads.set_threads(None)


@pytest.mark.parametrize(("groups", "files", "quota"), [
    ("0::/\n", {"cpu.max": "150000 100000"}, 1),
    ("0::/user/job\n", {"user/job/cpu.max": "max 100000", "user/cpu.max": "400000 100000"}, 4),
    ("0::/user/job\n", {"user/job/cpu.max": "50000 100000", "user/cpu.max": "400000 100000"}, 1),
    ("0::/elsewhere\n", {"cpu.max": "300000 100000"}, 3),  # a container's own mount
    ("4:memory:/a\n3:cpu,cpuacct:/job\n", {"cpu,cpuacct/job/cpu.cfs_quota_us": "250000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"}, 2),
    ("3:cpu,cpuacct:/job\n", {"cpu,cpuacct/job/cpu.cfs_quota_us": "-1", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"}, None),
    ("0::/\n", {"cpu.max": "max 100000"}, None),
    ("0::/\n", {"cpu.max": "nonsense"}, None),
    ("0::/\n", {}, None),
])
def test_control_groups_of_both_versions_cut_the_number(groups: str, files: dict[str, str], quota: int | None, tmp_path: Path) -> None:
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert threads.cgroup_quota(tmp_path) == quota


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert threads.cgroup_quota(tmp_path) is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity was not changed: this system has none")
def test_affinity_counts_from_the_next_call_on() -> None:
    def pinned() -> tuple[int, int]:
        before = threads.threads()
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # of the pool's thread alone
        return before, threads.threads()

    with ThreadPoolExecutor(1) as pool:
        before, after = pool.submit(pinned).result()
    assert after == 1 <= before == threads.threads()


@pytest.mark.parametrize("count", [0, -1, 2.5, float("nan"), "2"])
def test_what_is_no_number_of_threads_is_refused(count: Any) -> None:
    with pytest.raises(InputError, match=f"set_threads\\({count!r}\\)"):
        threads.set_threads(count)


@needs_compiler
def test_results_do_not_depend_on_threads_callers_or_graphs() -> None:
    """Several graphs of many tasks and of one, called at once by more threads than there are processors, with fewer and more workers."""
    b = Builder()
    x = b.input("x", (sym("N", 1, 512), 700))
    wide = compile(b.finish(((x * 2.0).tanh() + x).softmax(axis=-1), x.sum(axes=(0,))), device="cpu", wait=True)
    b = Builder()
    small = compile(b.finish(b.input("x", (sym("N", 1, 512), 700))[:1] * 3.0), device="cpu", wait=True)
    given = [np.random.default_rng(k).standard_normal((1 + 73 * k, 700)).astype(np.float32) for k in range(6)]
    threads.set_threads(1)
    want = [(*wide(x), small(x)) for x in given]

    def work(k: int) -> None:
        for _ in range(15):
            for got, expected in zip((*wide(given[k]), small(given[k])), want[k], strict=True):
                np.testing.assert_array_equal(got, expected)

    for count in (2, 5, 1):
        threads.set_threads(count)
        with ThreadPoolExecutor(len(given)) as pool:
            list(pool.map(work, range(len(given))))


SHARING = "\n".join([prelude(), "enum { RLX_SYMBOLS = 0 };", read("cpu/runtime.h")]) + """
static i64 seen, *notes;
static i64 note(const rlx_pool *pool, i64 tasks, i64 t0, i64 t1) {  /* step number n has n tasks */
  (void)pool;
  if (t0 < 0) return tasks;
  for (i64 t = t0; t < t1; t++) notes[__atomic_fetch_add(&seen, 1, __ATOMIC_RELAXED)] = t;
  return 0;
}
static void walk(rlx_pool *pool, i64 step) { (void)pool; (void)step; }
static void steps(rlx_pool *pool, i64 first, i64 thread) { rlx_share(pool, first, thread, note, walk); }

/* A step as thread `thread` of 1 + workers goes through it while the others are late. */
RLX_EXPORT void alone(i64 tasks, i64 workers, i64 thread, i64 *out) {
  struct { rlx_pool pool; rlx_counter counter; } run = {0};
  seen = 0, notes = out;
  run.pool.workers_count = workers, run.pool.threads = 2, run.pool.lo = tasks, run.pool.hi = tasks + 1;
  steps(&run.pool, tasks, thread);
}
/* Whether a thread that is asked to leave its processor is on another afterwards. */
RLX_EXPORT int aside(void) { const i32 here = rlx_processor(); rlx_step_aside(here); return rlx_processor() != here; }
/* The same step with whoever is there. */
RLX_EXPORT void together(i64 tasks, i64 workers, void *crew, i64 *out) {
  static struct { rlx_pool pool; rlx_counter counter; } run;
  while (__atomic_load_n(&run.pool.users, __ATOMIC_ACQUIRE)) {}
  seen = 0, notes = out;
  run.pool.workers = crew, run.pool.workers_count = workers, run.pool.lo = tasks, run.pool.hi = tasks + 1;
  rlx_lead(&run.pool, steps);
}
"""


@pytest.fixture(scope="module")
def sharing() -> Any:
    if isinstance(reason, str):
        pytest.skip(f"nothing was compiled: {reason}")
    made = ctypes.CDLL(str(build(SHARING, detect(), reason)))
    made.alone.argtypes = (*[ctypes.c_int64] * 3, ctypes.c_void_p)
    made.together.argtypes = (*[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 2)
    made.rlx_work.argtypes = (ctypes.c_void_p,)
    return made


@pytest.mark.parametrize(("tasks", "workers", "thread", "first"), [(7, 1, 0, 0), (7, 1, 1, 3), (2, 3, 1, 0), (24, 3, 2, 12), (24, 9, 7, 18), (1000, 2, 2, 666), (3, 0, 0, 0)])
def test_a_thread_goes_through_its_own_share_in_order_and_then_helps(sharing: Any, tasks: int, workers: int, thread: int, first: int) -> None:
    done = np.full(tasks, -1)
    sharing.alone(tasks, workers, thread, done.ctypes.data)
    assert done.tolist() == [*range(first, tasks), *range(first)]


def test_every_task_is_done_once(sharing: Any) -> None:
    """By more threads than there are shares, and than there are tasks."""
    for workers in (1, 6):
        threads.set_threads(1 + workers)
        crew, count = threads.workers(sharing.rlx_work)
        for tasks in (1, 2, 3, 7, 100, 1001):
            done = np.full(tasks, -1)
            sharing.together(tasks, count, crew, done.ctypes.data)
            assert sorted(done.tolist()) == list(range(tasks))


@needs_compiler
def test_calls_of_one_thread_each_are_the_calls_alone() -> None:
    """On the reference and in C, with fewer and more threads than calls, of several sizes, none among them."""
    b = Builder()
    x, k = b.input("x", (sym("N", 0, 64), 300)), b.input("k", (2,))
    graph = b.finish((x * 2.0).tanh().softmax(axis=-1) + x, x.sum(axes=(1,)) * k.sum(axes=(0,)))
    given = [(np.random.default_rng(n).standard_normal((n, 300)).astype(np.float32), np.full(2, n, np.float32)) for n in (7, 0, 64, 1, 33, 8)]
    for device in ("reference", "cpu"):
        f = compile(graph, device=device, options=CompileOptions(debug=True), wait=True)
        for count in (1, 2, 9):
            threads.set_threads(count)
            assert f.lanes == (count if device == "cpu" else 0)
            assert f.run_each([]) == []
            for got, args in zip(f.run_each(given), given, strict=True):
                for g, w in zip(got, f(*args), strict=True):
                    np.testing.assert_array_equal(g, w)


def test_no_call_of_a_lane_asks_for_help() -> None:
    asked, meeting = list[int](), Barrier(3)
    threads.set_threads(3)

    def task() -> None:
        meeting.wait(timeout=60)  # all three are at work at the same time
        asked.append(threads.workers(None)[1])

    threads.share([task] * 3)
    assert asked == [0, 0, 0]
    threads.share([lambda: asked.append(threads.threads())])
    assert asked[3:] == [3]


def test_a_lane_shares_nothing_further_and_stays_one() -> None:
    """As where a kernel of a downstream package embeds texts itself."""
    asked, here = list[int](), list[int]()
    threads.set_threads(2)

    def task() -> None:
        threads.share([lambda: here.append(get_ident())] * 5)
        asked.append(threads.workers(None)[1])

    threads.share([task])
    assert (asked, here) == ([0], [get_ident()] * 5)


def test_where_the_system_grants_no_more_threads_those_that_are_there_do_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    done, granted, start = list[int](), iter([True]), Thread.start

    def refusing(self: Thread) -> None:
        if not next(granted, False):
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(Thread, "start", refusing)
    threads.set_threads(4)
    threads.share([lambda: done.append(get_ident())] * 9)
    assert len(done) == 9
    assert len({*done}) <= 2


@needs_compiler
@pytest.mark.parametrize("count", [1, 3])
def test_a_profile_tells_of_loops_too(count: int) -> None:
    """Of each thread that walked through them, once."""
    threads.set_threads(count)
    b = Builder()
    x = b.input("x", (sym("N", 1, 9), 64, 32))
    carry, _ = scan(lambda c, row: ((c @ c.T @ c).tanh() + row, None), b.const(np.ones((64, 32), np.float32)), x)
    f = compile(b.finish(carry * 2.0), device="cpu", wait=True)
    given = np.ones((3, 64, 32), np.float32)
    for _ in range(2):
        spans = [s for s in f.profile(given) if s.step.node.op is Op.SCAN]
        assert 1 <= len(spans) == len({s.thread for s in spans}) <= count
        assert all(0 < s.begin_ns <= s.end_ns for s in spans)


@needs_compiler
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_first_call_that_fails_is_the_one_told(count: int) -> None:
    threads.set_threads(count)
    b = Builder()
    f = compile(b.finish(b.input("table", (5, 3)).gather(b.input("i", (sym("N", 1, 9),), DType.I64), axis=0)), device="cpu", wait=True)
    table = np.arange(15, dtype=np.float32).reshape(5, 3)
    good, bad, worse = np.array([4, 0]), np.array([1, 5]), np.array([77])
    for calls, said in (([good, bad, worse], "5"), ([bad], "5"), ([good, good, good, worse, bad], "77")):
        with pytest.raises(RlxError, match=rf"index {said}\b"):
            f.run_each([(table, c) for c in calls])
    assert [r.tolist() for r in f.run_each([(table, good)])] == [table[good].tolist()]


@needs_compiler
def test_calls_that_do_not_fit_or_share_a_state_are_refused_before_any_runs() -> None:
    b = Builder()
    f = compile(b.finish(b.input("x", (2,)) + 1.0), device="cpu", wait=True)
    with pytest.raises(InputError, match="x"):
        f.run_each([(np.zeros(2, np.float32),), (np.zeros(3, np.float32),)])
    wrong: list[Any] = [np.zeros((1, 2), np.float32), [np.zeros(2, np.float32)], [{"x": np.zeros(2, np.float32)}], {"x": 1}, "x", [None], None, 5]
    for calls in wrong:
        with pytest.raises(InputError, match="no tuple"):
            f.run_each(calls)
    b = Builder()
    count = b.state("count", (1,))
    b.update(count, count + b.input("x", (1,)))
    kept = compile(b.finish(count + 0.0), device="cpu", wait=True)
    with pytest.raises(InputError, match="state"):
        kept.run_each([(np.ones(1, np.float32),)])
    assert kept(np.ones(1, np.float32)).tolist() == [0]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="not run, because this system moves no threads")
def test_a_worker_steps_aside_from_its_callers_processor_and_may_go_where_it_might_before(sharing: Any) -> None:
    def several() -> tuple[bool, bool]:
        before = os.sched_getaffinity(0)  # of this thread
        moved = any(sharing.aside() for _ in range(20))  # a busy system may move it back at once, though not every time
        return moved == (len(before) > 1), os.sched_getaffinity(0) == before

    def one() -> tuple[bool, bool]:
        only = {min(os.sched_getaffinity(0))}
        os.sched_setaffinity(0, only)
        return not sharing.aside(), os.sched_getaffinity(0) == only

    for case in (several, one):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(case).result() == (True, True)
