"""The sandbox providers: lookup by name, with one instance of each per process.

Providers join by entry points of the group `benchflow.sandboxes`. A source tree that was never installed has no entry
points; then the table in its `pyproject.toml` is read, so that both ways find the same providers.
"""

from __future__ import annotations

import importlib
import tomllib
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

from benchflow.contracts.driver import SandboxDriver
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import ConfigError, SandboxError
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider

GROUP = "benchflow.sandboxes"
"""Group of the entry points."""

__all__ = ["GROUP", "adapt_provider", "close_providers", "get_provider", "list_provider_names"]

_made: dict[str, SandboxProvider] = {}


def list_provider_names() -> list[str]:
    """Return the names of all providers, sorted."""
    return sorted(_list_entry_points())


def get_provider(name: str) -> SandboxProvider:
    """Return the provider with a name, made on the first call.

    Raises:
        ConfigError: There is no such provider, or it cannot be loaded.
    """
    if name not in _made:
        _made[name] = _make_provider(name)
    return _made[name]


async def close_providers(stack_id: str) -> None:
    """Close all providers of this process, after each has removed what the stack's sandboxes shared if none is left."""
    while _made:
        _, provider = _made.popitem()
        try:
            await provider.sweep(stack_id)
        except SandboxError:
            # The daemon does not answer; the next worker sweeps again.
            continue
        finally:
            await provider.close()


def _make_provider(name: str) -> SandboxProvider:
    """Load and make the provider with a name."""
    target = _list_entry_points().get(name)
    if target is None:
        known = ", ".join(list_provider_names())
        raise ConfigError(f"there is no sandbox provider {name!r}", key="sandbox", remedy=f"use one of: {known}")
    module, _, attribute = target.partition(":")
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the sandbox provider {name!r} ({target}) cannot be loaded: {error}",
            key="sandbox",
            remedy="reinstall the package that declares it",
        ) from error
    return adapt_provider(made)


def adapt_provider(made: object) -> SandboxProvider:
    """Return a provider as it is, and for a driver a provider that runs it."""
    return DrivenProvider(made) if isinstance(made, SandboxDriver) else cast(SandboxProvider, made)


@cache
def _list_entry_points() -> dict[str, str]:
    """Return `module:attribute` by name, from entry points and, in a source tree, from pyproject.toml."""
    return _read_source_tree() | {point.name: point.value for point in entry_points(group=GROUP)}


def _read_source_tree() -> dict[str, str]:
    """Return the entry points in the source tree's pyproject.toml; none outside of one."""
    file = Path(__file__).parents[3] / "pyproject.toml"
    if not file.is_file():
        return {}
    project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    if project.get("name") != "benchflow":
        return {}
    table: dict[str, str] = project.get("entry-points", {}).get(GROUP, {})
    return table
