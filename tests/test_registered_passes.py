"""Passes that others register: their order, their scopes, their notes, and what is none."""
from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from test_pipeline import SPEC, Do, sample

from rlxpy import Builder, CompileOptions, Graph, Op, Session, compile
from rlxpy.errors import FusionError, RegistryError, VerifyError
from rlxpy.extend.passes import ROAD, Note, NotingPass, pass_registry, register_ir_pass, registered_passes, unregister_ir_pass
from rlxpy.fusion.canonicalise import Canonicalise
from rlxpy.fusion.pipeline import passes_known, standard
from rlxpy.fusion.rebuild import rebuild
from rlxpy.ir.pattern import rules, var


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with pass_registry():
        yield


def named(*names: str, **wishes: tuple[str, ...]) -> None:
    for n in names:
        register_ir_pass(Do(lambda g: g, n), **wishes)


def order() -> list[str]:
    return [p.name for p in registered_passes()]


def test_order_is_that_of_registration_unless_wished_otherwise() -> None:
    named("c", "a", "b")
    assert order() == ["c", "a", "b"]
    named("z", before=("a",))
    named("y", after=("b",), before=("c",))
    got = order()
    assert got.index("z") < got.index("a")
    assert got.index("b") < got.index("y") < got.index("c")
    named("x", after=("nobody",), before=("nobody either",))
    assert "x" in order()


@pytest.mark.parametrize("wishes", [
    [("a", (), ("b",)), ("b", (), ("a",))],
    [("a", ("b",), ()), ("b", ("a",), ())],
    [("a", ("b",), ()), ("b", ("c",), ()), ("c", ("a",), ())],
    [("a", (), ("a",))],
    [("a", ("a",), ())],
])
def test_passes_that_wait_for_each_other_are_an_error(wishes: list[tuple[str, tuple[str, ...], tuple[str, ...]]]) -> None:
    *first, (last, before, after) = wishes
    for name, b, a in first:
        register_ir_pass(Do(lambda g: g, name), before=b, after=a)
    with pytest.raises(RegistryError, match="wait for each other"):
        register_ir_pass(Do(lambda g: g, last), before=before, after=after)
    assert order() == [name for name, _, _ in first], "nothing is half registered"


def test_registered_passes_run_after_fusion_and_before_the_last_legalisation() -> None:
    seen: list[list[str]] = []
    named("mine", "yours")

    def look(graph: Graph) -> Graph:
        seen.append([n.kind or n.op.text for n in graph if n.inputs])
        return rebuild(graph, lambda b, n, xs, new: xs[0].gelu() if n.op is Op.SOFTMAX else None, "look")

    register_ir_pass(Do(look, "look"))
    c = compile(sample(), {"w": np.ones((4, 4), np.float32)})
    names = [r.name for r in c.report.runs]
    assert names[names.index("fuse") + 1:] == ["mine", "yours", "look", "legalise"]
    assert "matmul" in seen[0]
    assert Op.GELU in {s.node.op for s in c.plan.steps}


def test_a_name_is_taken_once() -> None:
    named("mine")
    with pytest.raises(RegistryError, match="pass 'mine' is already registered"):
        named("mine")
    unregister_ir_pass("mine")
    named("mine")


def ran(g: Graph | None = None) -> list[str]:
    return [r.name for r in compile(g or sample(), {"w": np.ones((4, 4), np.float32)}).report.runs]


@pytest.mark.parametrize("built_in", ROAD)
def test_a_pass_runs_once_in_front_of_whichever_built_in_pass_it_wishes(built_in: str) -> None:
    """The first run of that name, or of the next one where the backend has no use for it; behind all of them pass legalise comes once more."""
    register_ir_pass(Do(lambda g: replace(g), "mine"), before=(built_in,))
    got = ran()
    assert got.count("mine") == 1
    later = (*ROAD[ROAD.index(built_in):], "legalise")
    assert got[got.index("mine") + 1] in later
    assert not any(n in got[:got.index("mine")] for n in later if n != "legalise" or built_in == "legalise")


def test_the_road_names_the_built_in_passes() -> None:
    assert {p.name for p in passes_known(SPEC)} == set(ROAD)
    firsts = list(dict.fromkeys(p.name for p in standard(replace(SPEC, fuses=frozenset({"rows", "attention", "append", "products"})))))
    assert firsts == list(ROAD)


def test_two_libraries_with_a_pass_each_keep_each_others_wishes() -> None:
    """Neither knows where the other's runs; whoever is waited for comes early too."""
    register_ir_pass(Do(lambda g: g, "zeta.late"), after=("acme.early",))
    register_ir_pass(Do(lambda g: g, "acme.helper"), before=("acme.early",))
    register_ir_pass(Do(lambda g: g, "acme.early"), before=("find-composites",), after=("canonicalise",))
    got = ran()
    assert got.index("canonicalise") < got.index("acme.helper") < got.index("acme.early") < got.index("find-composites")
    assert got[-2:] == ["zeta.late", "legalise"]


def test_two_libraries_rewrite_one_graph_and_each_is_named_where_it_did() -> None:
    x = var("x")
    register_ir_pass(Canonicalise(rules((Op.EXP2(x) * Op.EXP2(x), lambda x: (x + x).exp2())), name="acme.squares"), before=("fuse",))
    register_ir_pass(Canonicalise(rules((x + x, lambda x: x * 2.0)), name="zeta.doubles"), after=("acme.squares",), before=("fuse",))
    b = Builder()
    y = b.input("x", (3,))
    c = compile(b.finish(y.exp2() * y.exp2()))
    nodes = [n for s in c.plan.steps for n in (s.node, *(n for _, body in s.node.attrs.graphs() for n in body))]
    assert {"acme.squares", "zeta.doubles"} <= {name for n in nodes for name in n.made_by}
    np.testing.assert_allclose(c(np.array([0, 1, -2], np.float32)), [1, 4, 1 / 16])


@pytest.mark.parametrize(("before", "after"), [(("canonicalise",), ("fuse",)), (("fuse",), ("fuse",)), (("zeta",), ("fuse",))])
def test_wishes_that_the_built_in_order_breaks_are_an_error(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    register_ir_pass(Do(lambda g: g, "zeta"), before=("find-composites",))
    with pytest.raises(RegistryError, match="pass 'mine' cannot run after 'fuse'"):
        register_ir_pass(Do(lambda g: g, "mine"), before=before, after=after)
    assert order() == ["zeta"]


@pytest.mark.parametrize("wish", ["before", "after"])
@pytest.mark.parametrize("names", ["fuse", ("fuse", 3), None, {"fuse"}])
def test_wishes_are_names_not_letters(wish: str, names: Any) -> None:
    with pytest.raises(RegistryError, match=f"pass 'mine': {wish}="):
        register_ir_pass(Do(lambda g: g, "mine"), **{wish: names})
    assert order() == []


def test_a_built_in_name_is_not_free() -> None:
    for name in ROAD:
        with pytest.raises(RegistryError, match=f"pass '{name}' has the name of a built-in pass"):
            named(name)


def test_what_is_not_registered_cannot_be_forgotten() -> None:
    named("acme.squares")
    with pytest.raises(RegistryError, match=r"'acme.square' is not registered\n.*\n.*near it: acme.squares"):
        unregister_ir_pass("acme.square")


@dataclass(frozen=True)
class Noting(NotingPass):
    """A pass that meets what it nearly takes."""

    name: str = "acme.noting"

    def noted(self, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
        return graph, tuple(Note(self.name, "near miss", "acme.block", n.where, f"its rows are {n.type.shape[0]}, not 128") for n in graph if n.op is Op.MATMUL)


@pytest.mark.parametrize("given", [None, (), ("a note",), 3])
def test_notes_that_are_none_name_the_pass(given: Any) -> None:
    @dataclass(frozen=True)
    class Odd(NotingPass):
        name: str = "acme.odd"

        def noted(self, graph: Graph) -> Any:
            return (graph, given) if given != () else graph

    register_ir_pass(Odd())
    with pytest.raises(VerifyError, match=r"pass 'acme.odd' failed[^$]*a Graph and a tuple of Notes are wanted"):
        compile(sample(), {"w": np.ones((4, 4), np.float32)})


@pytest.mark.parametrize("made", [type("Whole", (), {"name": "acme.whole", "__call__": lambda self, g: g}), Do(lambda g: g, ""), 3, lambda g: g])
def test_what_is_no_pass_is_refused(made: Any) -> None:
    with pytest.raises(RegistryError, match="is not a pass"):
        register_ir_pass(made)
    assert order() == []


def test_near_misses_of_a_registered_pass_are_told_and_can_be_refused() -> None:
    register_ir_pass(Noting(), before=("fuse",))
    weights = {"w": np.ones((4, 4), np.float32)}
    (miss,) = compile(sample(), weights).fusion.near_misses
    assert (miss.pass_name, miss.label, miss.text) == ("acme.noting", "acme.block", "its rows are 3, not 128")
    assert sample.__code__.co_filename in miss.where
    with pytest.raises(FusionError, match=r"acme.block: its rows are 3"):
        compile(sample(), weights, options=CompileOptions(assert_fusion_clean=True))


def test_options_of_a_registered_pass_are_part_of_the_cache_key() -> None:
    session, x = Session("reference"), var("x")

    def made(factor: float) -> Any:
        with pass_registry():
            register_ir_pass(Canonicalise(rules((Op.RELU(x), lambda x: x * factor)), name="mine"), before=("fuse",))
            return session.compile(g)(np.ones(3, np.float32)).tolist()

    b = Builder()
    g = b.finish(b.input("x", (3,)).relu())
    assert [made(2.0), made(3.0), session.compile(g)([-1, 0, 1]).tolist(), made(2.0)] == [[2] * 3, [3] * 3, [0, 0, 1], [2] * 3]


def test_what_is_no_pass_is_refused_at_registration() -> None:
    @dataclass
    class Unfrozen:
        name: str = "unfrozen"

        def __call__(self, graph: Graph) -> Graph: return graph

    with pytest.raises(RegistryError, match="pass 'unfrozen' cannot be part of a cache key"):
        register_ir_pass(Unfrozen())
    with pytest.raises(RegistryError, match="function is not a pass"):
        register_ir_pass(lambda g: g)  # type: ignore[arg-type]


def test_scopes_end_and_do_not_leak_into_other_threads() -> None:
    named("outer")
    with pass_registry():
        named("inner")
        assert order() == ["outer", "inner"]
        elsewhere: list[list[str]] = []
        thread = threading.Thread(target=lambda: elsewhere.append(order()))
        thread.start()
        thread.join()
        assert elsewhere == [[]]
    assert order() == ["outer"]
