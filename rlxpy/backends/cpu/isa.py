"""Instruction sets of generated C: what a CPU must have for each, and how compilers are asked for it."""
from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from rlxpy.errors import InputError, nearest
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
    """Instructions that some CPUs with the instruction set `base` have and kernels may ask for."""

    name: str
    base: str
    needs: str
    flag: str


_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
ISAS = (
    Isa("avx512", 16, "x86_64", _AVX512, ("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")),
    Isa("avx2", 8, "x86_64", _AVX2, ("-mavx2", "-mfma", "-mf16c")),
    Isa("sse4", 4, "x86_64", frozenset({"sse4_1"}), ("-msse4.1",)),
    Isa("sse2", 4, "x86_64"),
    Isa("neon", 4, "aarch64", flags=("-mno-outline-atomics",)),  # those would be calls into libgcc
    Isa("portable", 4),
)
EXTRAS = (
    Extra("vnni", "avx512", "avx512_vnni", "-mavx512vnni"),
    Extra("bf16", "avx512", "avx512_bf16", "-mavx512bf16"),
)
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def available(machine: str | None = None, has: Iterable[str] | None = None) -> tuple[Isa, ...]:
    """Instruction sets of this machine, or of one with these CPU flags, best first."""
    machine = machine or _MACHINES.get(platform.machine().lower(), platform.machine().lower())
    has = cpu_flags() if has is None else frozenset(has)
    return tuple(_with_extras(isa, has) for isa in ISAS if isa.machine in (machine, "") and isa.needs <= has)


def _with_extras(isa: Isa, has: Set[str]) -> Isa:
    found = [e for e in EXTRAS if e.base == isa.name and e.needs in has]
    return replace(isa, flags=(*isa.flags, *(e.flag for e in found)), features=frozenset(e.name for e in found))


def named(text: str) -> Isa:
    """An instruction set by name, with features after plus signs: "avx512+vnni".  Raises InputError for an unknown one."""
    name, *features = text.split("+")
    base = next((isa for isa in ISAS if isa.name == name), None)
    if base is None:
        raise InputError(f"no instruction set {name!r}", why=f"near it: {nearest(name, [isa.name for isa in ISAS])}", fix=f"one of: {', '.join(isa.name for isa in ISAS)}")
    known = {e.name: e for e in EXTRAS if e.base == name}
    for f in features:
        if f not in known:
            raise InputError(f"{name} has no feature {f!r}", why=f"there are {', '.join(known) or 'none'}", fix=f"leave it out, or near it: {nearest(f, list(known))}")
    return _with_extras(base, {known[f].needs for f in features})


def detect() -> Isa:
    """The best of this machine, or the one that RLX_ISA names, with the features it names or else with all that the CPU has.

    Raises InputError when there is none of that name, or the CPU cannot run it."""
    usable = available()
    name = setting("isa")
    if not name:
        return usable[0]
    wanted = named(name)
    chosen = next((isa for isa in usable if isa.name == wanted.name), None)
    if chosen is None or not wanted.features <= chosen.features:
        needs = wanted.needs | {e.needs for e in EXTRAS if e.base == wanted.name and e.name in wanted.features}
        lacks = ", ".join(sorted(needs - cpu_flags())) or f"{wanted.machine} instructions on {platform.machine()}"
        raise InputError(f"this CPU cannot run {name}", why=f"it lacks {lacks}", fix=f"unset RLX_ISA, or one of: {', '.join(isa.name for isa in usable)}")
    return wanted if "+" in name else chosen


@cache
def cpu_flags() -> frozenset[str]:
    """Feature bits that the CPU has and the operating system has switched on; empty where nobody tells."""
    try:
        words = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        words = _sysctl_lines() if platform.system() == "Darwin" else []
    first = next((line for line in words if line.partition(":")[0].strip() in ("flags", "Features")), "")
    return frozenset(first.partition(":")[2].split())


def _sysctl_lines() -> list[str]:
    """Apple's report in Linux's words."""
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.features", "machdep.cpu.leaf7_features"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return ["flags: " + " ".join(told.lower().replace(".", "_").split())]
