"""Programs of a toolbox that are files of an installed Python package: the engine's own, and those of users' agents."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from benchflow.contracts.agent_record import AgentRecord, NodeInstall
from benchflow.errors import ConfigError

_PLACE = "lib/scripts"
"""Directory of the scripts in a toolbox."""


@dataclass(frozen=True)
class ToolboxScripts:
    """The scripts of a toolbox."""

    files: dict[str, tuple[str, bytes]]
    """Name and content of each file, by the name of its program."""

    @property
    def digest(self) -> dict[str, str]:
        """Return the sha256 of each file's content, by the name of its program."""
        return {name: hashlib.sha256(content).hexdigest() for name, (_, content) in self.files.items()}

    def write(self, root: Path) -> dict[str, tuple[str, ...]]:
        """Write the scripts to a toolbox, and return their commands, relative to it."""
        for file, content in self.files.values():
            path = root / _PLACE / file
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        return {name: ("bin/node", f"{_PLACE}/{file}") for name, (file, _) in self.files.items()}


def read_scripts(record: AgentRecord) -> ToolboxScripts:
    """Return the scripts that a record names. Raise `ConfigError` if an installed package lacks one."""
    declared = record.install.scripts if isinstance(record.install, NodeInstall) else {}
    files = {}
    for name, resource in declared.items():
        module, _, file = resource.partition(":")
        try:
            files[name] = (file, resources.files(module).joinpath(file).read_bytes())
        except (ImportError, OSError, TypeError) as error:
            raise ConfigError(
                f"{resource!r} cannot be read: {error}",
                file=record.source,
                key=f"install.scripts.{name}",
                remedy="name a file of a Python package that is installed here, as package.module:file",
            ) from error
    return ToolboxScripts(files)
