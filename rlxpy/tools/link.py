"""Working on rlxpy and on a package of one's own together: an environment that uses a working tree in the place of the installed release.

One .pth file puts the tree first; without it everything is as it was, so that neither installing nor a network is needed."""
from __future__ import annotations

import ast
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from rlxpy.errors import InputError, RlxError
from rlxpy.frozen import dataclass

FILE = "rlxpy-linked.pth"
LINE = "import sys; sys.path.insert(0, {!r})\n"


@dataclass(frozen=True)
class Link:
    """What an environment imports.  tree: the working tree that it is linked to, "" when to none; `version` of what is used."""

    file: str
    tree: str
    version: str


def linked(file: Path | None = None) -> Link:
    """Of this environment.  Raises InputError for a link to a tree that is gone."""
    file = file or _file()
    tree = _tree(file)
    if tree and not (Path(tree) / "rlxpy" / "__init__.py").is_file():
        raise InputError(f"linked to {tree}, which has no rlxpy", why=f"{file} says so; Python passes over it and uses the installed release", fix="rlx dev unlink")
    return Link(str(file), tree, _used()[1])


def link(tree: str | Path) -> Link:
    """Use the rlxpy of a working tree from the next Python on.  Raises InputError for what is no such tree, or one that cannot be imported;
    then everything is as it was."""
    root, file = Path(tree).expanduser().resolve(), _file()
    if not (root / "rlxpy" / "__init__.py").is_file():
        raise InputError(f"{root} is no working tree of rlxpy", why="it has no rlxpy/__init__.py", fix="name the folder that holds pyproject.toml and rlxpy/")
    before = file.read_text("utf-8") if file.exists() else None
    _write(file, LINE.format(str(root)))
    try:
        place, version = _used()
        if place != root / "rlxpy":
            raise InputError(f"{root} is linked, but Python imports {place}", why="PYTHONPATH, or another .pth file, comes before", fix="unset PYTHONPATH")
    except RlxError:
        _write(file, before)
        raise
    return Link(str(file), str(root), version)


def unlink() -> Link:
    """Use the installed release again.  Raises InputError when there is no link."""
    file = _file()
    if not file.exists():
        raise InputError("this environment is not linked", why=f"there is no {file}", fix="rlx dev link FOLDER")
    _write(file, None)
    return linked(file)


def _file() -> Path:
    return Path(sysconfig.get_path("purelib")) / FILE


def _tree(file: Path) -> str:
    found = re.fullmatch(r"import sys; sys\.path\.insert\(0, (.*)\)\n", file.read_text("utf-8")) if file.exists() else None
    return str(ast.literal_eval(found[1])) if found else ""


def _write(file: Path, text: str | None) -> None:
    try:
        file.unlink(missing_ok=True) if text is None else file.write_text(text, "utf-8")
    except OSError as e:
        raise InputError(f"cannot change {file}", why=e.strerror or str(e), fix="use an environment of your own: python -m venv") from None


def _used() -> tuple[Path, str]:
    """Where the next Python finds rlxpy, and its version."""
    done = subprocess.run([sys.executable, "-P", "-c", "import rlxpy, rlxpy.cli.app; print(rlxpy.__file__, rlxpy.__version__, sep='\\n')"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError("rlxpy cannot be imported", why=(done.stderr.strip().splitlines() or ["Python said nothing"])[-1], fix="mend the tree, or install what it needs, and link it again")
    place, version = done.stdout.splitlines()
    return Path(place).parent.resolve(), version
