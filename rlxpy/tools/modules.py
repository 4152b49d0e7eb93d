"""Python that a user names, by file or by module, imported for what it registers."""
from __future__ import annotations

import sys
import traceback
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from rlxpy.errors import InputError, RlxError


def load(source: str) -> ModuleType:
    """A file's folder, or the working folder for a module, is searched for what it imports.

    Raises InputError with the line where it fails, or the RlxError that it raises."""
    path = Path(source)
    is_file = source.endswith(".py") or path.is_file()
    if is_file and not path.is_file():
        raise InputError(f"no file {source!r}", why="--module names Python", fix="name a file.py, or a module that can be imported")
    folder = str((path.parent if is_file else Path()).resolve())
    sys.path.insert(0, folder)
    try:
        return _from_file(path) if is_file else import_module(source)
    except RlxError:
        raise
    except Exception as e:  # it is the user's code
        raise InputError(f"cannot import {source!r}", where=_line(e), why=f"{type(e).__name__}: {e}", fix="mend it, or name another") from e
    finally:
        sys.path.remove(folder)


def _from_file(path: Path) -> ModuleType:
    name = f"rlxpy_loaded_{path.stem}"  # a file called numpy.py is not numpy
    spec = spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is no Python source")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _line(e: Exception) -> str:
    if isinstance(e, SyntaxError) and e.filename:
        return f"{e.filename}:{e.lineno}"
    frames = [f for f in traceback.extract_tb(e.__traceback__) if "importlib" not in f.filename and f.filename != __file__]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
