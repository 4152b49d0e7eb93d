"""Launches that are recorded once and replayed at any sizes: where a size changes one, it is bound anew and patched."""
from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from rlxpy.backends.cpu import ctext
from rlxpy.backends.gpu.api import GpuApi, Launchable, Recorded
from rlxpy.backends.gpu.kernel import Kernel
from rlxpy.ir.dims import Dim, Sizes

L = TypeVar("L", bound=Launchable)


class Line:
    """Launches of the same kernels in the same order.  The first time they are made one by one, the second time recorded, and replayed by one call
    from then on, also with other grids and arguments: launches that are the same objects as before are left as they are."""

    def __init__(self) -> None:
        self._ran = False
        self._recorded: Recorded | None = None
        self._now: Sequence[Launchable] = ()  # what is recorded; empty where nobody knows

    def play(self, api: GpuApi, launches: Sequence[Launchable], needs: Any) -> None:
        """needs: what must outlive the record."""
        if self._recorded is None and (not self._ran or len(launches) < 2):
            for one in launches:
                api.launch(one.function, one.grid, one.threads, one.shared_nbytes, one.arguments)
            self._ran = True
            return
        if self._recorded is None:
            self._recorded = api.record(launches, needs)
        elif self._now is not launches:
            self._patch(api, self._recorded, launches)
        self._now = launches
        api.replay(self._recorded)

    def _patch(self, api: GpuApi, recorded: Recorded, launches: Sequence[Launchable]) -> None:
        known, self._now = self._now, ()  # until it is done
        for place, one in enumerate(launches):
            if not known or known[place] is not one:
                api.patch(recorded, place, one)


class Kept(Generic[L]):
    """Launches that were bound before, in the same memory: they change only with the sizes that they depend on."""

    def __init__(self) -> None:
        self._names: dict[Hashable, tuple[str, ...]] = {}
        self._made: dict[Hashable, tuple[tuple[int, ...], tuple[L, ...]]] = {}

    def calls(self, of: Hashable, names: Callable[[], Iterable[str]], number: int, sizes: Sizes, make: Callable[[], Iterable[L]]) -> tuple[L, ...]:
        """of: what they come from; names: of the sizes; number: by which kernels name a node; make: gives them."""
        if of not in self._names:
            self._names[of] = tuple(sorted(names()))
        now = number, *(sizes[name] for name in self._names[of])
        if of not in self._made or self._made[of][0] != now:
            self._made[of] = now, tuple(make())
        return self._made[of][1]


def mentioned(k: Kernel, offsets: Sequence[Dim]) -> frozenset[str]:
    """Sizes on which a launch depends: its grid, its arguments, where its operands begin."""
    return k.sizes | ctext.names(*k.blocks, k.shared_nbytes, *offsets)
