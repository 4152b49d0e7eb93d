"""Rows of an instruction table, and their C functions."""
from __future__ import annotations

import re
from functools import cached_property

from rlxpy.frozen import dataclass

# Of each type letter: the C type of a source, how it is made of the lane's bits x, and how a result e becomes bits.
_KINDS = {
    "u": ("u32", "(u32)x", "(u32)({e})"), "n": ("u32", "(u32)x", "(u32)({e})"), "p": ("u32", "(u32)x", "(u32)({e})"),
    "i": ("i32", "(i32)(u32)x", "(u32)({e})"), "f": ("f32", "f32_of((u32)x)", "bits_f32((f32)({e}))"),
    "U": ("u64", "x", "(u64)({e})"), "I": ("i64", "(i64)x", "(u64)({e})"), "d": ("f64", "f64_of(x)", "bits_f64((f64)({e}))"),
    "s": ("u32", "(u32)x & 0xffff", "(u32)({e}) & 0xffff"), "m": ("u32", "(u32)x & 0xffff", "(u32)({e}) & 0xffff"),
    "t": ("i32", "(i32)(i16)(u16)x", "(u32)({e}) & 0xffff"),
    "h": ("f64", "f16_of((u32)x & 0xffff)", "f16_bits({e})"), "b": ("f64", "bf16_of((u32)x & 0xffff)", "bf16_bits({e})"),
}
_X = re.compile(r"\bx\b")
WIDE = frozenset("UId")
SHORT = frozenset("sthmb")


@dataclass(frozen=True)
class Row:
    """result, sources: type letters; k among them is a lane mask.  expression: C."""

    name: str
    result: str
    sources: str
    expression: str

    @property
    def type(self) -> str:
        """Of what is written to a register; "" where that is a mask alone."""
        return self.result.replace("k", "")

    @property
    def operands(self) -> str:
        return self.sources.replace("k", "")

    @property
    def sets_mask(self) -> bool:
        return "k" in self.result

    @property
    def takes_mask(self) -> bool:
        return "k" in self.sources

    @cached_property
    def reads_old(self) -> bool:
        return bool(re.search(r"\bd\b", self.expression)) and bool(self.type)

    @property
    def function(self) -> str:
        return re.sub(r"\W", "_", self.name)


def rows(text: str) -> tuple[Row, ...]:
    """One row a line: name, result=sources, expression; blank lines part groups."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, signature, expression = line.split(maxsplit=2)
        result, sources = signature.split("=")
        found.append(Row(name, result, sources, expression))
    return tuple(found)


def read_source(letter: str, name: str, bits: str) -> str:
    kind, made, _ = _KINDS[letter]
    return f"const {kind} {name} = {_X.sub(bits, made)};"


def result(letter: str, expression: str) -> str:
    return _KINDS[letter][2].format(e=expression) if letter else f"(u64)({expression})"


def lane_function(row: Row) -> str:
    """void v_name(lanes, a, b, c, old destination, mask in, results, mask out, args)."""
    names = dict(zip("abc", row.operands, strict=False))
    reads = [read_source(letter, name, f"{name.upper()}_[l]") for name, letter in names.items()]
    if row.reads_old:
        reads.append(read_source(row.type, "d", "D_[l]"))
    if row.takes_mask:
        reads.append("const int k = (int)(K_ >> l & 1);")
    masks = ("u64 out = 0;", "int o = 0;", "out |= (u64)(o & 1) << l;", "*O_ = out;") if row.sets_mask else ("", "", "", "")
    return (f"static void v_{row.function}(int n, const u64* A_, const u64* B_, const u64* C_, const u64* D_, u64 K_, u64* R_, u64* O_, const u32* args) {{\n"
            f"  (void)A_; (void)B_; (void)C_; (void)D_; (void)K_; (void)O_; (void)args; {masks[0]}\n"
            f"  for (int l = 0; l < n; l++) {{ {masks[1]} {' '.join(reads)} R_[l] = {result(row.type, row.expression)}; {masks[2]} }}\n  {masks[3]}\n}}\n")


def scalar_function(row: Row) -> str:
    """u64 s_name(a, b, old destination or c, scc, exec, lanes): `r` may name the result before scc is set by it."""
    names = dict(zip("abc", row.operands, strict=False))
    reads = [read_source(letter, name, f"{name}_") for name, letter in names.items()]
    if row.reads_old:
        reads.append(read_source(row.type, "d", "c_"))
    kind = _KINDS[row.type][0] if row.type and row.type in "uUiI" else "u64"
    return (f"static u64 s_{row.function}(u64 a_, u64 b_, u64 c_, u32* scc_, u64* exec_, u32 lanes) {{\n"
            f"  (void)a_; (void)b_; (void)c_; (void)lanes; u32 scc = *scc_; u64 exec = *exec_; {kind} r = 0; (void)r;\n  {' '.join(reads)}\n"
            f"  const u64 result = {result(row.type, row.expression)};\n  *scc_ = scc & 1; *exec_ = exec; return result;\n}}\n")


def atomic_function(row: Row) -> str:
    """u64 atomic_name(old, b, c): what memory holds afterwards."""
    reads = [read_source(letter, name, f"{name}_") for name, letter in zip("abc", row.operands, strict=False)]
    return (f"static u64 atomic_{row.function}(u64 a_, u64 b_, u64 c_) {{ (void)b_; (void)c_; {' '.join(reads)} return {result(row.type, row.expression)}; }}\n")
