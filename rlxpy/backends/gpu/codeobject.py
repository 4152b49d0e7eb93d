"""AMD code objects read from bytes: for what chip, and of every kernel its arguments, registers, memory, and descriptor."""
from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

from rlxpy.backends.gpu.arch import NUMBERS, Target
from rlxpy.backends.gpu.binary import Binary
from rlxpy.backends.gpu.elf import AMDGPU, SHARED_OBJECT, Elf, is_for
from rlxpy.backends.gpu.msgpack import unpack
from rlxpy.frozen import dataclass

HSA = 64  # e_ident's OS ABI
VERSIONS = {1: 3, 2: 4, 3: 5, 4: 6}  # code object version by e_ident's ABI version
METADATA = ("AMDGPU", 32)  # owner and type of the note
MODE = {0: "", 1: "", 2: "-", 3: "+"}  # two bits from V4 on: there is none, both, off, on
DESCRIPTOR_NBYTES = 64
REQUIRED = object()
KINDS = {int: "a whole number from 0", str: "text", bool: "true or false", list: "a list", dict: "a map"}


@dataclass(frozen=True)
class Arg:
    """One argument.  kind: "global_buffer", "by_value", .., or "hidden_.." for what the driver fills in; type: as the source has it, where the compiler wrote it down."""

    name: str
    type: str
    offset: int
    nbytes: int
    kind: str

    @property
    def hidden(self) -> bool:
        return self.kind.startswith("hidden_")


@dataclass(frozen=True)
class Descriptor:
    """The 64 bytes by which the hardware starts a kernel.  entry: address of its first instruction, in the loaded object; the words are taken apart by `bits`."""

    lds_nbytes: int
    scratch_nbytes: int
    kernarg_nbytes: int
    entry: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    code_properties: int
    preload: int

    def bits(self, field: str) -> int:
        """A field of BITS."""
        word, low, count = BITS[field]
        return int(getattr(self, word)) >> low & (1 << count) - 1


BITS = {  # word of the descriptor, lowest bit, how many
    "granulated_vgprs": ("rsrc1", 0, 6), "granulated_sgprs": ("rsrc1", 6, 4), "float_round_mode_32": ("rsrc1", 12, 2), "float_round_mode_16_64": ("rsrc1", 14, 2),
    "float_denorm_mode_32": ("rsrc1", 16, 2), "float_denorm_mode_16_64": ("rsrc1", 18, 2), "dx10_clamp": ("rsrc1", 21, 1), "ieee_mode": ("rsrc1", 23, 1),
    "fp16_overflow": ("rsrc1", 26, 1), "workgroup_processor_mode": ("rsrc1", 29, 1), "memory_ordered": ("rsrc1", 30, 1), "forward_progress": ("rsrc1", 31, 1),
    "enable_private_segment": ("rsrc2", 0, 1), "user_sgpr_count": ("rsrc2", 1, 5), "system_sgpr_workgroup_id_x": ("rsrc2", 7, 1), "system_sgpr_workgroup_id_y": ("rsrc2", 8, 1),
    "system_sgpr_workgroup_id_z": ("rsrc2", 9, 1), "system_sgpr_workgroup_info": ("rsrc2", 10, 1), "system_vgpr_workitem_id": ("rsrc2", 11, 2), "accum_offset": ("rsrc3", 0, 6),
    "tg_split": ("rsrc3", 16, 1), "user_sgpr_private_segment_buffer": ("code_properties", 0, 1), "user_sgpr_dispatch_ptr": ("code_properties", 1, 1),
    "user_sgpr_queue_ptr": ("code_properties", 2, 1), "user_sgpr_kernarg_segment_ptr": ("code_properties", 3, 1), "user_sgpr_dispatch_id": ("code_properties", 4, 1),
    "user_sgpr_flat_scratch_init": ("code_properties", 5, 1), "user_sgpr_private_segment_size": ("code_properties", 6, 1), "wavefront_size32": ("code_properties", 10, 1),
    "uses_dynamic_stack": ("code_properties", 11, 1), "user_sgpr_kernarg_preload_length": ("preload", 0, 7), "user_sgpr_kernarg_preload_offset": ("preload", 7, 9),
}


@dataclass(frozen=True)
class Kernel:
    """vgprs, agprs, sgprs, spills: in each lane or wave, as the compiler counted.  lds_nbytes: of a block, without what a launch adds; scratch_nbytes: of a lane."""

    name: str
    symbol: str
    wave: int
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds_nbytes: int
    scratch_nbytes: int
    dynamic_stack: bool
    kernarg_nbytes: int
    kernarg_align: int
    max_threads: int
    args: tuple[Arg, ...]
    descriptor: Descriptor

    @property
    def explicit(self) -> tuple[Arg, ...]:
        """What a launch hands over; the driver fills in the others."""
        return tuple(a for a in self.args if not a.hidden)


@dataclass(frozen=True)
class CodeObject:
    """version: of the format, 3 to 6."""

    target: Target
    version: int
    kernels: tuple[Kernel, ...]
    elf: Elf

    def kernel(self, name: str) -> Kernel:
        """Raises CodeObjectError that lists what there is."""
        found = next((k for k in self.kernels if k.name == name), None)
        if found is None:
            raise self.elf.b.fault(0, f"no kernel {name!r}", f"there are {', '.join(k.name for k in self.kernels) or 'none'}", 'is it extern "C" __global__?')
        return found

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.elf.b.data).hexdigest()


def read(data: bytes, name: str = "code object") -> CodeObject:
    """name: for errors.  Raises CodeObjectError for what is damaged, no code of AMD's, or older than version 3."""
    elf = Elf(Binary(data, name))
    if elf.machine != AMDGPU:
        raise elf.b.fault(18, "is no code for AMD's GPUs", f"its machine is {elf.machine}, AMD's is {AMDGPU}", "give what hipRTC or clang wrote for a gfx target")
    if elf.type != SHARED_OBJECT:
        raise elf.b.fault(16, "is not linked", f"its ELF type is {elf.type}, what a driver loads has {SHARED_OBJECT}", "link it: ld.lld -shared k.o -o k.hsaco")
    version = _version(elf)
    return CodeObject(_target(elf, version), version, _kernels(elf), elf)


def is_code_object(data: bytes) -> bool:
    """Whether it begins as one."""
    return is_for(data, AMDGPU)


def _version(elf: Elf) -> int:
    if elf.os_abi != HSA:
        raise elf.b.fault(7, "is not for AMD's compute runtime", f"its OS ABI is {elf.os_abi}, HSA's is {HSA}", "compile for amdgcn-amd-amdhsa")
    version = VERSIONS.get(elf.abi_version)
    if version is None:
        raise elf.b.fault(8, "is of a version that is not read", f"its ABI version is {elf.abi_version}, read are {', '.join(f'{abi} (V{v})' for abi, v in VERSIONS.items())}",
                          "compile with -mcode-object-version=5")
    return version


def _target(elf: Elf, version: int) -> Target:
    flags = elf.flags
    arch = NUMBERS.get(flags & 0xff)
    if arch is None:
        raise elf.b.fault(48, "is for a chip that is not known", f"its number is {flags & 0xff:#x}", "a newer rlxpy may know it")
    if version == 3:
        return Target(arch, "+" if flags & 0x200 else "", "+" if flags & 0x100 else "")
    return Target(arch, MODE[flags >> 10 & 3], MODE[flags >> 8 & 3])


def _kernels(elf: Elf) -> tuple[Kernel, ...]:
    note = next((n for n in elf.notes if (n.owner, n.type) == METADATA), None)
    if note is None:
        raise elf.b.fault(0, "has no metadata", f"notes are {', '.join(f'{n.owner} {n.type}' for n in elf.notes) or 'none'}, wanted is {METADATA[0]} {METADATA[1]}",
                          "assembled code needs a block .amdgpu_metadata")
    root = Map(unpack(note.content), note.content, "metadata")
    major = root.get("amdhsa.version", list)[:1]
    if major != [1]:
        raise root.fault("amdhsa.version", f"begins {major}, read is [1]")
    kernels = tuple(_kernel(m, elf) for m in root.maps("amdhsa.kernels"))
    if twice := {k.name for k in kernels if [o.name for o in kernels].count(k.name) > 1}:
        raise root.fault("amdhsa.kernels", f"names {', '.join(sorted(twice))} twice")
    return kernels


@dataclass(frozen=True)
class Map:
    """A map of the metadata, whose fields must be what they should.  path: for errors."""

    fields: Any  # what was found where a map should be
    b: Binary
    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.fields, dict):
            raise self.fault("", f"is {self.fields!r:.40}, a map is wanted")

    def fault(self, key: str, why: str) -> Exception:
        return self.b.fault(0, f"{' '.join(filter(None, (self.path, key)))} is not as it should be", f"it {why}")

    def get(self, key: str, kind: type, default: Any = REQUIRED) -> Any:
        value = self.fields.get(key, default)
        if value is REQUIRED:
            raise self.fault(key, f"is not there; a kernel needs {KINDS[kind]}")
        if kind is bool and value in (0, 1):
            value = bool(value)
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise self.fault(key, f"is {value!r:.40}, {KINDS[kind]} is wanted")
        return value

    def maps(self, key: str) -> tuple[Map, ...]:
        """Of a list that may be left out."""
        return tuple(Map(m, self.b, f"{self.path} {key}[{k}]") for k, m in enumerate(self.get(key, list, [])))


def _kernel(m: Map, elf: Elf) -> Kernel:
    return Kernel(
        m.get(".name", str), m.get(".symbol", str), m.get(".wavefront_size", int), m.get(".vgpr_count", int), m.get(".agpr_count", int, 0), m.get(".sgpr_count", int),
        m.get(".vgpr_spill_count", int, 0), m.get(".sgpr_spill_count", int, 0), m.get(".group_segment_fixed_size", int), m.get(".private_segment_fixed_size", int),
        m.get(".uses_dynamic_stack", bool, False), m.get(".kernarg_segment_size", int), m.get(".kernarg_segment_align", int), m.get(".max_flat_workgroup_size", int),
        tuple(Arg(a.get(".name", str, ""), a.get(".type_name", str, ""), a.get(".offset", int), a.get(".size", int), a.get(".value_kind", str)) for a in m.maps(".args")),
        _descriptor(elf, m.get(".symbol", str)))


def _descriptor(elf: Elf, symbol: str) -> Descriptor:
    found = elf.symbols.get(symbol)
    if found is None:
        raise elf.b.fault(0, f"no descriptor {symbol}", "its metadata names this symbol, its symbol tables do not", "assembled code needs a block .amdhsa_kernel for each kernel")
    b = elf.loaded(found.address, DESCRIPTOR_NBYTES, f"descriptor {symbol}")
    lds, scratch, kernargs, entry, *words = b.numbers("III4xq20xIIIHH4x", 0, f"descriptor {symbol}")
    return Descriptor(lds, scratch, kernargs, found.address + entry, words[1], words[2], words[0], words[3], words[4])
