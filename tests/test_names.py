"""Names are the user's: any text, never collapsed, and told in errors (A25)."""
from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, CompileOptions, Graph, Session, compile, parse, show
from rlxpy.errors import BuildError, InputError

ODD = ("int", "new", "for", "1abc", "λ", "a b", "", "return", "x.y", "x_y", "x-y", "x/y", "self", "sizes", "state", "outputs", "in0", "out0", "%0", "a'b", 'a"b', "a\\b", "a\nb", "e\u0301", "é", "//",
       "} {", "None", "0", "-", "hoisted.0", "𝔸", "A", "\x00", "name='x'")
levels = pytest.mark.parametrize("options", [CompileOptions(debug=True), CompileOptions(optimise=False), CompileOptions(weights="dense")], ids=["optimised", "as written", "dense"])


def weighted_sum(names: tuple[str, ...]) -> Graph:
    """One input, one param and one output of each name; output k is (input k + 1) * (param k * 2), which hoists the params."""
    b = Builder()
    outs = [(b.input(n, (2,)) + 1.0) * (b.param(n, (2,)) * 2.0) for n in names]
    return b.finish(*outs, names=names)


def arrays(count: int, scale: float) -> list[Any]:
    return [np.array([k + 1, -k], np.float32) * np.float32(scale) for k in range(count)]


@levels
def test_no_two_names_collapse(options: CompileOptions) -> None:
    xs, ws = arrays(len(ODD), 1.0), arrays(len(ODD), 0.5)
    run = compile(weighted_sum(ODD), dict(zip(ODD, ws, strict=True)), options=options)
    assert run.output_names == run.param_names == tuple(n.name for n in run.inputs) == ODD
    want = [(x + 1) * (w * 2) for x, w in zip(xs, ws, strict=True)]
    np.testing.assert_array_equal(run(*xs), want)
    shuffled = dict(sorted(zip(ODD, xs, strict=True), reverse=True))
    np.testing.assert_array_equal(run(shuffled), want)
    for k in (0, 9, len(ODD) - 1):
        run.set_param(ODD[k], ws[k] + 1)
        want[k] = (xs[k] + 1) * ((ws[k] + 1) * 2)
        np.testing.assert_array_equal(run(shuffled), want)


def test_names_survive_the_text_form() -> None:
    graph = weighted_sum(ODD)
    again = parse(show(graph))
    assert again == graph
    assert [n.name for n in again.inputs] == [n.name for n in again.params] == list(again.output_names) == list(ODD)


def test_the_two_layers_of_the_case() -> None:
    b = Builder()
    x = b.input("x", (2,))
    graph = b.finish(x * b.param("layer.0", (2,)), x * b.param("layer_0", (2,)))
    run = compile(graph, {"layer.0": np.full(2, 3, np.float32), "layer_0": np.full(2, 5, np.float32)})
    np.testing.assert_array_equal(run([1, 2]), [[3, 6], [5, 10]])


def test_an_input_a_weight_and_a_state_may_share_a_name() -> None:
    b = Builder()
    x, w, s = b.input("x", (2,)), b.param("x", (2,)), b.state("x", (2,))
    b.update(s, x)
    run = compile(b.finish(x * 1.0, w * 1.0, s * 1.0, names=("x", "w", "s")), {"x": np.full(2, 7, np.float32)})
    run([1, 2])
    np.testing.assert_array_equal(run([3, 4]), [[3, 4], [7, 7], [1, 2]])


def test_any_identifier_is_a_keyword() -> None:
    names = tuple(n for n in ODD if n.isidentifier() and n not in ("sizes", "state", "return", "for", "None", "é", "𝔸"))
    run = compile(weighted_sum(names), dict.fromkeys(names, np.ones(2, np.float32)))
    values = dict(zip(names, arrays(len(names), 1.0), strict=True))
    np.testing.assert_array_equal(run(**values), [(x + 1) * 2 for x in values.values()])
    outs = tuple(np.zeros(2, np.float32) for _ in names)
    run.run_into(outs, **values)
    np.testing.assert_array_equal(outs, run(values))


@pytest.mark.parametrize("name", ODD)
def test_errors_say_the_users_name(name: str) -> None:
    graph = weighted_sum((name, "other"))
    ws = {name: np.ones(2, np.float32), "other": np.ones(2, np.float32)}
    run = compile(graph, ws)
    said = re.escape(repr(name))
    with pytest.raises(InputError, match=f"{said} is missing"):
        run({"other": [1, 2]})
    with pytest.raises(InputError, match=f"input {said} has the wrong size"):
        run({name: [1, 2, 3], "other": [1, 2]})
    with pytest.raises(InputError, match=f"param {said} has the wrong shape"):
        run.set_param(name, [1, 2, 3])
    with pytest.raises(InputError, match=f"param {said} has the wrong type"):
        compile(graph, {**ws, name: np.ones(2)})
    with pytest.raises(InputError, match=f"output {said} cannot be written"):
        run.run_into((np.zeros(3, np.float32), np.zeros(2, np.float32)), {name: [1, 2], "other": [1, 2]})
    with pytest.raises(InputError) as caught:
        compile(graph, {"other": np.ones(2, np.float32)})
    assert repr(name) in caught.value.why


@pytest.mark.parametrize("name", [3, None, b"x", ("x",), 1.5])
def test_a_name_is_text(name: Any) -> None:
    b = Builder()
    for make in (b.input, b.param, b.state):
        with pytest.raises(BuildError, match="not text") as caught:
            make(name, (2,))
        assert __file__ in caught.value.where
    with pytest.raises(BuildError, match="output names"):
        b.finish(b.input("x", (2,)), names=(name,))


@pytest.mark.parametrize("names", [("a", "a"), ("a", "b", "c"), ("out1",), ("", "")])
def test_output_names_are_different_and_one_for_each(names: tuple[str, ...]) -> None:
    b = Builder()
    x = b.input("x", (2,))
    with pytest.raises(BuildError, match="2 different names"):
        b.finish(x, x + 1.0, names=names)


def test_names_that_are_not_given_are_made_up_and_one_name_is_not_letters() -> None:
    b = Builder()
    x = b.input("x", (2,))
    assert b.finish(x, x + 1.0, x + 2.0, names=("first",)).output_names == ("first", "out1", "out2")
    assert b.finish(x, names="whole").output_names == ("whole",)


def test_a_graph_s_own_name_may_be_anything_too() -> None:
    session = Session()
    for name in ODD:
        b = Builder(name)
        graph = b.finish(b.input("x", (2,)) + 1.0)
        np.testing.assert_array_equal(session.compile(graph)([1, 2]), [2, 3])
        assert parse(show(graph)) == graph, name
