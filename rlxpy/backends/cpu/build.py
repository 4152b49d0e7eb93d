"""From C text to a shared library in the cache."""
from __future__ import annotations

import hashlib
import json
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rlxpy import __version__
from rlxpy.backends.cache import kept
from rlxpy.backends.cpu.compilers import Compiler, run
from rlxpy.backends.cpu.isa import NO_MMX, Isa, this_machine
from rlxpy.backends.listing import excerpt
from rlxpy.backends.templates import flat
from rlxpy.errors import CompileError

ABI = "1"  # of the exported functions: a change makes every kept library unreachable
COMPILE_SECONDS = 600.0
SUFFIX = ".dll" if sys.platform == "win32" else ".so"
FLAGS = (
    "-std=gnu11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden",
    "-ffreestanding",  # no C headers needed; memcpy and its like come from the process
    "-ffp-contract=off",  # a * b + c rounds twice unless a kernel asks with RLX_FMA
    "-fno-math-errno", "-fno-trapping-math",  # nobody reads errno or the exception flags; no value changes
    "-fwrapv", "-fno-strict-aliasing",  # integers wrap; one arena holds values of every type
    "-fopenmp-simd", "-fno-stack-protector",
    *(("-nostdlib",) if sys.platform == "linux" else ()),  # undefined names are found in the process
)
FIRST_ERROR = re.compile(r"^[^\n:]*unit\.c:(\d+):(?:\d+:)? (?:fatal )?error: (.*)$", re.MULTILINE)


def flags_of(isa: Isa, compiler: Compiler) -> tuple[str, ...]:
    """The baseline comes first: zig would take the very CPU it runs on, with checks at -O0, and some distributions' gcc starts higher."""
    x86 = ("-march=x86-64",) if isa.machine == "x86_64" else ()
    baseline = ("-mcpu=baseline", "-fno-sanitize=undefined") if compiler.family == "zig" else x86
    return (*FLAGS, *baseline, *NO_MMX.get(isa.machine or this_machine(), ()), *isa.flags, f"-DRLX_VL={isa.vector}")


def prelude() -> str:
    """What every generated unit starts with: templates/cpu/prelude.h, the files it includes in their places."""
    return flat("cpu/prelude.h")


def build(source: str, isa: Isa, compiler: Compiler, options: tuple[str, ...] = ()) -> Path:
    """A shared library of one C translation unit, from the cache when it was compiled before by the same compiler with the same flags.

    options: further flags, which win over the usual ones.  Raises CompileError, with everything the compiler said as `log`."""
    flags = (*flags_of(isa, compiler), *options)
    facts = json.dumps([ABI, __version__, sys.platform, platform.machine(), compiler.argv, compiler.version, isa.name, flags, source])
    key = hashlib.blake2b(facts.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
    return kept("code", key, SUFFIX, lambda out: _compile(source, (*compiler.argv, *flags), out), runs=True)


def _compile(source: str, command: tuple[str, ...], out: Path) -> None:
    unit = out.with_name("unit.c")
    unit.write_text(source, "utf-8", "replace")
    command = (*command, "-o", str(out), str(unit))
    try:
        status, said, more = run(command, COMPILE_SECONDS, out.parent)
    except OSError as e:
        raise _refusal(source, command, f"it cannot be run: {e.strerror}", "") from None
    except subprocess.TimeoutExpired:
        raise _refusal(source, command, f"no result in {COMPILE_SECONDS:.0f} s", "") from None
    if status != 0 or not out.is_file():
        log = (said + more).strip()
        raise _refusal(source, command, f"it ends with {status}: {log[-500:] or 'it says nothing'}", log)


def _refusal(source: str, command: tuple[str, ...], why: str, log: str) -> CompileError:
    first = FIRST_ERROR.search(log)
    where = f"line {first[1]} of the generated C\n{excerpt(source, int(first[1]))}" if first else ""
    error = CompileError(f"{command[0]} does not compile the generated C", where=where, why=first[2] if first else why,
                         fix="another compiler in RLX_CC or a lower RLX_ISA; `log` of this error has all it said, for a report of the fault")
    error.log = "\n".join([shlex.join(command), log or why])
    return error
