"""Import of code that the user names as `module:object`, from installed packages or from a directory of the user's."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from types import ModuleType

from benchflow.errors import ConfigError

_DIRECTORIES: set[Path] = set()
"""Directories from which this process has imported users' code."""


def import_anew(name: str, root: str, *, key: str) -> object:
    """Import an object, as its file is now.

    Args:
        name: `module:object`.
        root: Directory in which the module is looked up after the installed ones; empty for none. The module, and all
            modules from users' directories, are imported again: files may have changed, and directories may have
            modules of the same names.
        key: Option that has the name, for errors.

    Raises:
        ConfigError: It cannot be imported.
    """
    module, _, attribute = name.partition(":")
    if root:
        _forget_imported(module, root)
    # Last, so that a file of this directory shadows no installed module; and only during this import, so that code
    # that tasks name is not looked up there.
    sys.path.extend([root] if root else [])
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{name} cannot be imported: {type(error).__name__}: {error}",
            key=key,
            remedy="write package.module:object, of a module that is installed or lies in this directory",
        ) from error
    finally:
        if root:
            # The last occurrence: the directory may have been on the path before, and the code may have changed it.
            at = max((at for at, path in enumerate(sys.path) if path == root), default=None)
            if at is not None:
                del sys.path[at]
    return found


@functools.lru_cache(maxsize=64)
def import_for_job(name: str, root: str, job: str, *, key: str) -> object:
    """Import an object as `import_anew` does, once per job, so that its code does not change during the job."""
    return import_anew(name, root, key=key)


def _forget_imported(module: str, root: str) -> None:
    """Remove a module, and all modules from users' directories, from `sys.modules`."""
    top, directory = module.partition(".")[0], Path(root).resolve()
    _DIRECTORIES.add(directory)
    installed = {Path(path).resolve() for path in sys.path}
    for loaded, content in list(sys.modules.items()):
        origin = _import_directory(loaded, content)
        is_named = origin == directory and loaded.partition(".")[0] == top
        if (is_named or origin in _DIRECTORIES - installed) and loaded.partition(".")[0] != "benchflow":
            del sys.modules[loaded]
    importlib.invalidate_caches()


def _import_directory(name: str, module: ModuleType) -> Path | None:
    """Return the directory of the import path in which a module was found; None for a module without a file."""
    file = getattr(module, "__file__", None)
    if not file:
        return None
    path = Path(file).absolute()
    depth = len(name.split(".")) - (path.name != "__init__.py")
    return path.parents[depth].resolve() if depth < len(path.parents) else None
