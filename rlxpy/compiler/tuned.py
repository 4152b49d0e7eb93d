"""Points of tunables that were measured on this machine and kept, or pinned by the caller, put into a plan."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

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

PART, FORMAT, OFF = "tune", 1, "off"
Point = Mapping[str, int]


@dataclass(frozen=True)
class Kept:
    """The best point of one call at one set of sizes, as it was measured."""

    contract: KernelContract
    sizes: tuple[tuple[str, int], ...]
    point: tuple[tuple[str, int], ...]
    seconds: float
    default_seconds: float
    measured: str  # a date

    @property
    def text(self) -> str:
        return f"tuned {self.measured}, {self.default_seconds / self.seconds:.2f} times as fast as by default" + (f" at {when_text(self.when)}" if self.sizes else "")

    @property
    def when(self) -> When:
        return tuple((name, size, size) for name, size in self.sizes)


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
    import hashlib
    import json

    from rlxpy.backends.cache import publish

    data = {"format": FORMAT, "contract": found.contract.to_json(), "sizes": dict(found.sizes), "point": dict(found.point), "seconds": found.seconds,
            "default_seconds": found.default_seconds, "measured": found.measured}
    at = hashlib.sha256(repr(found.sizes).encode()).hexdigest()[:8]
    return publish(PART, f"{found.contract.id}-{at}.json", json.dumps(data, indent=1).encode())


def kept(contract: KernelContract, row: KernelRow) -> Iterator[Kept]:
    """What was kept for this contract; a file that does not hold what it should is told and passed over."""
    import json

    for path in sorted(folder().glob(f"{contract.id}-*.json")):
        try:
            data = json.loads(path.read_bytes())
            if data["format"] != FORMAT or data["contract"] != json.loads(json.dumps(contract.to_json(), default=str)):
                raise ValueError("it is of another contract")
            sizes, point = (tuple((str(k), int(v)) for k, v in data[name].items()) for name in ("sizes", "point"))
            if why := refusal(row, dict(point)):
                raise ValueError(why)
            yield Kept(contract, sizes, point, float(data["seconds"]), float(data["default_seconds"]), str(data["measured"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            note_once(f"{path} is passed over: {type(e).__name__}: {e}")


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
