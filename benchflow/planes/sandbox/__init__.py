"""Which sandbox providers there are, and one of each per process.

Providers join by entry points of the group `benchflow.sandboxes`. A source tree that was never installed has
no entry points; then the table in its `pyproject.toml` is read, so that both ways find the same providers.
"""

from __future__ import annotations

import importlib
import tomllib
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

from benchflow.contracts.driver import SandboxDriver
from benchflow.contracts.provider import SandboxProvider
from benchflow.errors import ConfigError, SandboxError
from benchflow.planes.sandbox.driven.provider import DrivenProvider

GROUP = "benchflow.sandboxes"

__all__ = ["GROUP", "close_providers", "get_provider", "provider_names", "provider_of"]

_made: dict[str, SandboxProvider] = {}


def provider_names() -> list[str]:
    """The names of the providers that can be asked for, sorted."""
    return sorted(_providers())


def get_provider(name: str) -> SandboxProvider:
    """The provider of this name, made on the first call. Raises `ConfigError` for an unknown name."""
    if name not in _made:
        _made[name] = _make(name)
    return _made[name]


async def close_providers(stack_id: str) -> None:
    """Let go of every provider of this process, and of what the stack's sandboxes shared once none is left."""
    while _made:
        _, provider = _made.popitem()
        try:
            await provider.sweep(stack_id)
        except SandboxError:
            # A daemon that is gone by now has nothing to be swept by us; the next worker sweeps again.
            continue
        finally:
            await provider.close()


def _make(name: str) -> SandboxProvider:
    target = _providers().get(name)
    if target is None:
        known = ", ".join(provider_names())
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
    return provider_of(made)


def provider_of(made: object) -> SandboxProvider:
    """Return a provider as it is, and for a driver the provider over it."""
    return DrivenProvider(made) if isinstance(made, SandboxDriver) else cast(SandboxProvider, made)


@cache
def _providers() -> dict[str, str]:
    """Name to `module:attribute`, from entry points, and from pyproject.toml in a source tree."""
    return _declared_in_source_tree() | {point.name: point.value for point in entry_points(group=GROUP)}


def _declared_in_source_tree() -> dict[str, str]:
    file = Path(__file__).parents[3] / "pyproject.toml"
    if not file.is_file():
        return {}
    project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    if project.get("name") != "benchflow":
        return {}
    table: dict[str, str] = project.get("entry-points", {}).get(GROUP, {})
    return table
