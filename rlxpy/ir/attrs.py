"""Parameters of ops: frozen dataclasses, hashable, bound to concrete sizes, written as text and read back."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rlxpy.errors import BuildError
from rlxpy.frozen import dataclass
from rlxpy.ir.constant import Constant
from rlxpy.ir.dims import Dim, Shape, Sizes, SymDim, at
from rlxpy.ir.dtypes import DType
from rlxpy.ir.kinds import Convert, annotation, converter

if TYPE_CHECKING:
    from rlxpy.ir.graph import Graph


@dataclass(frozen=True)
class Attrs:
    """Base of every op's parameters; no parameters by default."""

    def __post_init__(self) -> None:
        for name, convert in _fields(type(self)).floats:
            object.__setattr__(self, name, convert(getattr(self, name)))

    def params(self) -> dict[str, Any]:
        """The keywords every cell of the row is called with."""
        return {name: getattr(self, name) for name in field_types(type(self))}

    def graphs(self) -> Iterator[tuple[str, Graph]]:
        """Sub-graphs by field name."""
        for name in _fields(type(self)).graphs:
            if (graph := getattr(self, name)) is not None:
                yield name, graph

    def symbolic(self) -> Iterator[Dim]:
        """Every symbolic size that a field mentions."""
        for name in _fields(type(self)).sized:
            value = getattr(self, name)
            for v in value if isinstance(value, tuple) else (value,):
                if isinstance(v, SymDim):
                    yield v

    def bind(self, sizes: Sizes) -> Attrs:
        """The same parameters with every symbolic size made concrete, in sub-graphs too."""
        changed = {k: _bind(v, sizes) for k, v in self.params().items()}
        return replace(self, **changed) if changed else self


def _bind(value: Any, sizes: Sizes) -> Any:
    if isinstance(value, SymDim):
        return at(value, sizes)
    if isinstance(value, tuple):
        return tuple(_bind(v, sizes) for v in value)
    return value.bind(sizes) if hasattr(value, "bind") else value


class Fields(NamedTuple):
    """What is known of a class of attrs: every field's annotation, the fields that hold floats and what makes those exact, those that hold
    sub-graphs, and perhaps symbolic sizes."""

    types: dict[str, str]
    floats: tuple[tuple[str, Convert], ...]
    graphs: tuple[str, ...]
    sized: tuple[str, ...]


_FIELDS: dict[type[Attrs], Fields] = {}
GRAPHS = {"Graph", "Graph | None"}
_SIZELESS = {"str", "bool", "int", "float", "tuple[int, ...]", "DType", "Constant", *GRAPHS}


def _fields(cls: type[Attrs]) -> Fields:
    if cls not in _FIELDS:
        types = {f.name: annotation(f.type) for f in fields(cls)}
        floats = tuple((k, convert) for k, t in types.items() if "float" in t and (convert := converter(t)))
        _FIELDS[cls] = Fields(types, floats, tuple(k for k, t in types.items() if t in GRAPHS), tuple(k for k, t in types.items() if t not in _SIZELESS))
    return _FIELDS[cls]


def field_types(cls: type[Attrs]) -> dict[str, str]:
    """Field name to the text of its annotation, which also names its codec in ir/text.py."""
    return _fields(cls).types


@dataclass(frozen=True)
class Named(Attrs):
    name: str


@dataclass(frozen=True)
class Literal(Attrs):
    value: Constant


@dataclass(frozen=True)
class Index(Attrs):
    """A ramp along one axis of `shape`."""

    shape: Shape
    axis: int
    to: DType


@dataclass(frozen=True)
class Size(Attrs):
    dim: Dim


@dataclass(frozen=True)
class Axes(Attrs):
    axes: tuple[int, ...]
    keep: bool = False


@dataclass(frozen=True)
class Flip(Attrs):
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Axis(Attrs):
    axis: int = -1


@dataclass(frozen=True)
class RealPoints(Attrs):
    """`n` points come out: half as many frequencies do not say whether that is even."""

    n: Dim
    axis: int = -1


@dataclass(frozen=True)
class KeepAxis(Attrs):
    axis: int = -1
    keep: bool = False


@dataclass(frozen=True)
class Sorting(Attrs):
    axis: int = -1
    descending: bool = False


@dataclass(frozen=True)
class TopK(Attrs):
    k: int
    axis: int = -1


@dataclass(frozen=True)
class Cast(Attrs):
    to: DType


@dataclass(frozen=True)
class Sized(Attrs):
    shape: Shape


@dataclass(frozen=True)
class Perm(Attrs):
    perm: tuple[int, ...]


@dataclass(frozen=True)
class Slice(Attrs):
    """Per axis start (inclusive), stop (exclusive) and positive step; sizes are the dims they cut."""

    start: Shape
    stop: Shape
    step: tuple[int, ...]


@dataclass(frozen=True)
class Pad(Attrs):
    low: Shape
    high: Shape
    value: float = 0.0


@dataclass(frozen=True)
class Eps(Attrs):
    """Normalisation over the last axis."""

    eps: float


@dataclass(frozen=True)
class Attend(Attrs):
    """mask: "none", "causal" or "window" (causal, of `window` keys counting the query itself); softcap 0 is off."""

    scale: float
    mask: str = "none"
    window: int = 0
    softcap: float = 0.0


@dataclass(frozen=True)
class Rope(Attrs):
    """style "half" pairs channel i with i + dims/2, "interleaved" pairs 2i with 2i+1; the first `dims` channels rotate (0: all)."""

    theta: float = 10_000.0
    style: str = "half"
    dims: int = 0


@dataclass(frozen=True)
class Packed(Attrs):
    """A matrix stored in a quantisation encoding; `shape` is the logical one."""

    encoding: str
    shape: Shape


@dataclass(frozen=True)
class Windows(Attrs):
    """`size` elements, `dilation` apart, from every `stride`-th place of one axis."""

    axis: int
    size: int
    stride: int = 1
    dilation: int = 1


@dataclass(frozen=True)
class Conv(Attrs):
    """One number for each spatial axis; `low` and `high` zeros are put before and behind it."""

    strides: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1


@dataclass(frozen=True)
class ConvTranspose(Attrs):
    """The convolution that is transposed, and the spatial sizes it starts from: those of the result."""

    shape: Shape
    strides: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1


@dataclass(frozen=True)
class Pool(Attrs):
    """As Conv, with the window's size; what is put before and behind counts for nothing."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    dilation: tuple[int, ...]


@dataclass(frozen=True)
class AvgPool(Pool):
    """count_pad: the divisor is the whole window, zeros of the padding included; else the elements that are there."""

    count_pad: bool = True


@dataclass(frozen=True)
class Resize(Attrs):
    """To the spatial sizes `shape`.  method: "nearest" or "linear".  points: where result i of m lies among n elements: "half_pixel"
    (i + 1/2) n/m - 1/2, "corners" i (n-1)/(m-1), "asymmetric" i n/m.  Nearest rounds halves up; asymmetric rounds down."""

    shape: Shape
    method: str = "nearest"
    points: str = "half_pixel"


@dataclass(frozen=True)
class Encode(Attrs):
    """The quantisation encoding that values are rounded to."""

    encoding: str


@dataclass(frozen=True)
class Fused(Attrs):
    """`body` is the chain of plain ops this node stands for: its documentation, its fallback and its oracle."""

    kind: str
    body: Graph


@dataclass(frozen=True)
class Scan(Attrs):
    """`body` takes the carries, one slice of every mapped input along axis 0, and all other inputs whole; it gives the new carries, then
    slices of the results.  `reverse` begins with the last slice; slices of results lie where those of the inputs did."""

    body: Graph
    carries: int
    mapped: int
    length: Dim
    reverse: bool = False


@dataclass(frozen=True)
class While(Attrs):
    """Both graphs take all inputs; `body` gives as many values as change, which are the first inputs, and `cond` one bool."""

    cond: Graph
    body: Graph


@dataclass(frozen=True)
class Branch(Attrs):
    """Both graphs take all inputs but the first, which chooses, and give results of the same types."""

    then: Graph
    otherwise: Graph


@dataclass(frozen=True)
class Custom(Attrs):
    """An extension op by name, with its own typed attrs."""

    name: str
    given: Attrs

    def params(self) -> dict[str, Any]:
        return self.given.params()

    def graphs(self) -> Iterator[tuple[str, Graph]]:
        return self.given.graphs()

    def symbolic(self) -> Iterator[Dim]:
        return self.given.symbolic()

    def bind(self, sizes: Sizes) -> Attrs:
        return replace(self, given=self.given.bind(sizes))


def make(cls: type[Attrs], op: str, given: Mapping[str, Any]) -> Attrs:
    """Attrs from keywords.  Raises BuildError naming what is missing, unknown or of the wrong kind."""
    known = field_types(cls)
    if unknown := [k for k in given if k not in known]:
        raise BuildError(f"{op}: wrong parameters", why=f"{op} has no parameter {', '.join(unknown)}", fix=_parameters(known))
    converted = {}
    for k, v in given.items():
        try:
            converted[k] = convert(v) if (convert := converter(known[k])) else v
        except (TypeError, ValueError, OverflowError) as e:
            raise BuildError(f"{op}: {k} = {v!r}", why=f"{k} is {known[k]}: {e}", fix=_parameters(known)) from None
    try:
        return cls(**converted)
    except (TypeError, ValueError) as e:
        raise BuildError(f"{op}: wrong parameters", why=str(e).partition("() ")[2] or str(e), fix=_parameters(known)) from None


def _parameters(known: Mapping[str, str]) -> str:
    return f"parameters, by name, are: {', '.join(f'{k}: {t}' for k, t in known.items()) or 'none'}"
