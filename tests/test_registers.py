"""Compiled code gives back the processor's floating-point registers: what it leaves there changes arithmetic of this process elsewhere."""
from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from registers import HERE, left_behind
from samples import ISAS

from rlxpy import Builder, compile, settings
from rlxpy.backends.cpu.build import build
from rlxpy.backends.cpu.compilers import Compiler, find_compiler
from rlxpy.backends.cpu.isa import detect
from rlxpy.backends.cpu.threads import set_threads

pytestmark = [pytest.mark.skipif(not HERE, reason="registers were not looked at: only glibc on x86-64 tells"),
              pytest.mark.skipif(isinstance(find_compiler(), str), reason=f"the cpu backend did not run: {find_compiler()}")]


@pytest.fixture
def alone() -> Iterator[None]:
    """Every task runs in this thread, whose registers are looked at."""
    set_threads(1)
    yield
    set_threads(None)


@pytest.mark.parametrize("isa", ISAS)
def test_the_least_and_the_greatest_leave_nothing(isa: str, alone: None) -> None:
    """gcc 12 joins what it folded of NaNs and of values by way of MMX, when it is let."""
    b = Builder("ends")
    x = b.input("x", (5,))
    with settings.override(isa=isa):
        least, greatest = compile(b.finish(x.min(axes=(0,)), x.max(axes=(0,))), device="cpu").run(np.array([2, -3, 7, 0.5, 1], np.float32))
    assert left_behind() == ""
    assert (least, greatest) == (-3, 7)
    assert np.isfinite(np.fft.fft(np.ones(1009))).all(), "its tables begin in long double"


SHOWN = '__attribute__((visibility("default"))) void'
CODE = f"""
{SHOWN} mmx(unsigned back) {{ if (back) __asm__ volatile("emms"); else __asm__ volatile("movd %eax, %mm0"); }}
{SHOWN} x87(unsigned back) {{ const unsigned short w = back ? 0x37f : 0x27f; __asm__ volatile("fldcw %0" :: "m"(w)); }}
{SHOWN} sse(unsigned back) {{ const unsigned w = back ? 0x1f80 : 0x9fc0; __asm__ volatile("ldmxcsr %0" :: "m"(w)); }}
"""


@pytest.mark.parametrize(("planted", "said"), [("mmx", "tags of x87"), ("x87", "control of x87"), ("sse", "control of SSE")])
def test_what_is_left_would_be_seen(planted: str, said: str) -> None:
    compiler = find_compiler()
    assert isinstance(compiler, Compiler)
    change = getattr(ctypes.CDLL(str(build(CODE, detect(), compiler))), planted)
    change(0)
    left = left_behind()
    change(1)
    assert left.startswith(said)
    assert left_behind() == ""

