"""Text form: every graph reads back equal, and no text, however broken, ends in anything but a BuildError with its line."""
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from random_graphs import random_graph

from rlxpy import Builder, DType, Graph, Op, RlxError, parse, show, sym
from rlxpy.errors import BuildError, NotRegistered
from rlxpy.ir.attrs import Attrs
from rlxpy.ir.constant import Constant
from rlxpy.ir.dims import Dim, Shape
from rlxpy.ir.extension import OpExtension, register_op, registry
from rlxpy.ir.row import OpRow
from rlxpy.ir.verify import verify


def round_trips(g: Graph) -> Graph:
    again = parse(show(g))
    assert again == g
    assert hash(again) == hash(g)
    assert parse(show(g, locs=True)) == g
    assert show(again) == show(g)
    return verify(again)


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_read_back(seed: int) -> None:
    round_trips(random_graph(seed).graph)


@pytest.mark.parametrize("name", ["x", "", "it's", 'say "hi"', "both ' and \"", "a\nb\tc", "a\\", "\\'", "λ", "名前", "a b", "1abc", "} : f32[3]", "x // y", "%0", "a=%1, b",
                                  "\u2028", "\x85", "\x1c", "\x00", "\ud800", "ﬁ", "return", "graph", "# no", "\\N{BULLET}"])
def test_any_text_is_a_name(name: str) -> None:
    b = Builder(name)
    with b.scope(name):
        x = b.input(name, (2,)) + b.param(name + "w", (2,))
    g = b.finish(x, b.input(name, (2,)), names=(name, name + "!"))
    again = round_trips(g)
    assert (again.name, again.inputs[0].name, again.output_names[0]) == (name, name, name)


NAN_WITH_PAYLOAD = np.array([0x7FC00001, 0xFFC12345, 0x7F800001], np.uint32).view(np.float32)
ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "f32 specials": np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 0.1, 1e-45, 3.4028235e38], np.float32),
    "f32 NaN payloads": NAN_WITH_PAYLOAD,
    "f64 NaN payload": np.array([0x7FF8000000000007], np.uint64).view(np.float64),
    "f64 digits": np.array([0.1, 1 / 3, 5e-324, -1.7976931348623157e308]),
    "f16": np.array([[65504, -6e-8], [np.nan, -0.0]], np.float16),
    "bf16": np.array([1.5, -0.0, np.inf, np.nan]).astype(DType.BF16.numpy),
    "f8e4m3fn": np.array([448, -0.0, np.nan, 0.0625]).astype(DType.F8E4M3FN.numpy),
    "f8e5m2": np.array([np.inf, 57344, -0.25]).astype(DType.F8E5M2.numpy),
    "f4": np.array([-6, 0.5, -0.0, 3]).astype(DType.F4E2M1.numpy),
    "i4": np.array([-8, 7, 0]).astype(DType.I4.numpy),
    "u4": np.array([15, 1]).astype(DType.U4.numpy),
    "i64 ends": np.array([-(1 << 63), (1 << 63) - 1]),
    "u64 end": np.array([(1 << 64) - 1], np.uint64),
    "i8": np.array([-128, 127], np.int8),
    "bool": np.array([True, False, True]),
    "c64": np.array([1 - 2j, complex(np.nan, -0.0)], np.complex64),
    "c128": np.array([[0.1 + 1e300j]]),
    "scalar": np.array(2.5, np.float32),
    "empty": np.zeros((0, 3), np.int32),
    "empty in the middle": np.zeros((2, 0, 3), np.float16),
    "large": np.random.default_rng(0).standard_normal((37, 41)).astype(np.float32),
    "large, Fortran order": np.asfortranarray(np.arange(60.0).reshape(3, 20)),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_constants_read_back_bit_for_bit(array: np.ndarray[Any, Any]) -> None:
    b = Builder()
    again = round_trips(b.finish(b.const(array)))
    (got,) = (n.attrs.value.array for n in again)  # type: ignore[attr-defined]
    assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_numbers_in_parameters_keep_their_bits() -> None:
    b = Builder()
    x = b.input("x", (2,))
    pads = [x.pad(low=(1,), high=(1,), value=v) for v in (0.0, -0.0, float("nan"), float("-inf"), 0.1)]
    g = b.finish(*pads)
    assert len(set(g.outputs)) == 5  # 0.0 and -0.0 are two values
    assert "value=-0.0" in show(g)
    round_trips(g)


def test_symbols_keep_their_ranges() -> None:
    b = Builder()
    B, S = sym("B", 1, 8), sym("S", 16, 512, 16)
    x = b.input("x", (B, S + 1, 2))
    g = b.finish(x.reshape(shape=(B * (S + 1), 2)).slice(start=(1, 0), stop=(B * S, 2), step=(3, 1)), b.emit("size", dim=S // 2 + B))
    assert show(g).splitlines()[0] == "graph main(B in 1..8, S in 16..512 step 16) {"
    assert round_trips(g).symbols == g.symbols


# ---- extension ops: every codec, and sub-graphs --------------------------------------------------------------------
@dataclass(frozen=True)
class Everything(Attrs):
    name: str
    flag: bool
    count: int
    rate: float
    axes: tuple[int, ...]
    shape: Shape
    dim: Dim
    to: DType
    table: Constant
    body: Graph
    other: Graph
    note: str = "none"


ONE = OpRow(1, lambda x, **_: x.shape, lambda x, **_: x.dtype, attrs=Everything)


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with registry():
        register_op(OpExtension("test.everything", ONE))
        yield


def body(name: str, inner: Graph | None = None) -> Graph:
    b = Builder(name)
    x = b.input("it's", (sym("S", 2, 9), 3))
    y = b.custom_op("test.everything", x, **given(inner, inner)) if inner else x.relu()
    return b.finish(y, names=("a=%0, b",))


def given(first: Graph, second: Graph) -> dict[str, Any]:
    S = sym("S", 2, 9)
    return {"name": "} x=%1 : f32[2] {", "flag": True, "count": -3, "rate": float("nan"), "axes": (1,), "shape": (S, 2 * S + 1, 4), "dim": S // 2, "to": "bf16",
            "table": np.array([[np.nan, -0.0]], np.float16), "body": first, "other": second, "note": "body {"}


def test_an_extension_reads_back_with_attrs_of_every_kind_and_graphs_inside_graphs() -> None:
    b = Builder()
    inner, outer = body("inner"), body("outer", body("middle", body("innermost")))
    y = b.custom_op("test.everything", b.input("x", (3,)), **given(inner, outer))
    g = b.finish(y, y.relu())
    assert "= test.everything %0 {" in show(g)
    assert show(g).count("} other {") == 1 + 1 + 2  # this node's, that of `outer`, and those of its two copies of `middle`
    again = round_trips(g)
    assert again.symbols == {"S": g.symbols["S"]}
    assert [name for name, _ in again[1].attrs.graphs()] == ["body", "other"]


def test_a_sub_graph_must_agree_about_ranges() -> None:
    b = Builder()
    y = b.custom_op("test.everything", b.input("x", (sym("S", 1, 4),)), **given(body("one"), body("two")))
    with pytest.raises(RlxError, match="two ranges"):
        verify(b.finish(y))


def test_an_unknown_extension_is_named_with_its_line() -> None:
    with pytest.raises(NotRegistered, match=r"'test.everythin' is not registered\n.*line 3: .*\n.*test.everything"):
        parse("graph g() {\n  %0 = input {name='x'} : f32[2]\n  %1 = test.everythin %0 : f32[2]\n  return y=%1\n}")


# ---- broken text ---------------------------------------------------------------------------------------------------
GOOD = """
graph main(B in 1..8, S in 16..512 step 16) {
  %0 = input {name='x'} : f32[B,S]   // a comment, with "quotes
  // one on a line of its own
  %1 = const {value=f32(0.5)} : f32[]

  %2 = mul %0, %1 : f32[B,S]
  %3 = sort %2 {axis=-1, descending=True} : f32[B,S], i64[B,S]
  return y=%3, 'its place'=%3#1
}
"""


def test_comments_and_blank_lines_are_free() -> None:
    g = verify(parse(GOOD))
    assert [n.op for n in g] == [Op.INPUT, Op.CONST, Op.MUL, Op.SORT]
    assert g.output_names == ("y", "its place")


@pytest.mark.parametrize(("old", "new", "line"), [
    ("graph main(", "grph main(", 2),
    ("B in 1..8", "B in 8..1", 2),
    ("B in 1..8", "for in 1..8", 2),
    ("B in 1..8", "B in 1..", 2),
    ("%0 = input", "%1 = input", 3),
    ("%2 = mul", "%99999999999999999999 = mul", 7),
    ("mul %0, %1", "mull %0, %1", 7),
    ("mul %0, %1", "mul %0, %2", 7),
    ("mul %0, %1", "mul %0#1, %1", 7),
    ("mul %0, %1", "mul %0,, %1", 7),
    ("mul %0, %1", "mul %²", 7),
    ("mul %0, %1 :", "mul %0, %1 {} {} :", 7),
    ("mul %0, %1 :", "mul %0, %1 {a=1} :", 7),
    ("mul %0, %1 : f32[B,S]", "mul %0, %1 : f32[B,T]", 7),
    ("mul %0, %1 : f32[B,S]", "mul %0, %1 : f33[B,S]", 7),
    ("mul %0, %1 : f32[B,S]", "mul %0, %1 : f32[B,-1]", 7),
    ("mul %0, %1 : f32[B,S]", "mul %0, %1 : f32[B,,S]", 7),
    ("mul %0, %1 : f32[B,S]", "mul %0, %1 : f32[B,S], ", 7),
    ("mul %0, %1 : f32[B,S]", "mul %0, %1 : f32[B,S] f32[B]", 7),
    ("mul %0, %1 : f32[B,S]", "mul %0, %1 : f32[True]", 7),
    ("axis=-1, ", "axis=-1, axis=0, ", 8),
    ("axis=-1", "axis='x'", 8),
    ("axis=-1", "axis=True", 8),
    ("axis=-1", "axis=1.5", 8),
    ("axis=-1", "axis=f()", 8),
    ("axis=-1, ", "-1, ", 8),
    ("axis=-1, ", "**x, ", 8),
    ("{axis=-1, descending=True}", "{axis=1) + (axis=2}", 8),
    ("axis=-1", "axis=" + "-" * 5000 + "1", 8),
    ("axis=-1", "axis=" + "(" * 5000 + "1" + ")" * 5000, 8),
    ("axis=-1", "axis=" + "9" * 5000, 8),
    ("name='x'", "nam='x'", 3),
    ("name='x'", "name=x", 3),
    ("name='x'", "", 3),
    ("f32(0.5)", "f32('a')", 5),
    ("f32(0.5)", "f32(0.5, 1.5)", 5),
    ("f32(0.5)", "f32(1.0, shape=(-1,))", 5),
    ("f32(0.5)", "f32(1.0, size=(1,))", 5),
    ("f32(0.5)", "f99(0.5)", 5),
    ("f32(0.5)", "i8(300)", 5),
    ("f32(0.5)", "i8(1.5)", 5),
    ("f32(0.5)", "i64(" + "9" * 40 + ")", 5),
    ("f32(0.5)", "f64(" + "9" * 400 + ")", 5),
    ("f32(0.5)", "bool(1)", 5),
    ("f32(0.5)", "f32(base64='!!!!')", 5),
    ("f32(0.5)", "f32(base64='AAA=')", 5),
    ("f32(0.5)", "f32(base64=3)", 5),
    ("f32(0.5)", "f32(base64='AAAAAA==', shape=(1000000000000,))", 5),
    ("f32(0.5)", "__import__('os').getcwd()", 5),
    ("return y=%3", "return y=%4", 9),
    ("return y=%3", "return y=3", 9),
    ("return y=%3", "return y=%3 %2", 9),
    ("return y=%3", "returny=%3", 9),
    ("return y=%3", "return '\\x'=%3", 9),
    ("graph main(", "graph '\\N{no}'(", 2),
    ("return y=%3", "update %9 = %0\n  return y=%3", 9),
    ("return y=%3", "update %0\n  return y=%3", 9),
    ("}\n", "} }\n", 10),
    ("}\n", "", 9),
    ("}\n", "}\nmore\n", 11),
    ("f32[B,S], i64[B,S]", "f32[B,S], i64[B,S] body {\ngraph g() {\nreturn\n}\n}", 8),
])
def test_broken_text_is_told_with_its_line(old: str, new: str, line: int) -> None:
    assert old in GOOD
    at = GOOD.rindex(old) if old == "}\n" else GOOD.index(old)
    with pytest.raises(BuildError) as e:
        parse(GOOD[:at] + new + GOOD[at + len(old):])
    assert re.match(rf"line {line}\b", e.value.where), e.value


@pytest.mark.parametrize("text", ["", "\n\n", "// nothing", "{", "graph", "graph main() {", "graph main() {\n}", "graph main() {\n" * 3000])
def test_text_without_a_graph(text: str) -> None:
    with pytest.raises(BuildError):
        parse(text)


def nested(depth: int) -> str:
    """Sub-graphs in sub-graphs."""
    head = "graph g() {\n%0 = test.everything %0 : f32[] body {\n"
    return head * depth


def test_endless_nesting_is_an_error_and_no_crash() -> None:
    for text in (nested(20_000), "graph g() {\n%0 = iota {shape=(1,), axis=0, to=i64} : i64[1]\n%1 = fused {kind='a'} : f32[] body {\n" * 20_000):
        with pytest.raises(BuildError):
            parse(text)


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # Python's own, about the mutants
def test_mutated_text_never_escapes() -> None:
    """Characters are dropped, doubled and swapped at random places: the result reads, or says which line does not."""
    b = Builder()
    y = b.custom_op("test.everything", b.input("x", (sym("B", 1, 4), 3)), **given(body("inner"), body("outer", body("innermost"))))
    texts = [GOOD, show(b.finish(y, b.const(np.arange(40.0)))), *(show(random_graph(seed).graph) for seed in range(6))]
    rng = np.random.default_rng(0)
    alphabet = list("%#{}()[]=,:.'\"\\/ \n0159-+*fxS²\0λ")
    for k in range(3000):
        chars = list(texts[k % len(texts)])
        for _ in range(int(rng.integers(1, 4))):
            i = int(rng.integers(len(chars)))
            chars[i:i + int(rng.integers(0, 3))] = rng.choice(alphabet, int(rng.integers(0, 3)))
        text = "".join(chars)
        try:
            verify(parse(text))
        except RlxError as e:
            assert e.where or "two ranges" in str(e) or "result" in str(e) or "outputs" in str(e), (k, text, e)  # noqa: PT017
