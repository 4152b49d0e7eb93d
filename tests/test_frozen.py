"""`rlxpy.frozen.dataclass` against the standard library's, which is the law: the same class body through both."""
from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import typing
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import numpy as np
import pytest

import rlxpy.frozen

Decorator = Any
NAN = float("nan")


def plain(dataclass: Decorator) -> list[type]:
    @dataclass(frozen=True)
    class Plain:
        """Has a docstring."""

        a: int
        b: str = "b"
        c: tuple[int, ...] = ()

    return [Plain]


def nothing(dataclass: Decorator) -> list[type]:
    @dataclass(frozen=True)
    class Nothing:
        """Has no fields."""

    return [Nothing]


def derived(dataclass: Decorator) -> list[type]:
    @dataclass(frozen=True)
    class Base:
        """Has a class variable."""

        a: int
        b: float = 1.5
        kind: ClassVar[str] = "base"

        def __post_init__(self) -> None:
            object.__setattr__(self, "b", float(self.b))

    @dataclass(frozen=True)
    class Derived(Base):
        """Has another default, another type, another field."""

        a: str = "three"  # type: ignore[assignment]
        c: object = None
        kind: ClassVar[str] = "derived"

    class Further(Derived):
        """Is no dataclass of its own."""

    @dataclass(frozen=True)
    class Again(Derived):
        """Says a field anew, and has the default that its base has."""

        b: float  # type: ignore[misc]

    return [Base, Derived, Further, Again]


def unlike(dataclass: Decorator) -> list[type]:
    @dataclass(frozen=True)
    class Types:
        """Has types for annotations, where others have texts."""

        __annotations__ = {"a": int, "b": float}
        b = 2.0

    @dataclass(frozen=True)
    class Names:
        """Has names that the compiled text has too, and texts for defaults that are such names."""

        a: str = "_0"
        _1: int = 1
        _self_: str = "_self"

    return [Types, Names]


def own_methods(dataclass: Decorator) -> list[type]:
    @dataclass(frozen=True)
    class Own:
        """Says itself what it is equal to."""

        a: int
        b: int = 2

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and self.a == other.a

        def __repr__(self) -> str:
            return f"<{self.a}>"

    @dataclass(frozen=True)
    class Hashed:
        """Has a hash and an __init__ of its own."""

        a: int

        def __init__(self) -> None:
            object.__setattr__(self, "a", 7)

        def __hash__(self) -> int:
            return 11

    return [Own, Hashed]


def left_alone(dataclass: Decorator) -> list[type]:
    @dataclass(frozen=True)
    class Fields:
        """Says more of its fields than a default."""

        a: int
        b: list[int] = field(default_factory=list, compare=False)
        c: int = field(default=3, repr=False, kw_only=True)

    @dataclass(frozen=True)
    class Below(Fields):
        """Derives from such a class."""

        d: int = 4

    @dataclass(frozen=True, eq=False)
    class Same:
        """Is compared by identity."""

        a: int

    @dataclass
    class Open:
        """Can be changed."""

        a: int

    return [Fields, Below, Same, Open]


def mixed(dataclass: Decorator) -> list[type]:
    """The two decorators in one line of descent, as in a package that extends rlxpy."""
    @dataclass(frozen=True)
    class Ours:
        """Is at the root."""

        a: int

    @dataclasses.dataclass(frozen=True)
    class Theirs(Ours):  # type: ignore[misc]
        """Comes from outside."""

        b: int = 2

    @dataclass(frozen=True)
    class Again(Theirs):  # type: ignore[misc]
        """Derives from what came from outside."""

        c: int = 3

    return [Ours, Theirs, Again, dataclasses.make_dataclass("Made", [("d", int, 4)], bases=(Again,), frozen=True, kw_only=True)]


KINDS: list[Callable[[Decorator], list[type]]] = [plain, nothing, derived, unlike, own_methods, left_alone, mixed]
Arguments = list[tuple[tuple[Any, ...], dict[str, Any]]]
ARGUMENTS: Arguments = [((), {}), ((1,), {}), ((1, "x"), {}), ((), {"a": 1}), ((1,), {"c": 5}), ((NAN,), {}), ((np.float32(2),), {}), ((1, 2, 3, 4, 5), {}), ((1,), {"z": 1})]
pairs = pytest.mark.parametrize(("ours", "theirs"), [pair for kind in KINDS for pair in zip(kind(rlxpy.frozen.dataclass), kind(dataclasses.dataclass), strict=True)],
                                ids=[c.__name__ for kind in KINDS for c in kind(dataclasses.dataclass)])


def outcome(f: Callable[[], Any]) -> Any:
    try:
        return f()
    except (TypeError, ValueError, AttributeError) as e:
        return type(e), str(e)


def said(f: Field) -> tuple[Any, ...]:
    return f.name, f.type, f.default, f.default_factory, f.init, f.repr, f.hash, f.compare, f.kw_only


Field = dataclasses.Field[Any]


@pairs
def test_a_class_says_the_same_of_itself(ours: Any, theirs: Any) -> None:
    assert [said(f) for f in dataclasses.fields(ours)] == [said(f) for f in dataclasses.fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__
    assert repr(ours.__dataclass_params__) == repr(theirs.__dataclass_params__)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert outcome(lambda: typing.get_type_hints(ours.__init__)) == outcome(lambda: typing.get_type_hints(theirs.__init__))
    assert ours.__doc__ == theirs.__doc__
    assert ours.__init__.__qualname__ == theirs.__init__.__qualname__
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)


@pairs
def test_objects_are_made_shown_compared_and_changed_alike(ours: Any, theirs: Any) -> None:
    made = [[outcome(lambda c=c, p=p, k=k: c(*p, **k)) for p, k in ARGUMENTS] for c in (ours, theirs)]  # type: ignore[misc]
    assert [o if isinstance(o, tuple) else repr(o) for o in made[0]] == [o if isinstance(o, tuple) else repr(o) for o in made[1]]
    mine, yours = ([o for o in some if not isinstance(o, tuple)] for some in made)
    assert mine, "some arguments fit"
    assert [[a == b for b in mine] for a in mine] == [[a == b for b in yours] for a in yours]
    assert [[a != b for b in mine] for a in mine] == [[a != b for b in yours] for a in yours]
    assert [a == b for a, b in zip(mine, yours, strict=True)] == [False] * len(mine), "of another class"
    assert [[outcome(lambda a=a, b=b: hash(a) == hash(b)) for b in mine] for a in mine] == [[outcome(lambda a=a, b=b: hash(a) == hash(b)) for b in yours] for a in yours]  # type: ignore[misc]
    for a, b in zip(mine, yours, strict=True):
        for change in (lambda o: setattr(o, "a", 5), lambda o: setattr(o, "z", 5), lambda o: delattr(o, "z"), lambda o: delattr(o, "a")):
            assert outcome(lambda a=a, change=change: change(a)) == outcome(lambda b=b, change=change: change(b))  # type: ignore[misc]
            assert repr(vars(a)) == repr(vars(b))


@pairs
def test_what_the_standard_library_does_with_dataclasses_it_does_with_these(ours: Any, theirs: Any) -> None:
    for p, k in ARGUMENTS:
        if isinstance(mine := outcome(lambda p=p, k=k: ours(*p, **k)), tuple) or mine != mine or "nan" in repr(mine):  # type: ignore[misc]
            continue
        yours = theirs(*p, **k)
        assert dataclasses.asdict(mine) == dataclasses.asdict(yours)
        assert dataclasses.astuple(mine) == dataclasses.astuple(yours)
        assert repr(outcome(lambda a=mine: dataclasses.replace(a, a=9))) == repr(outcome(lambda b=yours: dataclasses.replace(b, a=9)))  # type: ignore[misc]
        assert repr(copy.deepcopy(mine)) == repr(mine)
        if ours.__eq__ is not object.__eq__:
            assert copy.copy(mine) == mine


@rlxpy.frozen.dataclass(frozen=True)
class Loop:
    inside: list[Any]


def test_a_value_inside_itself_is_shown_once() -> None:
    loop = Loop([])
    loop.inside.append(loop)
    assert repr(loop) == "Loop(inside=[...])"


def test_values_are_pickled_and_matched() -> None:
    value = Loop([1, 2])
    assert pickle.loads(pickle.dumps(value)) == value
    match value:
        case Loop([first, *_]):
            assert first == 1


def test_what_the_standard_library_refuses_is_refused() -> None:
    def make(dataclass: Decorator, **options: Any) -> Any:
        @dataclass(**options)
        class Mutable:
            a: list[int] = []  # noqa: RUF012

        return Mutable

    for options in ({"frozen": True}, {}):
        with pytest.raises(ValueError, match="mutable default <class 'list'> for field a is not allowed: use default_factory"):
            make(rlxpy.frozen.dataclass, **options)
    for dataclass in (rlxpy.frozen.dataclass, dataclasses.dataclass):
        with pytest.raises(TypeError, match="non-default argument 'b' follows default argument"):
            @dataclass(frozen=True)
            class Gap:
                a: int = 1
                b: int  # type: ignore[misc]
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
        @dataclasses.dataclass
        class Thawed(Loop):  # type: ignore[misc]
            more: int = 1


def unfrozen_base(dataclass: Decorator) -> type:
    @dataclasses.dataclass
    class Open:
        a: int = 1

    class Between(Open):
        pass

    @dataclass(frozen=True)
    class Closed(Between):
        b: int = 2

    return Closed


def field_without_annotation(dataclass: Decorator) -> type:
    @dataclass(frozen=True)
    class Forgotten:
        a: int = 1
        b = field(default=2)

    return Forgotten


def own_setattr(dataclass: Decorator) -> type:
    @dataclass(frozen=True)
    class Setting:
        a: int

        def __setattr__(self, name: str, value: object) -> None:
            pass

    return Setting


def own_delattr(dataclass: Decorator) -> type:
    @dataclass(frozen=True)
    class Deleting:
        a: int

        def __delattr__(self, name: str) -> None:
            pass

    return Deleting


@pytest.mark.parametrize("wrong", [unfrozen_base, field_without_annotation, own_setattr, own_delattr])
def test_what_it_refuses_for_being_frozen_is_refused_in_its_words(wrong: Callable[[Decorator], type]) -> None:
    with pytest.raises(TypeError) as theirs:
        wrong(dataclasses.dataclass)
    with pytest.raises(TypeError) as ours:
        wrong(rlxpy.frozen.dataclass)
    assert str(ours.value) == str(theirs.value)
