"""Kernel libraries of downstream packages: registered for a block or for good, and found by entry point."""
from __future__ import annotations

from contextlib import AbstractContextManager

from rlxpy.errors import AbiMismatch, RegistryError, nearest
from rlxpy.extend.kernels import ABI_VERSION, KernelLibrary
from rlxpy.extend.schema import settle
from rlxpy.registries import Registry

BUILTIN = "builtin"  # what all of a backend's own libraries are called together, without foreign ones
REGISTERED: Registry[KernelLibrary] = Registry("rlxpy.kernels", lambda name, library: register_kernel_library(library))


def kernel_registry() -> AbstractContextManager[None]:
    """Libraries registered inside the block are forgotten at its end; per thread and per task."""
    return REGISTERED.block()


def register_kernel_library(library: KernelLibrary) -> KernelLibrary:
    """Ask this library before a backend's own, and after libraries of inner scopes and those registered before it.

    Raises RegistryError on a taken name, SchemaConflict, AbiMismatch; then nothing is registered."""
    if not isinstance(library, KernelLibrary):
        raise RegistryError(f"{type(library).__name__} is not a KernelLibrary", fix="KernelLibrary('mine', (KernelRow(...),))")
    if library.abi != ABI_VERSION:
        raise AbiMismatch(f"kernel library {library.name!r} is written for version {library.abi} of KernelRow", why=f"this rlxpy has version {ABI_VERSION}",
                          fix="install versions that fit each other")
    known = registered_libraries()
    if library.name == BUILTIN or any(k.name == library.name for k in known):
        raise RegistryError(f"the name {library.name!r} of a kernel library is taken", why=f"there are {', '.join((BUILTIN, *(k.name for k in known)))}",
                            fix="choose another name, or unregister_kernel_library it first")
    settle([(k.name, s) for k in (*known, library) for s in k.ops])
    REGISTERED.put(library.name, library)
    return library


def unregister_kernel_library(name: str) -> None:
    """Raises RegistryError for a name that is not registered."""
    if not REGISTERED.drop(name):
        names = [k.name for k in registered_libraries()]
        raise RegistryError(f"no kernel library {name!r} is registered", why=f"there are {', '.join(names) or 'none'}", fix=f"near it: {nearest(name, names)}")


def registered_libraries() -> tuple[KernelLibrary, ...]:
    """In order of preference: inner scopes first, then by registration; those of plug-ins come last."""
    return tuple(k for table in reversed(REGISTERED.tables()) for k in table.values())
