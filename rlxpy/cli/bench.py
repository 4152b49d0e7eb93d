"""`rlx bench`: how fast a model or graph runs, and where the time goes."""
from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlxpy.cli.app import command
from rlxpy.cli.options import Devices, ForceRow, Kernels, Numerics, Packing
from rlxpy.cli.reading import any_model, is_graph_file
from rlxpy.cli.report import Json, note, show, size, table
from rlxpy.cli.writing import write
from rlxpy.errors import InputError

if TYPE_CHECKING:
    from rlxpy.tools.bench import Bench, Case, Timing
    from rlxpy.tools.profile import Profile

MOST_ROWS = 30


@command()
def bench(
    source: Annotated[str, typer.Argument(metavar="FILE|MODEL", help="A graph as text (- reads stdin; its weights are random), or a model as `rlx run` takes it.")],
    sizes: Annotated[list[str] | None, typer.Option("--sizes", metavar="B=8,S=128", help="Sizes of one case; may be given again.  Default: what models are asked for mostly.")] = None,
    device: Devices = None,
    kernels: Kernels = None,
    force_row: ForceRow = None,
    threads: Annotated[str, typer.Option("--threads", metavar="1,2", help="Numbers of threads.  Default: one, and one for each processor.")] = "",
    numerics: Numerics = None,
    weights: Packing = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, metavar="N", help="How often each case is timed, all in turns.")] = 7,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time of the last case goes, launch by launch.")] = False,
    by: Annotated[str, typer.Option("--by", metavar="FIELD", help="Join launches that agree in: function, op, kernel, where, or node for none.")] = "function",
    html: Annotated[str | None, typer.Option(metavar="OUT", help="With --profile: a page with bars and a time line.")] = None,
    trace: Annotated[str | None, typer.Option(metavar="OUT", help="With --profile: a trace for Perfetto or chrome://tracing.")] = None,
    as_json: Json = False,
) -> None:
    """Time a model or a graph, and see where the time goes.

    Every case is run in turns with the others; the table has the median, the least and the most of the rounds.  Memory is told before
    anything runs.  With --profile: time, arithmetic and traffic of each kernel, beside what this machine can do."""
    from rlxpy.generate.opened import options_for
    from rlxpy.tools.profile import chrome_trace
    from rlxpy.tools.profile_page import page

    if by not in BY:
        raise typer.BadParameter(f"is one of {', '.join(BY)}", param_hint="--by")
    if (html or trace) and not profile:
        raise typer.BadParameter("needs --profile", param_hint="--html" if html else "--trace")
    options = options_for(weights or "auto", numerics.value if numerics else None)
    made = _bench(source, weights or "auto", options.weights)
    cases = _cases(made, sizes, device, threads, options.numerics)
    tell_memory(made, cases)
    timings = made.run(cases, rounds)
    looked = look(made, cases[-1], rounds) if profile else None
    text = timing_table(timings)
    if looked is not None:
        text += "\n\n" + profile_text(looked, by)
        if html is not None:
            write(html, page(looked, Path(source).name))
        if trace is not None:
            write(trace, json.dumps(chrome_trace(looked)))
    show({"source": source, "cases": [t.to_json() for t in timings], "profile": looked.to_json() if looked else None}, text, as_json)


BY = ("function", "op", "kernel", "where", "node")


def _bench(source: str, weights: str, kept: str) -> Bench:
    """weights: as the caller says; kept: as a compiled graph takes them."""
    from rlxpy.tools.bench import Bench, TextBench
    from rlxpy.tools.equivalence import random_params

    graph, params = any_model(source, None, weights, joined=True)
    kind = TextBench if "starts" in (n.name for n in graph.inputs) and graph.symbols.keys() == {"B", "N"} else Bench
    return kind(graph, random_params(graph) if source == "-" or is_graph_file(Path(source)) else params, kept)


def _cases(made: Bench, sizes: list[str] | None, device: str | None, threads: str, numerics: str) -> list[Case]:
    from rlxpy.backends.cpu.threads import available_cpus
    from rlxpy.cli.options import device_names
    from rlxpy.settings import setting
    from rlxpy.tools.bench import Case, default_sizes, sizes_for

    given = [sizes_for(made.graph, sizes_of(text)) for text in sizes] if sizes else default_sizes(made.graph)
    devices = device_names(device) or tuple(d for d in setting("device") if d != "auto") or ("cpu",)
    counts = [_count(t) for t in threads.split(",")] if threads else sorted({1, available_cpus()})
    return [Case(s, d, t, numerics) for s in given for d in devices for t in (counts if d == "cpu" else [1])]


def sizes_of(text: str) -> dict[str, int]:
    try:
        return {name.strip(): int(value) for name, _, value in (part.partition("=") for part in text.split(",") if part.strip())}
    except ValueError:
        raise InputError(f"--sizes {text}", why="each is a name, an equals sign and a whole number", fix="--sizes B=8,S=128") from None


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise InputError(f"--threads {text}", why="whole numbers from 1 are wanted, with commas between", fix="--threads 1,2")
    return int(text)


def tell_memory(made: Bench, cases: list[Case]) -> None:
    for c in {(c.device, c.numerics): c for c in cases}.values():
        m = made.compiled(c).memory()
        note(f"{c.device}: {size(m['param_nbytes'] + m['const_nbytes'])} weights, {size(m['state_nbytes'])} state, {size(m['arena_nbytes'])} arena at the largest sizes")


def timing_table(timings: list[Timing]) -> str:
    rows = [(_text(t.case.sizes), t.case.device, t.case.counted or "-", t.case.numerics, f"{t.median * 1e3:.3f}", f"{min(t.seconds) * 1e3:.3f}", f"{max(t.seconds) * 1e3:.3f}",
             f"{t.per_second:,.0f}") for t in timings]
    return table(("sizes", "device", "threads", "numerics", "median ms", "least", "most", "elements/s"), rows)


def _text(sizes: Any) -> str:
    return ",".join(f"{k}={v}" for k, v in sizes.items()) or "-"


def look(made: Bench, case: Case, rounds: int) -> Profile:
    """The profile of one case, beside this machine's limits where they can be measured."""
    from rlxpy.tools.bench import using_threads
    from rlxpy.tools.profile import profile
    from rlxpy.tools.roofline import roofline

    with using_threads(case.threads):
        limits = roofline(case.threads) if case.device == "cpu" else None
        return profile(made.compiled(case), made.inputs(case.sizes), sizes=case.sizes, rounds=rounds, roofline=limits)


def profile_text(p: Profile, by: str) -> str:
    from rlxpy.tools.profile import threads_text

    total = p.launched_seconds or 1.0
    shown = p.grouped(by)
    rows = [(name, count, f"{s * 1e3:.3f}", f"{100 * s / total:.1f}%", f"{flops / s / 1e9:.1f}" if s else "-", f"{nbytes / s / 1e9:.1f}" if s else "-",
             f"{100 * p.roofline.seconds(flops, nbytes) / s:.0f}%" if p.roofline and s else "-") for name, count, s, flops, nbytes in shown[:MOST_ROWS]]
    lines = [f"{_text(p.sizes)} on {p.place}: {p.seconds * 1e3:.3f} ms a call, {p.launched_seconds * 1e3:.3f} ms in {len(p.launches)} launches"]
    if p.roofline:
        lines.append(f"this machine on {threads_text(p.roofline.threads)}: {p.roofline.gflops:.0f} GFLOP/s in f32, {p.roofline.gbytes:.0f} GB/s from memory (what stays in caches can be faster)")
    lines += ["", table((by, "calls", "ms", "share", "GFLOP/s", "GB/s", "of the limit"), rows)]
    if len(shown) > MOST_ROWS:
        lines.append(f"and {len(shown) - MOST_ROWS} more; --json has them all")
    return "\n".join(lines)
