"""The registry record of an agent: all that the engine knows about an agent, as data.

An `AgentRecord` states which packages are installed, how the agent is started, how a model and its endpoint reach it,
what its sessions can do, and which hazards it has. A new agent is a new record, not a change of code.

Strings may hold placeholders in braces, which are replaced when the agent starts: `{base_url}` of the model's endpoint,
`{api_key}`, `{model}` as the endpoint spells it, `{provider}` (the first of the endpoint's `providers`), `{effort}`,
`{toolbox}` (the absolute directory of the agent's toolbox where it runs), `{home}` and `{workspace}`. An entry of a
table or list is left out if one of its placeholders has no value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from benchflow.contracts.base import Model
from benchflow.contracts.gateway import RequestName
from benchflow.contracts.resuming import LeastRung

PLACEHOLDER = re.compile(r"\{(base_url|api_key|model|provider|effort|toolbox|home|workspace)\}")
"""Pattern of a placeholder."""

TOOLBOX_ROOT = "/opt/benchflow/agents"
"""Directory of every sandbox that holds the toolboxes of agents."""

NODE_VERSION = "24.21.0"
"""Version of Node that runs agents and the stdio proxy."""

PROVIDERS = {
    "anthropic-messages": "https://api.anthropic.com",
    "openai-chat": "https://api.openai.com/v1",
    "openai-responses": "https://api.openai.com/v1",
    "gemini": "https://generativelanguage.googleapis.com",
}
"""Base URL of the provider that each wire format belongs to."""


def _below(path: str) -> str:
    """Return the path. Raise `ValueError` if it leads out of the directory that it is relative to."""
    if not path or path.startswith(("/", "~")) or ".." in path.split("/"):
        raise ValueError("must be a path below the agent's home, without a leading slash or `..`")
    return path


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
"""Name of a record, or of a program of a toolbox."""

AgentName = Annotated[str, StringConstraints(pattern=r"^(acpx/)?[a-z0-9][a-z0-9._-]{0,63}$")]
"""Name of a record, with the prefix `acpx/` for an agent that acpx drives."""

Exact = Annotated[str, StringConstraints(pattern=r"^[0-9][0-9A-Za-z.+_-]*$")]
"""Exact version of a package or an agent; ranges are refused."""

Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""Name of an environment variable."""

BelowHome = Annotated[str, AfterValidator(_below)]
"""Path relative to the agent's home."""

Resource = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:\w[\w.-]*$")]
"""File of an installed Python package, as `package.module:file`."""

Value = str | dict[str, Any]
"""Value of an environment variable; a table is passed as one line of JSON."""


class NodeInstall(Model):
    """A toolbox with its own Node, npm packages, and a program for each of their commands.

    In names of `packages`, and in `commands` and `prune`, `{arch}` stands for `x64` or `arm64`, and `{libc}` for
    `-musl` where the image has that C library, else for nothing.
    """

    runtime: Literal["node"]
    """Marks this form of `AgentRecord.install`."""

    node: Exact = NODE_VERSION
    """Version of Node. In musl images the default stands for the newest version of its line that is built for musl."""

    packages: dict[str, Exact] = {}
    """Exact versions of npm packages, by name. The commands that they declare become programs of the toolbox."""

    overrides: dict[str, Exact] = {}
    """Exact versions of transitive dependencies, by name: npm's `overrides`."""

    commands: dict[str, str] = {}
    """Paths below `node_modules` of programs that the packages do not declare as commands, by program name."""

    scripts: dict[Name, Resource] = {}
    """Files of installed Python packages that this Node runs, by program name. They lie in one directory of the
    toolbox, so that they can import each other; therefore their file names must differ."""

    prune: tuple[str, ...] = ()
    """Glob patterns, below `node_modules`, of files and directories that are removed after the installation."""

    @model_validator(mode="after")
    def _tell_scripts_apart(self) -> NodeInstall:
        files = [resource.partition(":")[2] for resource in self.scripts.values()]
        if "node" in self.scripts or len(set(files)) != len(files):
            raise ValueError("`scripts` need names of their own, other than `node`, and files of different names")
        return self


class PythonInstall(Model):
    """A toolbox with its own Python and packages from PyPI."""

    runtime: Literal["python"]
    """Marks this form of `AgentRecord.install`."""

    python: Annotated[str, StringConstraints(pattern=r"^3\.\d+$")]
    """Minor version, as `3.12`, of the interpreter, which is copied from the worker's host."""

    packages: dict[str, Exact] = Field(min_length=1)
    """Exact versions of PyPI packages, by name. Their console scripts become programs of the toolbox."""


class ConfigFile(Model):
    """A configuration file that the agent reads from its home."""

    path: BelowHome
    """Path of the file, relative to the agent's home."""

    format: Literal["json", "toml"]
    """Format in which `content` is written."""

    content: dict[str, Any]
    """Tables of the file, with placeholders in keys and values. `{api_key}` is refused: files end up in snapshots."""


class AgentEndpoint(Model):
    """One kind of model endpoint, and how its address, key and model name reach the agent."""

    api: Literal["anthropic-messages", "openai-chat", "openai-responses", "gemini"]
    """Wire format. The base URL has the form that the format's own clients take: with `/v1` for the two of OpenAI, and
    without a version path for the others."""

    providers: tuple[str, ...] = Field(min_length=1)
    """Provider names that select this endpoint in a model `provider/model`. The first one is `{provider}`."""

    base_url: str | None = None
    """Base URL of the provider, for `{base_url}` where neither the gateway nor the user gives one. None where the agent
    knows it: entries with `{base_url}` are then left out, and the gateway forwards to `PROVIDERS[api]`."""

    credentials: tuple[Variable, ...] = ()
    """Variables in which the user may have the key; the first one that is set counts."""

    env: dict[Variable, Value] = {}
    """Variables of the agent's process, over those of `AgentRecord.env`."""

    files: tuple[ConfigFile, ...] = ()
    """Files that are written before the agent starts, if the user names a model."""

    argv: tuple[str, ...] = ()
    """Arguments that are appended to `AgentRecord.launch`."""

    model: str = "{model}"
    """Model name as the agent spells it, for a record whose `model` is set by a request of the session."""

    requests: tuple[RequestName, ...] = ()
    """Requests, as `POST /v1/embeddings`, that the gateway forwards besides those of the wire format. Each counts as a
    model call."""

    @property
    def upstream(self) -> str:
        """Return the provider's base URL, for users who name no endpoint."""
        return self.base_url or PROVIDERS[self.api]

    @model_validator(mode="after")
    def _keep_keys_out_of_files(self) -> AgentEndpoint:
        if any("{api_key}" in text for file in self.files for text in texts(file.content)):
            raise ValueError("a file may not hold {api_key}, since files end up in snapshots: name a variable in it")
        return self


class ChoiceChannel(Model):
    """How the user's choice of a model, or of an effort, reaches the agent."""

    by: Literal["config_option", "set_model", "mode", "env", "flag", "config_file"]
    """`config_option` and `set_model` are ACP requests, sent when the session is opened; `mode` selects a session mode
    that stands for the choice. With `env`, `flag` and `config_file` nothing is sent: `env`, `argv` or `files` of the
    endpoint hold the placeholder."""

    option: str | None = None
    """Id of the ACP configuration option; given if and only if `by` is `config_option`."""

    value: str | None = None
    """Value to send, with `{model}` or `{effort}`; None for the model or effort itself."""

    levels: tuple[str, ...] = ()
    """Efforts that the agent accepts; others are refused at submit. Empty if any is passed on. Not read for a model."""

    required: bool = False
    """Whether the agent does not start without a model. Not read for an effort."""

    @model_validator(mode="after")
    def _name_the_option(self) -> ChoiceChannel:
        if (self.by == "config_option") != (self.option is not None):
            raise ValueError("`option` belongs to by = 'config_option', and to nothing else")
        return self


class SessionTraits(Model):
    """Known properties of an agent's ACP sessions."""

    protocol_version: int = 1
    """Version of the Agent Client Protocol; an agent that answers `initialize` with another one is refused."""

    mode: str | None = None
    """Session mode that is set once the session is open; None for the agent's own default."""

    rung: LeastRung = "fresh"
    """Best resume mode that is known to work in a copy of the session's world: `load`, `replay` or `fresh`."""

    resume: bool = False
    """Whether `session/resume` is known to lead to the same state as `session/load`, without replaying the history.
    Then it is used instead, if the agent advertises it."""

    client: tuple[Literal["fs", "terminal"], ...] = ()
    """Client capabilities that the agent needs and the engine advertises: files (`fs`), terminals (`terminal`)."""

    hazards: tuple[str, ...] = ()
    """Warnings for users of the agent. Those that name `session/load` explain why a session cannot be loaded."""


class AgentRecord(Model):
    """One agent of the registry: a TOML file, or an object of a user's package.

    A job stores the record as it was at submit, without `description` and `checked`.
    """

    name: AgentName
    """Name in the registry; `acpx/NAME` for an agent that is driven by acpx."""

    description: str
    """One line for `bench agent list`."""

    aliases: tuple[Name, ...] = ()
    """Further names by which users may ask for the agent."""

    protocol: Literal["acp", "acpx", "oracle", "none", "python"]
    """How the agent is driven. `acp`: a process that speaks the Agent Client Protocol on stdio; `acpx`: such a process
    behind acpx, a command-line client; `oracle`: the task's own solution; `none`: no actions; `python`: Python code
    that runs in the worker."""

    version: Exact | None = None
    """Version of the agent, after that of acpx where acpx drives it. It is part of the toolbox's path, and therefore
    necessary with `install`."""

    user: Literal["root", "agent"] = "agent"
    """User that the agent acts as, unless the task names one: `root`, or the non-root account `agent` that the engine
    creates."""

    install: Annotated[NodeInstall | PythonInstall, Field(discriminator="runtime")] | None = None
    """Content of the agent's toolbox; None for an agent that the image brings, or that needs no program."""

    launch: tuple[str, ...] = ()
    """Command that starts the agent: a program of the toolbox (`node` is one) or, without `install`, of the image, then
    its arguments. Of the placeholders only `{toolbox}` is replaced, and only with a toolbox."""

    required_env: tuple[Variable, ...] = ()
    """Variables without which the agent does not start. A job takes them by name from the environment, unless the user
    gives them."""

    env: dict[Variable, Value] = {}
    """Variables of every start of the agent, whatever its endpoint."""

    endpoints: tuple[AgentEndpoint, ...] = ()
    """Kinds of endpoints that the agent can use; the first one is the default. Empty if it takes no endpoint."""

    model: ChoiceChannel | None = None
    """How the agent receives its model; None for an agent that uses no model."""

    effort: ChoiceChannel | None = None
    """How the agent receives its reasoning effort; None if it has no levels of effort."""

    credential_files: tuple[BelowHome, ...] = ()
    """Login files of the agent, relative to the home. A job without a key and a base URL passes on those that the
    submitting user has, except on a cluster."""

    home_dirs: tuple[BelowHome, ...] = ()
    """Directories that are created in the agent's home before it starts."""

    skills: tuple[str, ...] = ()
    """Directories, with placeholders, in which the agent looks for skills; rewards of the space `memory` read them."""

    session: SessionTraits = SessionTraits()
    """Known properties of the agent's sessions."""

    checked: tuple[str, ...] = ()
    """Statements for people about which properties of the record were tested, and which were not."""

    source: str = ""
    """File or import path that the record was read from, for error messages. Set by the registry; a job stores it
    without its directory."""

    code: str | None = None
    """`module:object` of an async function or a subclass of `Agent`; given if and only if `protocol` is `python`."""

    code_root: str = ""
    """Directory in which the module of `code` is looked for after the installed packages; empty for none."""

    runs_inside: bool = True
    """Whether the agent is a process of the sandbox and calls its model from there. Code of the worker states
    it as a class attribute; False for a function."""

    @model_validator(mode="after")
    def _be_startable(self) -> AgentRecord:
        if self.protocol in ("acp", "acpx") and not self.launch:
            raise ValueError("an agent that speaks ACP needs `launch`")
        if (self.protocol == "python") != (self.code is not None):
            raise ValueError("`code` belongs to protocol = 'python', and to nothing else")
        if self.install is not None and self.version is None:
            raise ValueError("what is installed needs a `version`")
        if self.name.startswith("acpx/") and self.protocol != "acpx":
            raise ValueError("`acpx/` before a name is given by the registry, to every agent on Node")
        return self

    @property
    def is_engine(self) -> bool:
        """Return whether the engine acts itself, without an agent."""
        return self.protocol in ("oracle", "none")

    @property
    def takes_model(self) -> bool:
        """Return whether the agent uses a model."""
        return self.model is not None

    @property
    def mount_path(self) -> str | None:
        """Return the directory of the agent's toolbox in every sandbox; None if it has no toolbox."""
        return f"{TOOLBOX_ROOT}/{self.directory_name}" if self.install is not None else None

    @property
    def directory_name(self) -> str:
        """Return name and version as one component of a path."""
        return f"{self.name.replace('/', '-')}-{self.version}"


def texts(value: Any) -> Iterator[str]:
    """Yield every string in a value: itself, or the keys and values of tables and lists, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts(inner)
