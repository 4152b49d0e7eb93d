"""What the GPU backend asks of a vendor's runtime: memory, code, launches in order, and whole sequences of them replayed."""
from __future__ import annotations

import ctypes
import os
import struct
import weakref
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from rlxpy.errors import DeviceError
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import Array

if TYPE_CHECKING:
    from rlxpy.backends.gpu.blaslt import Prepared, Problem


@dataclass(frozen=True)
class GpuTarget:
    """What code is written for.  arch: the compiler's name for it, as gfx942 or sm_90; wave: lanes that run in step; shared_nbytes: of a
    block, without asking for more; gemm: the vendor's library of products that is there, as its kernel library is called."""

    vendor: str
    arch: str
    wave: int
    shared_nbytes: int = 64 << 10
    threads: int = 1024
    gemm: str = "none"


@dataclass(frozen=True)
class Arguments:
    """Packed arguments of one launch, laid out once: `formats` are struct codes, each value at a multiple of its own size."""

    buffer: Any = field(repr=False)    # ctypes array of bytes
    pointers: Any = field(repr=False)  # ctypes array of void *, one an argument

    @classmethod
    def of(cls, data: bytes, offsets: Sequence[int]) -> Arguments:
        buffer = ctypes.create_string_buffer(data, max(len(data), 1))
        base = ctypes.addressof(buffer)
        return cls(buffer, (ctypes.c_void_p * max(len(offsets), 1))(*(base + o for o in offsets)))

    @property
    def address(self) -> int:
        """Of the array of pointers."""
        return ctypes.addressof(self.pointers)

    @classmethod
    def words(cls, values: Sequence[int]) -> Arguments:
        """Arguments of 8 bytes each: addresses and sizes."""
        return cls.of(struct.pack(f"<{len(values)}q", *(v - (1 << 64) if v >= 1 << 63 else v for v in values)), range(0, 8 * len(values), 8))


class Held:
    """Something of a vendor's runtime, such as memory, a module, or a captured sequence of launches: destroyed with its last holder, or when
    the process ends.  needs: what must outlive it."""

    def __init__(self, handle: Any, destroy: Callable[[Any], Any], needs: Any = None) -> None:
        self.handle = handle
        weakref.finalize(self, _destroy, os.getpid(), handle, destroy, needs)


class Recorded(Held):
    """Launches, each after the one before, that are made by one call.  nodes: the runtime's, one a launch."""

    def __init__(self, handle: Any, destroy: Callable[[Any], Any], nodes: Sequence[Any], needs: Any) -> None:
        super().__init__(handle, destroy, needs)
        self.nodes = nodes


class Launchable(Protocol):
    """A launch with nothing left to decide."""

    @property
    def function(self) -> Any: ...
    @property
    def grid(self) -> tuple[int, int, int]: ...
    @property
    def threads(self) -> int: ...
    @property
    def shared_nbytes(self) -> int: ...
    @property
    def arguments(self) -> Arguments: ...


def _destroy(process: int, handle: Any, destroy: Callable[[Any], Any], needs: Any) -> None:
    """A forked process has copies of handles, and no device behind them."""
    if os.getpid() == process:
        destroy(handle)


def same_process(api: GpuApi) -> None:
    """Raises DeviceError in a forked process: a vendor's runtime does not come along."""
    if os.getpid() != api.process:
        raise DeviceError(f"{api.name} cannot be used here", why=f"process {api.process} opened it, and process {os.getpid()} was forked from that",
                          fix="multiprocessing.get_context('spawn'), or fork before the device is opened")


def answer(said: tuple[Any, ...], who: str, meaning: Callable[[Any], str] = lambda status: "") -> Any:
    """What a vendor's call returns beside its status, which comes first.  meaning: what the runtime says a status means.  Raises DeviceError."""
    status, *values = said
    if int(status) != 0:
        text = meaning(status)
        raise DeviceError(f"{who} answers {getattr(status, 'name', status)}",
                          why=f"status {int(status)} of its runtime{': ' * bool(text)}{text}", fix="RLX_DEBUG=1 waits for each kernel and names the one that fails")
    return values[0] if len(values) == 1 else tuple(values)


class GpuApi(Protocol):
    """One device of one vendor, with one queue: what is asked happens in order, and at the latest when `sync` or `read` returns.

    Every method raises DeviceError for what the runtime refuses."""

    @property
    def target(self) -> GpuTarget: ...
    @property
    def compiler(self) -> str:
        """Name and version of what compiles, for cache keys."""
    @property
    def options(self) -> tuple[str, ...]:
        """What code is compiled with, beside its target."""
    @property
    def name(self) -> str:
        """Of the device, for reports."""
    @property
    def process(self) -> int:
        """Who opened it."""

    def alloc(self, nbytes: int) -> int: ...
    def free(self, address: int) -> None: ...
    def write(self, address: int, array: Array) -> None:
        """A C-contiguous array, which may be changed as soon as this returns."""
    def read(self, address: int, array: Array) -> None:
        """Into a C-contiguous array, when everything asked before is done."""
    def fill(self, address: int, byte: int, nbytes: int) -> None: ...

    def compile(self, source: str, options: Sequence[str]) -> bytes:
        """Raises CompileError, with everything that the compiler said as `log`."""
    def load(self, code: bytes) -> Held:
        """Unloaded when nobody holds it any more."""
    def function(self, module: Held, name: str) -> Any: ...
    def launch(self, function: Any, grid: tuple[int, int, int], threads: int, shared_nbytes: int, arguments: Arguments) -> None: ...
    def sync(self) -> None: ...

    def prepare(self, problem: Problem, workspace: int, nbytes: int) -> Prepared | str:
        """A product by the vendor's library, with `nbytes` of device memory that it alone uses; a text says why it has none."""
    def multiply(self, prepared: Prepared) -> None: ...

    def mark(self) -> Held:
        """A point of the queue, whose time is known when it was reached."""
    def elapsed_ns(self, since: Held, until: Held) -> int:
        """Between two marks, when both were reached."""

    def capture(self, launches: Callable[[], None], needs: Any = None) -> Held:
        """What is launched meanwhile is noted, not made; ready to be replayed, until nobody holds it any more.  needs: what must outlive it.

        Nothing is left of it where `launches` raises."""
    def record(self, launches: Sequence[Launchable], needs: Any = None) -> Recorded:
        """The same of launches alone, which may be patched."""
    def patch(self, recorded: Recorded, place: int, launch: Launchable) -> None:
        """From the next replay on, another one at that place."""
    def replay(self, graph: Held) -> None: ...
