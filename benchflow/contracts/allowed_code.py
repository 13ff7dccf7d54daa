"""Which code of this host may be imported because of a name in a task set or in the results of a job.

Whoever wrote those files is not trusted. An import runs the module, with all rights of the user, and installed packages
have modules that do harm by being imported. So such a name means a built-in, an entry point of an installed package, or
a module that the user has allowed by name. What the user names on the command line or in a configuration is the user's
own word, and needs no other.
"""

from __future__ import annotations

from collections.abc import Collection

OPTION = "--allow-code"
"""The option by which the user allows a module; `allow_code` in configurations."""


def is_allowed(target: str, allowed: Collection[str]) -> bool:
    """Tell whether `module:attribute` lies in one of the allowed modules, or in a module below one of them."""
    module = target.partition(":")[0]
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


def allowing(target: str) -> str:
    """Return the remedy for a name that is not allowed."""
    return f"if you trust it, allow it yourself: {OPTION} {target.partition(':')[0]}"
