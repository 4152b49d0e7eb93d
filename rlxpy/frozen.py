"""`dataclass` as in the standard library, where plain frozen classes cost a twelfth: they would take half the time of importing rlxpy's compiler.

For a frozen class the standard library compiles six functions of text, one by one.  Here three are compiled for each number of fields, once, and the
classes that have as many get them under their own fields' names; the others are shared."""
from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import cache, partial
from inspect import get_annotations
from reprlib import recursive_repr
from types import CodeType, FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        """The standard library's decorator, and what it makes, but that no docstring is written for a class without one.

        What says more than frozen=True, has a `field(...)` or a variable of the class, or is in error, the standard library makes."""
        if cls is None:
            return partial(dataclass, **options)
        fields = _fields(cls) if options == {"frozen": True} else None
        return dataclasses.dataclass(cls, **options) if fields is None else _complete(cls, fields)


_SAMPLE: Any = dataclasses.make_dataclass("Sample", ["a"], frozen=True)
_PARAMS = _SAMPLE.__dataclass_params__  # the standard library asks for it when another class derives from one made here
_ORDINARY = _SAMPLE.__dataclass_fields__["a"]._field_type
_SPECIAL = ("ClassVar", "InitVar", "KW_ONLY")
_REFUSED = {"__setattr__", "__delattr__"}  # a frozen class writes its own
METHODS = """
def methods(_store):
    def __init__(_self{parameters}):
        {body}
    def __eq__(_self, _other):
        return ({mine}) == ({theirs}) if _other.__class__ is _self.__class__ else NotImplemented
    def __hash__(_self):
        return hash(({mine}))
    return __init__, __eq__, __hash__
"""


def _fields(cls: type) -> dict[str, Field[Any]] | None:
    """Its own after its bases', as the standard library finds them; None where they are not all plain."""
    annotations, given = get_annotations(cls), vars(cls)
    if _REFUSED & given.keys() or any(isinstance(v, Field) and k not in annotations for k, v in given.items()) or not all(map(_is_frozen, cls.__mro__[1:])):
        return None
    own = {name: _field(annotation, getattr(cls, name, MISSING)) for name, annotation in annotations.items()}
    fields: dict[str, Any] = {name: f for base in reversed(cls.__mro__[1:]) for name, f in vars(base).get("__dataclass_fields__", {}).items()} | own
    real = [f for f in fields.values() if f is None or f._field_type is _ORDINARY]
    bare = [f is not None and f.default is MISSING for f in real]
    if not all(map(_is_plain, real)) or bare != sorted(bare, reverse=True):  # a default before a field that has none is an error
        return None
    for name, f in own.items():
        f.name = name
    return fields


def _field(annotation: Any, default: Any) -> Any:
    """A field like a plain one of the standard library's, but for its name; None for what is not plain, or no field."""
    if not isinstance(annotation, str) or any(word in annotation for word in _SPECIAL) or isinstance(default, (Field, MemberDescriptorType)) or default.__class__.__hash__ is None:
        return None
    made: Any = dataclasses.field(default=default)
    made.type, made.kw_only, made._field_type = annotation, False, _ORDINARY
    return made


def _is_frozen(base: type) -> bool:
    """Or no dataclass."""
    params: Any = vars(base).get("__dataclass_params__", _PARAMS)
    return bool(params.frozen)


def _is_plain(f: Field[Any] | None) -> bool:
    return f is not None and f.init and f.repr and f.compare and f.hash is None and not f.kw_only and f.default_factory is MISSING


def _complete(cls: Any, fields: dict[str, Field[Any]]) -> Any:
    given = dict(vars(cls))
    cls.__dataclass_fields__, cls.__dataclass_params__ = fields, _PARAMS
    real = dataclasses.fields(cls)  # less class variables
    names = tuple(f.name for f in real)
    init, eq, hashed = _methods(cls, real)
    setting, deleting = _refusals(cls, names)
    ours = {"__init__": init, "__repr__": _repr, "__eq__": eq, "__hash__": hashed, "__setattr__": setting, "__delattr__": deleting, "__match_args__": names}
    for name, method in ours.items():
        if name not in given or (name == "__hash__" and given[name] is None and "__eq__" in given):  # None is what Python puts there beside an __eq__
            setattr(cls, name, method)
    return cls


def _methods(cls: type, fields: tuple[Field[Any], ...]) -> list[Any]:
    """__init__, __eq__ and __hash__, in the place of the class for tracebacks and for readers of annotations."""
    names = {f"_{k}": f.name for k, f in enumerate(fields)}
    space = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
    made = [FunctionType(_renamed(f.__code__, names), space, f.__name__, closure=f.__closure__) for f in _compiled(len(fields), hasattr(cls, "__post_init__"))]
    for m in made:
        m.__qualname__ = f"{cls.__qualname__}.{m.__name__}"
    made[0].__defaults__ = tuple(f.default for f in fields if f.default is not MISSING)
    made[0].__annotations__ = {f.name: f.type for f in fields} | {"return": None}
    return made


@cache
def _compiled(count: int, checks: bool) -> tuple[FunctionType, ...]:
    """For fields _0, _1, ...  checks: there is a __post_init__."""
    names = [f"_{k}" for k in range(count)]
    body = [f"_store(_self, {n!r}, {n})" for n in names] + ["_self.__post_init__()"] * checks
    made: dict[str, Any] = {}
    exec(METHODS.format(parameters="".join(f", {n}" for n in names), body="; ".join(body) or "pass", mine="".join(f"_self.{n}, " for n in names),
                        theirs="".join(f"_other.{n}, " for n in names)), made)
    return tuple(made["methods"](object.__setattr__))


def _renamed(code: CodeType, names: Mapping[str, str]) -> CodeType:
    """With other names of parameters, attributes and, where they stand as texts, of both."""
    def other(old: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([names.get(x, x) if isinstance(x, str) else x for x in old])

    return code.replace(co_varnames=other(code.co_varnames), co_names=other(code.co_names), co_consts=other(code.co_consts))


def _refusals(cls: Any, names: tuple[str, ...]) -> Any:
    """A class that derives from this one, and is none of dataclass's, may have attributes of its own."""
    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__


@recursive_repr()
def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in dataclasses.fields(self))})"
