"""Instruction sets of generated C: what a CPU must have for each, and how compilers are asked for it."""
from __future__ import annotations

import ctypes
import platform
import subprocess
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from functools import cache
from pathlib import Path

from rlxpy.errors import InputError, nearest
from rlxpy.frozen import dataclass
from rlxpy.settings import setting


@dataclass(frozen=True)
class Isa:
    """vector: floats in one vector.  machine: what it runs on, "" for any.  needs: CPU flags as Linux spells them in /proc/cpuinfo.
    flags: for gcc, clang and zig alike.  features: names of the EXTRAS that this CPU has as well; their flags are among `flags`."""

    name: str
    vector: int
    machine: str = ""
    needs: frozenset[str] = frozenset()
    flags: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Extra:
    """Instructions that some CPUs with the instruction set `base` have and kernels may ask for.

    emulates: the extras that this one stands for in plain C, on any base: slow, for tests on any machine, used only where it is named."""

    name: str
    base: str
    needs: frozenset[str]
    flags: tuple[str, ...]
    emulates: frozenset[str] = frozenset()


_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_AMX, _AMX_INT8 = frozenset({"amx_tile", "amx_bf16"}), frozenset({"amx_tile", "amx_int8"})
ISAS = (
    Isa("avx512", 16, "x86_64", _AVX512, ("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")),
    Isa("avx2", 8, "x86_64", _AVX2, ("-mavx2", "-mfma", "-mf16c")),
    Isa("sse4", 4, "x86_64", frozenset({"sse4_1"}), ("-msse4.1",)),
    Isa("sse2", 4, "x86_64"),
    Isa("neon", 4, "aarch64", flags=("-mno-outline-atomics",)),  # those would be calls into libgcc
    Isa("portable", 4),
)
PLAINLY = ("-O1",)  # emulation is for what a kernel computes, not for its speed: the compiler need not take long over it
EXTRAS = (
    Extra("vnni", "avx512", frozenset({"avx512_vnni"}), ("-mavx512vnni",)),
    Extra("vnni", "avx2", frozenset({"avx_vnni"}), ("-mavxvnni",)),
    Extra("dotprod", "neon", frozenset({"asimddp"}), ("-march=armv8.2-a+dotprod",)),
    Extra("bf16", "avx512", frozenset({"avx512_bf16"}), ("-mavx512bf16",)),
    Extra("amx", "avx512", _AMX, ("-mamx-tile", "-mamx-bf16")),
    Extra("amx_int8", "avx512", _AMX_INT8, ("-mamx-tile", "-mamx-int8")),
    Extra("vnni_emulated", "", frozenset(), ("-DRLX_VNNI_EMULATED", *PLAINLY), frozenset({"vnni"})),
    Extra("amx_emulated", "", frozenset(), ("-DRLX_AMX_EMULATED", *PLAINLY), frozenset({"amx", "amx_int8"})),
)
# gcc moves 64-bit integers through MMX registers where others run short, and does not give them back: afterwards long double, and what NumPy
# makes with it (the tables of np.fft), is NaN in that thread.
NO_MMX = {"x86_64": ("-mno-mmx",)}
SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def this_machine() -> str:
    """The processor's family by the name that rows of ISAS give it."""
    said = platform.machine().lower()
    return _MACHINES.get(said, said)


def available(machine: str | None = None, has: Iterable[str] | None = None) -> tuple[Isa, ...]:
    """Instruction sets of this machine, or of one with these CPU flags, best first."""
    machine = machine or this_machine()
    has = cpu_flags() if has is None else frozenset(has)
    return tuple(_with(isa, [e for e in EXTRAS if e.base == isa.name and e.needs <= has]) for isa in ISAS if isa.machine in (machine, "") and isa.needs <= has)


def _with(isa: Isa, extras: Sequence[Extra]) -> Isa:
    features = frozenset(e.name for e in extras).union(*(e.emulates for e in extras))
    return replace(isa, flags=tuple(dict.fromkeys((*isa.flags, *(f for e in extras for f in e.flags)))), features=features)


def named(text: str) -> Isa:
    """An instruction set by name, with features after plus signs: "avx512+vnni".  Raises InputError for an unknown one."""
    name, *features = text.split("+")
    base = next((isa for isa in ISAS if isa.name == name), None)
    if base is None:
        raise InputError(f"no instruction set {name!r}", why=f"near it: {nearest(name, [isa.name for isa in ISAS])}", fix=f"one of: {', '.join(isa.name for isa in ISAS)}")
    known = {e.name: e for e in EXTRAS if e.base in (name, "")}
    for f in features:
        if f not in known:
            raise InputError(f"{name} has no feature {f!r}", why=f"there are {', '.join(known) or 'none'}", fix=f"leave it out, or near it: {nearest(f, list(known))}")
    return _with(base, [e for e in known.values() if e.name in features])


def detect() -> Isa:
    """The best of this machine, or the one that RLX_ISA names, with the features it names or else with all that the CPU has.

    Raises InputError when there is none of that name, or the CPU cannot run it."""
    usable = available()
    name = setting("isa")
    if not name:
        return usable[0]
    wanted = named(name)
    chosen = next((isa for isa in usable if isa.name == wanted.name), None)
    real = wanted.features.difference(*(e.emulates for e in EXTRAS if e.name in wanted.features))
    needs = wanted.needs.union(*(e.needs for e in EXTRAS if e.name in real and e.base in (wanted.name, "")))
    if chosen is None or not needs <= cpu_flags():
        lacks = ", ".join(sorted(needs - cpu_flags())) or f"{wanted.machine} instructions on {platform.machine()}"
        raise InputError(f"this CPU cannot run {name}", why=f"it lacks {lacks}", fix=f"unset RLX_ISA, or one of: {', '.join(isa.name for isa in usable)}")
    return wanted if "+" in name else chosen


@cache
def cpu_flags() -> frozenset[str]:
    """Feature bits that the CPU has and the operating system has switched on; empty where nobody tells."""
    words = _cpuinfo() or (_sysctl_lines() if platform.system() == "Darwin" else ())
    first = next((line for line in words if line.partition(":")[0].strip() in ("flags", "Features")), "")
    found = frozenset(first.partition(":")[2].split())
    return found if _may_use_tiles(found) else found - _AMX - _AMX_INT8


@cache
def processor() -> str:
    """What the CPU calls itself, as far as the system tells."""
    named = (line.partition(":")[2].strip() for line in _cpuinfo() if line.partition(":")[0].strip() == "model name")
    return next(named, platform.processor() or platform.machine())


@cache
def _cpuinfo() -> tuple[str, ...]:
    try:
        return tuple(Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines())
    except OSError:
        return ()


def _may_use_tiles(has: Set[str]) -> bool:
    """Linux keeps the tile registers of a process that has asked for them, and of its threads and children."""
    return has >= _AMX and platform.system() == "Linux" and ctypes.CDLL(None).syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0


def _sysctl_lines() -> list[str]:
    """Apple's report in Linux's words."""
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.features", "machdep.cpu.leaf7_features"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return ["flags: " + " ".join(told.lower().replace(".", "_").split())]
