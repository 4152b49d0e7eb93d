"""Points of tunables that were measured on this machine and kept, or pinned by the caller, put into a plan."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlxpy.errors import InputError, nearest
from rlxpy.extend.backend import BackendSpec
from rlxpy.extend.hooks import ask
from rlxpy.extend.kernels import Choice, KernelRow, When, when_text
from rlxpy.extend.plan import Plan, Step
from rlxpy.frozen import dataclass
from rlxpy.notes import note_once
from rlxpy.settings import cache_home

if TYPE_CHECKING:
    from rlxpy.extend.contract import KernelContract

PART, FORMAT, OFF = "tune", 2, "off"
GATES = ("correct", "operator", "model")  # in order: it agrees with the reference, is faster in the op, is faster in the whole model
PASSED = GATES[:2]                        # by a point that is kept; nobody has timed the model
Point = Mapping[str, int]
Setting = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Rejected:
    """A point that failed at a gate.  why: how wrong, or how slow."""

    point: Setting
    gate: str
    why: str


@dataclass(frozen=True)
class Kept:
    """The best point of one call at one set of sizes, as it was measured; no point where the default stays, and then seconds are the default's."""

    contract: KernelContract
    sizes: Setting
    point: Setting
    seconds: float
    default_seconds: float
    measured: str  # a date
    rejected: tuple[Rejected, ...] = ()

    @property
    def text(self) -> str:
        at = f" at {when_text(self.when)}" if self.sizes else ""
        return (f"tuned {self.measured}, {self.default_seconds / self.seconds:.2f} times as fast as by default{at}; gates passed: {', '.join(PASSED)}; "
                f"not run: {', '.join(GATES[len(PASSED):])}")

    @property
    def when(self) -> When:
        return tuple((name, size, size) for name, size in self.sizes)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "contract": self.contract.to_json(), "sizes": dict(self.sizes), "point": dict(self.point), "seconds": self.seconds,
                "default_seconds": self.default_seconds, "measured": self.measured, "gates": list(PASSED if self.point else ()),
                "rejected": [{"point": dict(r.point), "gate": r.gate, "why": r.why} for r in self.rejected]}


def folder() -> Path:
    return cache_home() / PART


def state() -> int:
    """Another number when something was kept: plans made before are not used any more."""
    try:
        return folder().stat().st_mtime_ns
    except OSError:
        return 0


def keep(found: Kept) -> Path:
    """For this user's next compilations on this machine.  Raises OSError where the cache cannot be written."""
    import json

    from rlxpy.backends.cache import publish

    return publish(PART, _file_name(found.contract, found.sizes), json.dumps(found.to_json(), indent=1, default=str).encode())


def _file_name(contract: KernelContract, sizes: Setting) -> str:
    import hashlib

    return f"{contract.id}-{hashlib.sha256(repr(sizes).encode()).hexdigest()[:8]}.json"


def kept(contract: KernelContract, row: KernelRow) -> Iterator[Kept]:
    """Points that were kept for this contract; a file that does not hold what it should is told and passed over whole."""
    for path in sorted(folder().glob(f"{contract.id}-*.json")):
        if (found := _read(path, contract, row)) and found.point:
            yield found


def kept_at(contract: KernelContract, row: KernelRow, sizes: Setting) -> Kept | None:
    """The same at one set of sizes."""
    path = folder() / _file_name(contract, sizes)
    return _read(path, contract, row) if path.exists() else None


def _read(path: Path, contract: KernelContract, row: KernelRow) -> Kept | None:
    import json

    from rlxpy.extend.contract import DOCUMENT
    from rlxpy.extend.documents import COUNT, POSITIVE, TEXT, WHOLE, Many, Named, Shape, exactly, fault, one_of

    shape: Shape = {
        "format": exactly(FORMAT), "contract": DOCUMENT, "sizes": Named(COUNT), "point": Named(WHOLE), "seconds": POSITIVE, "default_seconds": POSITIVE, "measured": TEXT,
        "gates": Many(one_of(GATES)), "rejected": Many({"point": Named(WHOLE), "gate": one_of(GATES), "why": TEXT})}
    try:
        data = json.loads(path.read_bytes())
        why = fault(data, shape) or _contradiction(data, contract, row)
    except (OSError, ValueError, RecursionError) as e:
        why = f"{type(e).__name__}: {e}"
    if why:
        note_once(f"{path} is passed over: {why}")
        return None
    sizes, point = tuple(data["sizes"].items()), tuple(data["point"].items())
    rejected = tuple(Rejected(tuple(r["point"].items()), r["gate"], r["why"]) for r in data["rejected"])
    return Kept(contract, sizes, point, data["seconds"], data["default_seconds"], data["measured"], rejected)


def _contradiction(data: Mapping[str, Any], contract: KernelContract, row: KernelRow) -> str | None:
    """Why a document of the right shape is not to be used."""
    import json

    wanted, point = json.loads(json.dumps(contract.to_json(), default=str)), data["point"]
    if other := next((name for name in wanted if data["contract"][name] != wanted[name]), None):
        return f"it is of another contract: contract.{other} is {data['contract'][other]!r:.60}, {wanted[other]!r:.60} is wanted"
    if data["gates"] != list(PASSED if point else ()):
        return f"gates are {data['gates']}, a point that is used passes {', '.join(PASSED)}"
    if bad := next((r for r in data["rejected"] if point and r["point"] == point), None):
        return f"its own point was rejected: {bad['why']}"
    return refusal(row, point) if point else None


def refusal(row: KernelRow, point: Point) -> str | None:
    """Why a row cannot be launched at a point."""
    legal = {t.name: t.values for t in row.tunables}
    for name, value in point.items():
        if name not in legal:
            return f"{row.name} has no tunable {name!r}, there are {', '.join(legal) or 'none'}"
        if value not in legal[name]:
            return f"{name}={value} of {row.name} is none of {', '.join(map(str, legal[name]))}"
    whole = {t.name: t.default for t in row.tunables} | dict(point)
    return f"{row.name} cannot be launched at {whole}" if row.tune_valid and not ask(row.name, "tune_valid", row.tune_valid, whole) else None


def tuned(plan: Plan, spec: BackendSpec, wishes: Sequence[str]) -> Plan:
    """The plan with the points that the caller pins, else with those that were kept; steps inside of loops keep their defaults.

    wishes: "library/row:tunable=value" pins, "off" forgets what was kept.  Raises InputError for a row, tunable or value that is not there."""
    pins = _pins(spec, tuple(w for w in wishes if w != OFF))
    look = OFF not in wishes and state() != 0
    if not (pins or look) or not any(tunable(s.choice) for s in plan.steps):
        return plan
    seen: dict[str, tuple[Kept, ...]] = {}

    def measured(step: Step) -> Iterator[tuple[When, Choice]]:
        for c, row in tunable(step.choice) if look else ():
            contract = tuning_contract(plan, step, spec, c)
            if contract.id not in seen:
                seen[contract.id] = tuple(kept(contract, row))
            for k in seen[contract.id]:
                if c.name not in pins and step.choice.at(dict(k.sizes)).name == c.name and (spec.bands or not k.sizes):
                    yield k.when, _at(step.choice.at(dict(k.sizes)), dict(k.point), k.text)

    def chosen(step: Step) -> Choice:
        found = list(measured(step))
        choice = next((c for when, c in found if not when), step.choice)
        choice = replace(choice, bands=(*((when, c) for when, c in found if when), *choice.bands))
        for name, point in pins.items():
            choice = _pinned(choice, name, point)
        return choice

    return replace(plan, steps=tuple(replace(s, choice=chosen(s)) if tunable(s.choice) else s for s in plan.steps))


def tunable(choice: Choice) -> list[tuple[Choice, KernelRow]]:
    """Of the rows that may run a step, each that has tunables."""
    return list({c.name: (replace(c, bands=()), c.row) for c in choice.every if c.row is not None and c.row.tunables}.values())


def tuning_contract(plan: Plan, step: Step, spec: BackendSpec, choice: Choice) -> KernelContract:
    """The contract that points are kept under, the same whatever the point."""
    from rlxpy.extend.contract import contract_of

    names = {t.name for t in choice.row.tunables} if choice.row else set()
    contract = contract_of(plan, step, spec, choice)
    return replace(contract, params=tuple((k, v) for k, v in contract.params if k not in names))


def _at(choice: Choice, point: Point, source: str) -> Choice:
    return replace(choice, params=tuple({**dict(choice.params), **point}.items()), bands=(), source=source)


def _pinned(choice: Choice, name: str, point: Point) -> Choice:
    bands = tuple((when, _at(c, point, "pinned") if c.name == name else c) for when, c in choice.bands)
    return replace(_at(choice, point, "pinned") if choice.name == name else choice, bands=bands)


def _pins(spec: BackendSpec, wishes: Sequence[str]) -> dict[str, Point]:
    rows = {f"{lib.name}/{r.name}": r for lib in spec.kernels.libraries for r in lib.rows}
    pins: dict[str, dict[str, int]] = {}
    for wish in wishes:
        name, _, setting = wish.partition(":")
        key, _, value = setting.partition("=")
        if name not in rows:
            raise InputError(f"tune={wish!r}: no kernel row {name!r}", why=f"there are {len(rows)}", fix=f"near it: {nearest(name, list(rows))}")
        if not value.lstrip("-").isdecimal():
            raise InputError(f"tune={wish!r}", why="library/row:tunable=number is wanted, or off", fix=f"tunables are {_legal(rows[name])}")
        pins.setdefault(name, {})[key] = int(value)
    for name, point in pins.items():
        if why := refusal(rows[name], point):
            raise InputError(f"tune pins {name} where it cannot be", why=why, fix=f"tunables are {_legal(rows[name])}")
    return dict(pins)


def _legal(row: KernelRow) -> str:
    return "; ".join(f"{t.name} of {', '.join(map(str, t.values))}" for t in row.tunables) or "none"
