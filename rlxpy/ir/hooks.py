"""What the hooks of an extension must look like: their signatures, and the types they give, checked when the op is registered."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from rlxpy.errors import HookMismatch
from rlxpy.ir.attrs import Attrs, field_types
from rlxpy.ir.dtypes import DType
from rlxpy.ir.kinds import KINDS, converter
from rlxpy.ir.row import CELLS, OpRow, Why
from rlxpy.ir.types import TensorType

LEADING = {"shape": (), "dtype": (), "ref": (), "lower": (), "vjp": ("dy", "y"), "jvp": ("dxs", "y"), "vmap": ("batched",), "body": ()}  # before the inputs
SAMPLES = {"float": 1.0, "int": 1, "bool": False, "DType": DType.F32}  # parameters of a trial that have no default
SHAPES = ((4, 4), (4,), (), (2, 4, 4))


def check(name: str, row: OpRow, inputs: Sequence[str]) -> None:
    """inputs: their names, where they are known.  Raises HookMismatch, with both signatures or both types."""
    _check_row(name, row)
    if not isinstance(inputs, tuple) or not all(isinstance(n, str) and n.isidentifier() for n in inputs) or len(set(inputs)) < len(inputs):
        raise HookMismatch(f"{name}: inputs {inputs!r:.100}", why="they are no tuple of different names", fix="as in inputs=('x', 'scale')")
    for hook in LEADING:
        cell = getattr(row, hook, None)
        if callable(cell):
            check_signature(name, hook, cell, row.arity, tuple(field_types(row.attrs)), inputs)
    _trial(name, row)


def _check_row(name: str, row: Any) -> None:
    if not isinstance(row, OpRow):
        raise HookMismatch(f"op {name!r} has no row", why=f"it is given {type(row).__name__}", fix="OpExtension(name, OpRow(..))")
    least, most = bounds(row.arity) if isinstance(row.arity, (int, tuple)) and not isinstance(row.arity, bool) else (-1, 0)
    if not isinstance(least, int) or least < 0 or not (most is None or (isinstance(most, int) and most >= least)):
        raise HookMismatch(f"{name}: arity {row.arity!r}", why="it is neither a number nor (least, most)", fix="as in 2, (1, 3) or (1, None)")
    if not isinstance(row.dtypes, tuple) or not row.dtypes or not all(isinstance(d, (set, frozenset)) and all(isinstance(e, DType) for e in d) for d in row.dtypes):
        raise HookMismatch(f"{name}: dtypes {row.dtypes!r:.100}", why="each input needs a set of DTypes", fix="as in (frozenset({DType.F32}),)")
    if not isinstance(row.attrs, type) or not issubclass(row.attrs, Attrs) or not is_dataclass(row.attrs):
        raise HookMismatch(f"{name}: attrs {row.attrs!r:.100}", why="parameters are a frozen dataclass made from Attrs", fix="@dataclass(frozen=True) class Mine(Attrs): ..")
    for field, kind in field_types(row.attrs).items():
        if hasattr(Attrs, field):
            raise HookMismatch(f"{name}: a parameter named {field}", why="the parameters of every op have something of that name", fix=f"name it otherwise, as in {field}_")
        if converter(kind) is None:
            raise HookMismatch(f"{name}: parameter {field}: {kind}", why=f"{kind} has no text form, so graphs with it could not be written down", fix=f"one of {KINDS}")
    for hook in ("shape", "dtype"):
        if not callable(getattr(row, hook)) and (hook == "shape" or row.dtype is not None):
            raise HookMismatch(f"{name}: {hook} is {getattr(row, hook)!r:.100}", why="it is no function", fix=f"{hook}=lambda x: x.{hook}")
    for cell in CELLS:
        if not (callable(held := getattr(row, cell)) or held is None or isinstance(held, Why)):
            raise HookMismatch(f"{name}: {cell} is {held!r:.100}", why="it is no function", fix=f"{cell}=None, a function as ir/row.py describes it, or Why('the reason for none')")


def bounds(arity: Any) -> tuple[Any, Any]:
    """The least and the most inputs; None for any."""
    return arity if isinstance(arity, tuple) and len(arity) == 2 else (arity, arity)


def check_signature(name: str, hook: str, f: Callable[..., Any], arity: Any, parameters: Sequence[str], inputs: Sequence[str]) -> None:
    """Whether `f` can be called as the hook is, with the fewest inputs and with the most."""
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):  # of some functions written in C nothing is known
        return
    least, most = bounds(arity)
    leading, params = LEADING[hook], dict.fromkeys(parameters)
    for count in sorted({least, least + 1 if most is None else most}):
        given = (*leading, *_names(inputs, count))
        try:
            bound = signature.bind(*given, **params)
        except TypeError as e:
            raise _mismatch(name, hook, signature, given, params, str(e)) from None
        swapped = {k: v for k, v in bound.arguments.items() if isinstance(v, str) and k != v and k in given and k not in params}
        if swapped:
            raise _mismatch(name, hook, signature, given, params, ", ".join(f"{k} would be {v}" for k, v in swapped.items()))


def _names(inputs: Sequence[str], count: int) -> tuple[str, ...]:
    return tuple(inputs[k] if k < len(inputs) else f"x{k}" for k in range(count))


def _mismatch(name: str, hook: str, signature: inspect.Signature, given: Sequence[str], params: Any, why: str) -> HookMismatch:
    called = ", ".join((*given, *(f"{p}=.." for p in params)))
    return HookMismatch(f"{hook} of {name} is {hook}{signature}", why=f"it is called as {hook}({called}): {why}", fix="inputs come by position, in their order; parameters by keyword")


# ---- a trial -------------------------------------------------------------------------------------------------------
def _trial(name: str, row: OpRow) -> None:
    """Run what gives Values once, on small inputs that the op's own rules accept, where such are found; what raises is left to real inputs."""
    found = next(_accepted(name, row), None)
    if found is None:
        return
    from rlxpy.ir.builder import Builder

    types, attrs, results = found
    for hook in ("lower", "vjp", "jvp", "vmap"):
        cell = getattr(row, hook)
        if not callable(cell):
            continue
        b = Builder("trial")

        def put(kind: str, ts: Sequence[TensorType], b: Any = b) -> list[Any]:
            return [b.input(f"{kind}{k}", *t) for k, t in enumerate(ts)]

        batch = [TensorType((3, *t.shape), t.dtype) for t in types]
        xs = put("x", batch if hook == "vmap" else types)
        ys, ds = put("y", results), put("d", types if hook == "jvp" else results)
        y, d = (v[0] if len(results) == 1 else tuple(v) for v in (ys, ds))
        leading = {"lower": (), "vjp": (d, y), "jvp": (tuple(ds), y), "vmap": ((True,) * len(xs),)}[hook]
        if hook in ("vjp", "jvp") and not all(t.dtype.is_float for t in (*types, *results)):
            continue
        try:
            made = cell(*leading, *xs, **attrs.params())
        except HookMismatch:
            raise
        except Exception:  # the inputs may be such that it rightly refuses them
            continue
        check_results(name, hook, made, types, results)


def _accepted(name: str, row: OpRow) -> Iterator[tuple[tuple[TensorType, ...], Attrs, tuple[TensorType, ...]]]:
    least, _ = bounds(row.arity)
    defaults = {f.name: SAMPLES.get(kind, MISSING) if f.default is MISSING else f.default for f, kind in zip(fields(row.attrs), field_types(row.attrs).values(), strict=True)}
    if MISSING in defaults.values():
        return
    accepted = [row.dtypes[min(k, len(row.dtypes) - 1)] for k in range(least)]
    dtypes = [DType.F32 if DType.F32 in some else next(d for d in DType if d in some) for some in accepted]
    for shape in SHAPES:
        types = tuple(TensorType(shape, d) for d in dtypes)
        try:
            attrs = row.attrs(**defaults)
            yield types, attrs, row.infer(name, types, attrs)
        except HookMismatch:  # whatever the inputs, a rule gives types
            raise
        except Exception:  # these inputs are not for it
            continue


def check_results(name: str, hook: str, made: Any, types: Sequence[TensorType], results: Sequence[TensorType]) -> None:
    """Whether what a hook gave is what its contract in ir/row.py says.  types: of the inputs.  Raises HookMismatch."""
    if hook == "vjp" and not isinstance(made, tuple):
        raise HookMismatch(f"vjp of {name} gives {_said(made)}", why=f"a gradient for each of {len(types)} inputs is wanted, in a tuple", fix="return (dx,); None for no gradient")
    wanted = {"vjp": tuple(types), "vmap": tuple(TensorType((3, *t.shape), t.dtype) for t in results)}.get(hook, tuple(results))
    given = made if isinstance(made, tuple) else (made,)
    optional = hook in ("vjp", "jvp")
    fits = len(given) == len(wanted) and all((optional and v is None) or (getattr(v, "type", None) == t and not (optional and t.dtype.kind in "biu"))
                                             for v, t in zip(given, wanted, strict=True))
    if not fits:
        raise HookMismatch(f"{hook} of {name} gives {', '.join(map(_said, given)) or 'nothing'}", why=f"{', '.join(map(str, wanted)) or 'nothing'} is wanted for inputs {', '.join(map(str, types))}",
                           fix="return Values of these types" + (", or None for a zero, as of integers and bools" if optional else ""))


def _said(value: Any) -> str:
    """A Value's type; the kind of what is none."""
    return str(value.type) if isinstance(getattr(value, "type", None), TensorType) else repr(value) if value is None else type(value).__name__
