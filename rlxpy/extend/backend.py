"""What a backend promises.  The compiler sees only this; it never imports a backend."""
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from rlxpy.errors import RegistryError, RlxError
from rlxpy.extend.bands import banded, bands
from rlxpy.extend.kernels import Choice, KernelLibrary, KernelRow, KernelSearchPath, Refusal
from rlxpy.extend.libraries import BUILTIN
from rlxpy.extend.plan import Plan, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Sizes
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op


@dataclass(frozen=True)
class Device:
    """A place to run, by an open name: "reference", "cpu", "rocm", or a downstream package's own."""

    name: str

    def __str__(self) -> str:
        return self.name


CLAIM = "native(spec, graph, node) gives None for what it takes, else a text with the reason"


def nothing(graph: Graph, node: Node) -> None: """No kernel of its own."""


@dataclass(frozen=True)
class KernelLaunch:
    """The shape of one launch on a GPU, as text where sizes are symbols.  grid: in blocks; threads: of a block; LDS: memory that a block shares.

    fixed_lds_nbytes: what the kernel declares by itself, None where its compiler counts it; dynamic_lds_nbytes: what the launch adds."""

    grid: tuple[str, ...]
    threads: int
    fixed_lds_nbytes: int | None
    dynamic_lds_nbytes: str


@dataclass(frozen=True)
class Launched:
    """How a device starts a step: kernels in order, and whether a run records them once and replays them."""

    kernels: tuple[KernelLaunch, ...] = ()
    captured: bool = False


def called(plan: Plan, step: Step) -> Launched:
    """A plain call, which has no shape."""
    return Launched()


@dataclass(frozen=True)
class BackendSpec:
    """The compiler's whole view of a backend.

    kernels   rows it serves, by search path
    native    of this spec and a node: why its own generator cannot take the node, None when it can; absent when it has no generator
    generates what its generator makes of an op, for reports
    fuses     kinds of fused node worth making for it
    host      rows in NumPy for nodes that nobody takes: staged, and reported
    staged    a row made for such a node when `host` lists none, as for an extension's; None when there is none
    extensions  what it has for an extension's op by itself, before the lowering: a choice, why not, or None for nothing
    inlines   whether its loops and branches call what it has for them
    dense     whether weights unpacked once, at load, run faster than weights unpacked by the kernels
    views     whether kernels read strided operands, so that movement ops cost nothing
    domain    of the rows that it launches itself; those of the host domain are staged otherwise, if it has a host tier
    bands     whether its executables take the row that suits a run's sizes
    guests    names of libraries that others added: what they serve is not fused away
    launched  how it starts a step, for the contract of what runs it"""

    device: Device
    kernels: KernelSearchPath = KernelSearchPath(())
    native: Any = None  # Callable[[BackendSpec, Graph, Node], str | None]
    generates: Mapping[Op, str] = field(default_factory=dict)
    fuses: frozenset[str] = frozenset()
    host: KernelSearchPath | None = None
    staged: Callable[[Graph, Node], KernelRow | None] = nothing
    extensions: Callable[[Graph, Node], Choice | Refusal | None] = nothing
    inlines: bool = False
    dense: bool = False
    views: bool = True
    align_nbytes: int = 64
    facts: Mapping[str, Any] = field(default_factory=dict)
    domain: str = "host"
    bands: bool = False
    guests: frozenset[str] = frozenset()
    launched: Callable[[Plan, Step], Launched] = called

    @property
    def domains(self) -> tuple[str, ...]:
        """Of the rows that can run here."""
        return (self.domain, "host") if self.host is not None and self.domain != "host" else (self.domain,)

    def serving(self, guests: Sequence[KernelLibrary], names: tuple[str, ...] = (), forced: tuple[str, ...] = ()) -> BackendSpec:
        """With libraries of others before its own; of the named ones alone, in that order, where there are names.  forced: rows that alone
        may run their op.

        Raises InputError for an unknown name, RegistryError for a guest with the name of one of its own, SchemaConflict."""
        own, staged = self.kernels.libraries, self.host.libraries if self.host else ()
        taken = {lib.name for lib in (*own, *staged)}
        for g in guests:
            if g.name in taken:
                raise RegistryError(f"kernel library {g.name!r} has the name of one of {self.device}'s own", why=f"these are {', '.join(sorted(taken))}",
                                    fix="give it a name of its own; it comes before them in any case")
        known = (*guests, *own, *(lib for lib in staged if names and lib not in own))
        path = KernelSearchPath(known, self.domains).prefer(names, {BUILTIN: tuple(lib.name for lib in own if not lib.foreign)})
        path = path.forcing(forced, tuple(dict.fromkeys((*guests, *own, *staged)))) if forced else path
        return replace(self, kernels=path, guests=frozenset(g.name for g in guests))

    def verdict(self, graph: Graph, node: Node) -> Choice | Refusal:
        """A kernel row if one accepts the node, else the generator, else every reason why not."""
        choice = self.resolve(graph, node)
        if self.bands:
            choice = banded(choice, bands(self.kernels, graph, node, self.facts, self.resolve))
        if self.kernels.forced_for(node):
            return choice
        if isinstance(choice, Refusal) and (own := self.extensions(graph, node)) is not None:
            choice = own if isinstance(own, Choice) else Refusal((*choice.reasons, *own.reasons))
        if isinstance(choice, Choice) or self.native is None:
            return choice
        why = self._claim(graph, node)
        return Choice(None, tier="native") if why is None else Refusal((*choice.reasons, f"{self.device} generator: {why}"))

    def _claim(self, graph: Graph, node: Node) -> str | None:
        """Why the generator does not take a node.  Raises RegistryError where it gives neither None nor a reason."""
        try:
            why = self.native(self, graph, node)
        except RlxError:
            raise
        except Exception as e:
            raise RegistryError(f"what {self.device} claims of {node.label} cannot be told", where=node.where, why=f"{type(e).__name__}: {e}", fix=CLAIM) from e
        if why is not None and not (isinstance(why, str) and why):
            raise RegistryError(f"what {self.device} claims of {node.label} is {why!r}", where=node.where, why=f"{type(why).__name__} is no reason", fix=CLAIM)
        return why

    def resolve(self, graph: Graph, node: Node) -> Choice | Refusal:
        """The row for a node at all of its sizes."""
        choice = self.kernels.resolve(graph, node, self.facts)
        staged = isinstance(choice, Choice) and choice.row is not None and choice.row.domain == "host" != self.domain
        return replace(choice, tier="host") if isinstance(choice, Choice) and staged else choice

    def apart(self, graph: Graph, node: Node) -> bool:
        """Whether a guest's row takes a node, at some sizes at least, or a row is forced on it, so that it must not become part of another."""
        if self.kernels.forced_for(node):
            return True
        if not any(lib.name in self.guests and (node.op, node.kind) in lib.by_op for lib in self.kernels.libraries):
            return False
        choice = self.verdict(graph, node)
        return isinstance(choice, Choice) and any(c.library in self.guests for c in choice.every)

    def host_choice(self, graph: Graph, node: Node) -> Choice | None:
        """The host tier's row for a node that nothing else takes."""
        choice = self.host.resolve(graph, node, self.facts) if self.host else None
        if isinstance(choice, Choice):
            return Choice(choice.row, choice.library, "host", choice.lost)
        row = self.staged(graph, node)
        return Choice(row, "host", "host") if row else None


class Remembering(BackendSpec):
    """Asked once for each op, attrs, types and which operands are weights: a model repeats its layers, and the plan asks again what a pass has asked.

    For one compile: what was registered later it does not hear of."""

    @cached_property
    def _said(self) -> dict[Any, Choice | Refusal]:
        return {}

    def verdict(self, graph: Graph, node: Node) -> Choice | Refusal:
        key = node.op, node.attrs, node.types, tuple([(graph.nodes[r.node].types[r.out], graph.nodes[r.node].op is Op.PARAM) for r in node.inputs])
        if key not in self._said:
            self._said[key] = super().verdict(graph, node)
        return self._said[key]


def remembering(spec: BackendSpec) -> BackendSpec:
    """The same backend, which remembers what it said."""
    return spec if isinstance(spec, Remembering) else Remembering(**{f.name: getattr(spec, f.name) for f in fields(BackendSpec)})


Claim = Callable[[Graph, Node], str | None] | Collection[DType]  # why a node is not taken, None when it is; or the types its operands may have


def supported_ops(claims: Mapping[Op, Claim]) -> Callable[[BackendSpec, Graph, Node], str | None]:
    """A `native` from what a generator takes, by op.  Everything else is rewritten into that, or staged on the host.

    Raises RegistryError for claims of another kind: they would claim nothing, in silence."""
    odd = claims if not isinstance(claims, Mapping) else next((f"{op!r}: {c!r}" for op, c in claims.items() if not isinstance(op, Op) or not _claims(c)), None)
    if odd is not None:
        raise RegistryError(f"supported_ops of {odd!s:.100}", why="claims are the types of an op's operands, or a function of graph and node", fix="supported_ops({Op.ADD: {DType.F32}})")

    def native(spec: BackendSpec, graph: Graph, node: Node) -> str | None:
        claim = claims.get(node.op)
        if claim is None:
            return f"it does not claim {node.label}"
        if callable(claim):
            return claim(graph, node)
        odd = next((t for t in (*(graph.type(r) for r in node.inputs), *node.types) if t.dtype not in claim), None)
        return odd and f"{node.label} takes {', '.join(d.text for d in DType if d in claim)}, not {odd}"
    return native


def _claims(claim: Any) -> bool:
    return callable(claim) or (isinstance(claim, Collection) and not isinstance(claim, str) and all(isinstance(d, DType) for d in claim))


@runtime_checkable
class ExecutableGraph(Protocol):
    """A plan with weights.  Calls may come from several threads at once; a state belongs to one call at a time."""

    def set_params(self, arrays: Mapping[str, Array]) -> None:
        """All of them at once: a run that has begun keeps the weights it began with."""

    def new_state(self) -> Any:
        """Fresh persistent memory: every STATE leaf zero."""

    def run(self, inputs: Sequence[Array], sizes: Sizes, outputs: Sequence[Array], state: Any) -> None:
        """Fill `outputs`, arrays of the right shape and type; nothing else of the arena escapes.

        A run that raises leaves state and outputs as they were.  Raises InputError for a state of another executable."""


Call = tuple[Sequence[Array], Sizes, Sequence[Array]]  # inputs, sizes, outputs


@runtime_checkable
class Lanes(Protocol):
    """An executable that may run several calls at once, each by one thread: nothing waits between their launches."""

    @property
    def lanes(self) -> int:
        """How many calls at once."""

    def run_each(self, calls: Sequence[Call]) -> None:
        """As `run` without a state does.  Raises what the first of them raises that fails; the outputs of the others may be filled."""


@dataclass(frozen=True)
class Emitted:
    """The text that a backend generates for a plan: the whole of it, its kernels by name, and which kernel each launch calls, in order."""

    source: str
    kernels: Mapping[str, str]
    launches: tuple[tuple[Step, str], ...]


@dataclass(frozen=True)
class Span:
    """One thread's part of one launch, in ns of the monotonic clock.  kernel: the function called."""

    step: Step
    kernel: str
    thread: int
    begin_ns: int
    end_ns: int


@runtime_checkable
class Profiles(Protocol):
    """An executable that can say where the time of a run goes."""

    def profile(self, inputs: Sequence[Array], sizes: Sizes, outputs: Sequence[Array], state: Any) -> tuple[Span, ...]:
        """A run like any other, with a look at the clock around every launch."""


@runtime_checkable
class Emits(Protocol):
    """A backend that can show what it generates, also where it cannot run."""

    def emit(self, plan: Plan) -> Emitted: ...


@runtime_checkable
class Tiered(ExecutableGraph, Protocol):
    """An executable that begins on a slower tier and changes over by itself, between two calls."""

    @property
    def tier(self) -> str:
        """What the next call runs on."""

    @property
    def tier_text(self) -> str:
        """The same for a person: since when, or what keeps it there."""

    @property
    def packed_nbytes(self) -> int:
        """Weights that the faster tier keeps in a layout of its own, beside those it was given; 0 until it is there."""

    def start(self) -> None:
        """Prepare the faster tier in the background."""

    def wait(self) -> None:
        """Until the faster tier is there.  Raises what keeps it away."""


@runtime_checkable
class Backend(Protocol):
    @property
    def spec(self) -> BackendSpec: ...

    def missing(self) -> str | None:
        """Why this machine cannot run the backend; None when it can.  Never raises."""

    def load(self, plan: Plan, params: Mapping[str, Array], *, debug: bool = False) -> ExecutableGraph: ...
