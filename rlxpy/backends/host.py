"""NumPy kernels: a row for every op, from its `ref` cell.  The reference is made of them, and other backends fall back on them."""
from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from rlxpy.backends.custom import extension_row, fill, ready
from rlxpy.errors import RegistryError, RlxError
from rlxpy.extend.backend import BackendSpec
from rlxpy.extend.hooks import ask
from rlxpy.extend.kernels import HostLaunch, KernelLibrary, KernelRow, KernelSearchPath, operand_index
from rlxpy.extend.plan import Step
from rlxpy.extend.schema import schema_of
from rlxpy.ir import refs
from rlxpy.ir.dims import Sizes
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import APPEND, Graph, Node, Ref
from rlxpy.ir.op import LEAVES, Op
from rlxpy.ir.row import OpRow

FUSED_KINDS = ("elementwise", "matmul", "gated_mlp", "conv", "reduce", "rows")  # worth making for NumPy


ChainStep = tuple[Callable[..., Any], tuple[int, ...], dict[str, Any], tuple[int, ...]]  # a function, slots that it reads, its parameters, slots that it fills


def append_rows(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    """kv_append: in place when the plan gave it the cache's own memory."""
    cache, new, pos = ins
    slot = refs.kv_slot(cache, new, pos, attrs["axis"])
    if outs[0].ctypes.data != cache.ctypes.data:
        outs[0][...] = cache
    outs[0][slot] = new


def run_chain(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    program, count = _program(attrs["body"])
    values = _computed(ins, program, count)
    for out, r in zip(outs, _result_slots(attrs["body"]), strict=True):
        out[...] = values[r]


def append_chain(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    """A chain that ends in kv_append, whose cache is not copied."""
    (*program, (_, sources, params, _)), count = _program(attrs["body"])
    values = _computed(ins, program, count)
    append_rows([values[i] for i in sources], outs, params)


def _computed(ins: Sequence[Array], program: Iterable[ChainStep], count: int) -> list[Any]:
    """Values by their slots."""
    values: list[Any] = [*ins, *([None] * (count - len(ins)))]
    for f, sources, params, targets in program:
        got = f(*(values[i] for i in sources), **params)
        if len(targets) == 1:
            values[targets[0]] = got
        else:
            for t, a in zip(targets, got, strict=True):
                values[t] = a
    return values


def _slots(body: Graph) -> dict[Ref, int]:
    """Inputs first, in their order, then every other value."""
    slots = {n.refs[0]: k for k, n in enumerate(body.inputs)}
    for n in body:
        for r in n.refs:
            slots.setdefault(r, len(slots))
    return slots


@lru_cache(maxsize=4096)
def _program(body: Graph) -> tuple[tuple[ChainStep, ...], int]:
    slots = _slots(body)
    steps = tuple((n.row.ref, tuple(slots[r] for r in n.inputs), n.attrs.params(), tuple(slots[r] for r in n.refs)) for n in body if n.op is not Op.INPUT)
    return steps, len(slots)  # type: ignore[return-value]


@lru_cache(maxsize=4096)
def _result_slots(body: Graph) -> tuple[int, ...]:
    slots = _slots(body)
    return tuple(slots[r] for r in body.outputs)


def launcher(row: OpRow) -> HostLaunch:
    """Straight into the output where NumPy's own function takes it, else through a temporary."""
    ref = row.ref
    if isinstance(ref, np.ufunc):
        return lambda ins, outs, attrs: ref(*ins, out=outs[0])
    return partial(fill, f=ref)  # type: ignore[arg-type]


class HostCall:
    """A row's function with what it keeps for one executable: its state, and what selection found of its parameters."""

    def __init__(self, row: KernelRow, params: Mapping[str, Any], state: Any) -> None:
        assert callable(row.launch), "rows of the host domain are functions"
        self._launch, self._params = row.launch, {**params, **({"state": state} if row.init else {})}
        if row.fini is not None:
            weakref.finalize(self, row.fini, state)

    def __call__(self, ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
        self._launch(ins, outs, {**attrs, **self._params})


def host_launch(graph: Graph, step: Step, row: KernelRow | None = None, *, debug: bool = False) -> HostLaunch:
    """What runs a step whose row is a NumPy function; `row` stands for that of a step without one.  Raises CompileError.

    debug: a row that replaces a chain is compared with it, byte for byte, at every launch, and a compiled function is held to its operands."""
    row, params = step.choice.row or row, dict(step.choice.params)
    assert row is not None, "the host tier is made of rows"
    if not callable(row.launch):
        raise RegistryError(f"row {step.choice.name}: its launch is {row.launch!r:.60}", where=step.node.where, why="a row of the domain 'host' is a function of (ins, outs, attrs)",
                            fix="give a function, or name the domain of the device that takes it")
    launch = ready(getattr(row.launch, "fenced", row.launch) if debug else row.launch, step.node)
    made = HostCall(row, params, ask(row.name, "init", row.init, graph, step.node) if row.init else None) if params or row.init or row.fini else launch
    made = made if step.choice.library in ("", LIBRARY.name, "host") else partial(_filling, launch=made)
    return _beside_chain(step.choice.name, made) if debug and row.replaces else made


def _filling(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any], launch: Callable[..., Any]) -> None:
    """What somebody else's function returns is looked at: nothing, or an output that it filled."""
    made = launch(ins, outs, attrs)
    if made is not None and not any(made is o for o in outs):
        raise TypeError(f"it returns {type(made).__name__}, where its results go into `outs`: outs[0][...] = .., or out=outs[0]")


def _beside_chain(name: str, launch: HostLaunch) -> HostLaunch:
    def both(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
        want = [np.empty(o.shape, o.dtype) for o in outs]
        run_chain(ins, want, attrs)
        launch(ins, outs, attrs)
        for k, (w, got) in enumerate(zip(want, outs, strict=True)):
            wrong = [i for i, (a, b) in enumerate(zip(w.flat, got.flat, strict=True)) if a.tobytes() != b.tobytes()] if w.tobytes() != got.tobytes() else []
            if wrong:
                i = wrong[0]
                raise RlxError(f"{name} is not the chain that it replaces", why=f"{len(wrong)} of {w.size} elements of output {k} differ; at {i} it gives {got.flat[i]!r}, the chain {w.flat[i]!r}",
                               fix="a row with `replaces` gives the chain's results to the last bit; register a close one as an op of its own")
    return both


LaunchAt = Callable[[Sizes], HostLaunch]


def by_size(step: Step, launch: Callable[[Step], HostLaunch]) -> LaunchAt:
    """What runs a step at given sizes; everything is prepared now, while the extensions that it was compiled with are registered."""
    made = [(v, launch(v)) for v in step.variants]
    return (lambda sizes: made[0][1]) if len(made) == 1 else lambda sizes: next(f for v, f in made if v.applies(sizes))


def as_stored(step: Step, row: KernelRow, launch: HostLaunch) -> HostLaunch:
    """A function that knows weights as they are stored, for a step whose row has them in an order of its own."""
    undo = {operand_index(row, schema_of(row.op, row.kind), w.operand): w.unrelayout for w in row.weights}
    return lambda ins, outs, attrs: launch([undo[k](a) if k in undo else a for k, a in enumerate(ins)], outs, attrs)


def failure(step: Step, e: BaseException) -> BaseException:
    """What a step's error becomes: an error that names the node and the user's line; an interrupt stays itself."""
    node = step.node
    if isinstance(e, RlxError):
        return e.at(node.where)
    if isinstance(e, Exception):
        return RlxError(f"{node.label} : {node.type} failed", where=node.where, why=f"kernel {step.choice.name} raised {type(e).__name__}: {e}")
    return e


def runs_ref(spec: BackendSpec, graph: Graph, node: Node) -> str | None:
    """An extension without a lowering runs its own `ref`; one with a lowering is better fused."""
    if callable(node.row.lower):
        return "its lowering fuses"
    return None if callable(node.row.ref) else f"{node.label} has no NumPy reference"


SPECIAL = {Op.KV_APPEND: append_rows}
LIBRARY = KernelLibrary("reference", (
    *(KernelRow(op.text, op, SPECIAL.get(op) or launcher(op.row), doc=op.row.doc) for op in Op if op not in LEAVES and op not in (Op.FUSED, Op.CUSTOM)),
    *(KernelRow(f"fused.{kind}", Op.FUSED, run_chain, kind=kind, doc="the chain, op by op") for kind in (*FUSED_KINDS, "attention", "products")),
    KernelRow("fused.append", Op.FUSED, append_chain, kind=APPEND, doc="the chain, op by op, into the cache"),
), reference=True)


def with_host(spec: BackendSpec) -> BackendSpec:
    """The same with NumPy behind it: what nobody takes and nothing rewrites is staged there, and reported."""
    return replace(spec, host=KernelSearchPath((LIBRARY,)), staged=extension_row)
