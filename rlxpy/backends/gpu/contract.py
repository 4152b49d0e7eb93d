"""What a launch relies on, held against what a compiled AMD kernel says: arguments, memory, threads, and what no kernel may need."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rlxpy.backends.gpu.arch import Target
from rlxpy.backends.gpu.codeobject import CodeObject, Kernel
from rlxpy.backends.gpu.cudaobject import CudaKernel, CudaObject
from rlxpy.errors import CodeObjectError
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Sizes

if TYPE_CHECKING:
    from rlxpy.backends.gpu.launch import GpuLaunch

Layout = tuple[tuple[int, int], ...]  # (offset, bytes) of arguments
MOST_KERNARG_NBYTES = 768
SERVICES = {  # arguments behind which somebody must stand while the kernel runs
    "hidden_hostcall_buffer": "printf or assert", "hidden_printf_buffer": "printf", "hidden_heap_v1": "malloc", "hidden_default_queue": "kernels that start kernels",
    "hidden_completion_action": "kernels that start kernels", "hidden_multigrid_sync_arg": "grids that wait for one another",
}


@dataclass(frozen=True)
class KernelContract:
    """What a launch promises and expects.  None: whatever the kernel says.

    args            (offset, bytes) of each argument that is handed over
    threads         of a block
    shared_nbytes   that a launch adds for each block, beside the kernel's own; lds_nbytes: that a block may have in all
    own_lds_nbytes  that the kernel has by itself
    names           of the arguments that are handed over, where the metadata has names
    scratch         whether memory for what does not fit into registers is accepted: spills, local arrays"""

    args: Layout | None = None
    threads: int = 1
    wave: int | None = None
    shared_nbytes: int = 0
    lds_nbytes: int | None = None
    own_lds_nbytes: int | None = None
    names: tuple[str, ...] = ()
    scratch: bool = False


def contract_of(launch: GpuLaunch, sizes: Sizes, lds_nbytes: int | None = None) -> KernelContract:
    """What a launch of a raw kernel relies on at these sizes.  lds_nbytes: that the card has for a block."""
    shape = launch.geometry(sizes)
    return replace(launch.kernel.contract, args=tuple((a.offset, a.nbytes) for a in launch.args), shared_nbytes=shape.shared_nbytes, lds_nbytes=lds_nbytes)


def hold(code: CodeObject, kernel: str, contract: KernelContract) -> Kernel:
    """The kernel, which keeps to the contract.  Raises CodeObjectError with everything that stands against it."""
    k = code.kernel(kernel)
    if broken := tuple(breaches(k, code.target, contract)):
        raise CodeObjectError(f"kernel {kernel} of {code.elf.b.name} cannot be launched as it should be", where=f"code for {code.target}", why="; ".join(broken),
                              fix="`rlx inspect` shows all that the file says of it")
    return k


def hold_cuda(code: CudaObject, kernel: str, contract: KernelContract) -> CudaKernel:
    """The same of CUDA code, as far as it says: arguments, threads, shared memory."""
    k = next((k for k in code.kernels if k.name == kernel), None)
    if k is None:
        raise CodeObjectError(f"{code.name}: no kernel {kernel!r}", where=f"code for {code.arch}", why=f"there are {', '.join(k.name for k in code.kernels) or 'none'}",
                              fix='is it extern "C" __global__?')
    shared = (k.shared_nbytes or 0) + contract.shared_nbytes
    broken = (
        apart(contract.args, k.args),
        f"it is launched with {contract.threads} threads in a block, it was compiled for up to {k.max_threads}" if k.max_threads and contract.threads > k.max_threads else "",
        f"a block needs {shared} bytes of shared memory, it has {contract.lds_nbytes}" if contract.lds_nbytes is not None and shared > contract.lds_nbytes else "")
    if any(broken):
        raise CodeObjectError(f"kernel {kernel} of {code.name} cannot be launched as it should be", where=f"code for {code.arch}", why="; ".join(filter(None, broken)),
                              fix="`rlx inspect` shows what the file says of it")
    return k


def breaches(k: Kernel, target: Target, contract: KernelContract) -> Iterator[str]:
    """What stands against a launch, each with both numbers."""
    for rule in RULES:
        if why := rule(k, target, contract):
            yield why


def _services(k: Kernel, target: Target, c: KernelContract) -> str:
    return "; ".join(f"it needs the host while it runs, for {SERVICES[a.kind]} ({a.kind} at {a.offset})" for a in k.args if a.kind in SERVICES)


def _stack(k: Kernel, target: Target, c: KernelContract) -> str:
    dynamic = k.dynamic_stack or k.descriptor.bits("uses_dynamic_stack")
    return "its stack has no fixed size: it calls through pointers, or itself" if dynamic else ""


def _kernargs(k: Kernel, target: Target, c: KernelContract) -> str:
    return f"its arguments take {k.kernarg_nbytes} bytes, at most {MOST_KERNARG_NBYTES} are handed over" if k.kernarg_nbytes > MOST_KERNARG_NBYTES else ""


def _lds(k: Kernel, target: Target, c: KernelContract) -> str:
    most = target.lds_nbytes if c.lds_nbytes is None else c.lds_nbytes
    return f"a block needs {k.lds_nbytes} + {c.shared_nbytes} bytes of LDS, it has {most}" if k.lds_nbytes + c.shared_nbytes > most else ""


def _scratch(k: Kernel, target: Target, c: KernelContract) -> str:
    spilled = k.vgpr_spills + k.sgpr_spills
    return f"it spills {spilled} registers and takes {k.scratch_nbytes} bytes of scratch, its row says none" if not c.scratch and (spilled or k.scratch_nbytes) else ""


def _wave(k: Kernel, target: Target, c: KernelContract) -> str:
    return f"its wave has {k.wave} lanes, {c.wave} are relied on" if c.wave not in (None, k.wave) else ""


def _threads(k: Kernel, target: Target, c: KernelContract) -> str:
    return f"it is launched with {c.threads} threads in a block, it was compiled for up to {k.max_threads}" if c.threads > k.max_threads else ""


def _args(k: Kernel, target: Target, c: KernelContract) -> str:
    return apart(c.args, tuple((a.offset, a.nbytes) for a in k.explicit), tuple(a.name for a in k.explicit))


def apart(wanted: Layout | None, has: Layout, names: tuple[str, ...] = ()) -> str:
    """Where arguments that are handed over and those that are taken differ."""
    if wanted is None or wanted == has:
        return ""
    if len(wanted) != len(has):
        return f"it takes {len(has)} arguments, {len(wanted)} are handed over"
    at = next(k for k, pair in enumerate(zip(wanted, has, strict=True)) if pair[0] != pair[1])
    called = f" ({names[at]})" if names and names[at] else ""
    return f"its argument {at}{called} lies at {has[at][0]} with {has[at][1]} bytes, handed over is {wanted[at][1]} bytes at {wanted[at][0]}"


def _own_lds(k: Kernel, target: Target, c: KernelContract) -> str:
    return f"it has {k.lds_nbytes} bytes of LDS by itself, its row says {c.own_lds_nbytes}" if c.own_lds_nbytes not in (None, k.lds_nbytes) else ""


def _names(k: Kernel, target: Target, c: KernelContract) -> str:
    odd = next(((at, a.name, name) for at, (a, name) in enumerate(zip(k.explicit, c.names, strict=False)) if a.name not in ("", name)), None)
    return f"its argument {odd[0]} is called {odd[1]}, handed over there is {odd[2]}" if odd else ""


def _within(k: Kernel, target: Target, c: KernelContract) -> str:
    end = 0
    for a in sorted(k.args, key=lambda a: a.offset):
        if a.offset < end or a.offset + a.nbytes > k.kernarg_nbytes:
            return f"argument {a.name or a.kind} lies at {a.offset} with {a.nbytes} bytes: before it are {end}, in all {k.kernarg_nbytes}"
        end = a.offset + a.nbytes
    return ""


def _descriptor(k: Kernel, target: Target, c: KernelContract) -> str:
    """Metadata is what drivers read, the descriptor what the hardware reads; compilers write both alike, people may not."""
    d = k.descriptor
    pairs = (("LDS", k.lds_nbytes, d.lds_nbytes), ("scratch", k.scratch_nbytes, d.scratch_nbytes), ("arguments", k.kernarg_nbytes, d.kernarg_nbytes or k.kernarg_nbytes))
    wrong = [f"{what} {said} and {is_}" for what, said, is_ in pairs if said != is_]
    if k.wave != (wave := 32 if d.bits("wavefront_size32") else 64):
        wrong.append(f"wave {k.wave} and {wave}")
    if k.vgprs > (vgprs := allotted(k, target)):
        wrong.append(f"vector registers {k.vgprs} and {vgprs}")
    return f"its metadata and its descriptor differ: {', '.join(wrong)}" if wrong else ""


def allotted(k: Kernel, target: Target) -> int:
    """Vector registers that the hardware gives to a lane."""
    wide = target.wave == 64 and target.arch not in ("gfx90a", "gfx940", "gfx941", "gfx942", "gfx950", "gfx9-4-generic")
    grain = 16 if target.arch in ("gfx1250", "gfx1251") else 4 if wide or (target.wave == 32 and k.wave == 64) else 8
    return (k.descriptor.bits("granulated_vgprs") + 1) * grain


RULES: tuple[Callable[[Kernel, Target, KernelContract], str], ...] = (_services, _stack, _kernargs, _lds, _scratch, _wave, _threads, _args, _own_lds, _names, _within, _descriptor)
