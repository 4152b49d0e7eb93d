"""The records that the executor's C and Python share.  templates/gpu/sim/isa/types.h is where they are defined; sizes are compared at load."""
from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from rlxpy.backends.templates import read

FOLDER = "gpu/sim/isa"
LANES, SGPRS, VGPRS = 64, 128, 512
NO_REG, NO_VGPR = 255, 0xffff


@cache
def names() -> Mapping[str, int]:
    """Every enumerator of types.h, memory.h and matrix.h, by name."""
    found: dict[str, int] = {}
    for body in re.findall(r"enum \w* ?\{(.*?)\}", read(f"{FOLDER}/types.h") + read(f"{FOLDER}/memory.h") + read(f"{FOLDER}/matrix.h"), re.DOTALL):
        value = -1
        for item in body.split(","):
            name, _, given = item.partition("=")
            value = int(given, 0) if given else value + 1
            found[name.strip()] = value
    return MappingProxyType(found)


class Source(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("kind", "reg", "sel", "sel_hi", "flags", "type")] + [("value", ctypes.c_uint64)]


class Instruction(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("unit", "op", "flags", "dst", "dst_sel", "dst_rest", "mask_out", "mask_in", "omod", "perm")),
        ("writable", ctypes.c_uint64), ("src", Source * 4), ("offset", ctypes.c_int64), ("args", ctypes.c_uint32 * 12), ("pc", ctypes.c_uint64),
    ]


class Fault(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_uint32), ("block", ctypes.c_uint32 * 3), ("wave", ctypes.c_uint32), ("lane", ctypes.c_uint32),
                *((name, ctypes.c_uint64) for name in ("pc", "address", "nbytes", "other"))]


class Shadow(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_uint32) for name in ("write_epoch", "read_epoch", "suspect")), *((name, ctypes.c_uint16) for name in ("writer", "reader", "suspect_wave")),
                ("atomic", ctypes.c_uint8), ("written", ctypes.c_uint8)]


class Wave(ctypes.Structure):
    _fields_ = [("s", ctypes.c_uint32 * SGPRS), ("v", (ctypes.c_uint32 * LANES) * VGPRS),
                *((name, ctypes.c_uint32) for name in ("lanes", "scc", "mode", "indexing", "state", "number", "signalled", "signal_epoch")),
                *((name, ctypes.c_uint64) for name in ("ip", "count", "barrier", "barrier_pc")),
                *((name, ctypes.c_void_p) for name in ("scratch", "block", "launch"))]


class Launch(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_void_p), ("ncode", ctypes.c_uint64), ("perms", ctypes.c_void_p), ("ranges", ctypes.c_void_p), ("nranges", ctypes.c_uint64),
        ("first_pc", ctypes.c_uint64), ("index_of_word", ctypes.c_void_p), ("nwords", ctypes.c_uint64), ("entry", ctypes.c_uint64), ("budget", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), *((name, ctypes.c_uint32) for name in ("lanes", "lds_nbytes", "scratch_nbytes", "mode", "nuser")),
        ("user", ctypes.c_uint32 * 32), ("system", ctypes.c_uint32 * 5),
        *((name, ctypes.c_uint32) for name in ("ids_in_ttmp", "packed_ids", "id_count")),
        *((name, ctypes.c_void_p) for name in ("waves", "lds", "shadow", "scratch")),
        *((name, ctypes.c_uint64) for name in ("scratch_base", "executed", "barriers")), ("report", Fault),
    ]


SHARED: tuple[type[Any], ...] = (Source, Instruction, Fault, Shadow, Wave, Launch)
