"""The op table is exhaustive: a cell is written, has a written reason, or stands in the list of what is owed."""
from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlxpy import DType, Op, sym
from rlxpy.ir.attrs import field_types
from rlxpy.ir.constant import Constant
from rlxpy.ir.row import CELLS, Family, Why
from rlxpy.ir.text import READ, SHOW

OWED = Path(__file__).parent / "golden" / "owed.txt"

rows = pytest.mark.parametrize("op", Op, ids=lambda op: op.text)


def test_owed_cells_are_those_of_the_list() -> None:
    blank = [f"{op.text} {cell}" for op in Op for cell in CELLS if getattr(op.row, cell) is None]
    listed = OWED.read_text("utf-8").split("\n")[:-1]
    missing, written = [c for c in blank if c not in listed], [c for c in listed if c not in blank]
    assert not missing, f"write these cells, give each a Why, or add to {OWED.name}: {missing}"
    assert not written, f"strike off {OWED.name}: {written}"
    assert blank == listed, f"{OWED.name} must be in the table's order: {blank}"


@rows
def test_a_missing_cell_has_a_reason_one_can_read(op: Op) -> None:
    for cell in CELLS:
        if isinstance(why := getattr(op.row, cell), Why):
            assert len(why.reason.split()) >= 3, f"{op.text} {cell}: {why.reason!r}"


@rows
def test_a_written_cell_can_be_called(op: Op) -> None:
    for cell in CELLS:
        value = getattr(op.row, cell)
        assert value is None or isinstance(value, Why) or callable(value), f"{op.text} {cell}"
        assert not isinstance(value, Family), f"{op.text} {cell} is not bound to its op"


@rows
def test_every_parameter_has_a_codec(op: Op) -> None:
    for name, kind in field_types(op.row.attrs).items():
        if kind != "Attrs":  # an extension's own: its class is checked where it is used
            assert kind in {*READ, "Graph"}, f"{op.text}: {name}: {kind} has no text"


N = sym("N", 1, 8)
TEXTS: dict[str, tuple[Any, str]] = {  # a value of every kind of parameter, and how it is written
    "int": (-3, "-3"), "float": (1e-45, "1e-45"), "bool": (True, "True"), "str": ("it's \"λ\" // {x}", "'it\\'s \"λ\" // {x}'"),
    "tuple[int, ...]": ((1, -2), "(1, -2)"), "DType": (DType.BF16, "bf16"), "Dim": (N * 2 + 1, "2*N+1"), "Shape": ((N,), "(N,)"),
    "Constant": (Constant(np.array([1.5, -np.inf], np.float32)), "f32(1.5, -inf, shape=(2,))"),
}


def test_codecs_write_and_read_the_same_kinds() -> None:
    assert SHOW.keys() <= READ.keys() == TEXTS.keys()


@pytest.mark.parametrize("kind", TEXTS)
def test_codecs_write_and_read_what_stands_here(kind: str) -> None:
    value, text = TEXTS[kind]
    assert SHOW.get(kind, repr)(value) == text
    assert READ[kind](ast.parse(text, mode="eval").body, {"N": N}) == value
