"""The Agent plane's contract: who acts, as data.

An `AgentRecord` says everything that the engine knows of an agent: what is installed, how it is started, how a model
and its endpoint reach it, what its sessions can do, and what is dangerous about it. Nothing else in the engine names
an agent's product, so that a new one is a file and not a change.

Texts may name what is only known when an agent starts, in braces: `{base_url}` of the model's endpoint, `{api_key}`,
`{model}` as the endpoint spells it, `{provider}` (the name before the slash of `provider/model`), `{effort}`,
`{toolbox}` (the absolute directory of the agent's toolbox where it runs), `{home}` and `{workspace}`. An entry that
names something which was not given is left out.
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

TOOLBOX_ROOT = "/opt/benchflow/agents"
"""Where toolboxes are mounted, in every sandbox."""

NODE_VERSION = "24.21.0"
"""The Node that runs agents, and what holds their stdio."""


PROVIDERS = {
    "anthropic-messages": "https://api.anthropic.com",
    "openai-chat": "https://api.openai.com/v1",
    "openai-responses": "https://api.openai.com/v1",
    "gemini": "https://generativelanguage.googleapis.com",
}
"""Base URLs of those whose wire formats these are."""


def _below(path: str) -> str:
    if not path or path.startswith(("/", "~")) or ".." in path.split("/"):
        raise ValueError("must be a path below the agent's home, without a leading slash or `..`")
    return path


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
AgentName = Annotated[str, StringConstraints(pattern=r"^(acpx/)?[a-z0-9][a-z0-9._-]{0,63}$")]
Exact = Annotated[str, StringConstraints(pattern=r"^[0-9][0-9A-Za-z.+_-]*$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
BelowHome = Annotated[str, AfterValidator(_below)]
Resource = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:\w[\w.-]*$")]
Value = str | dict[str, Any]
"""A text, or a table that is written as one line of JSON."""


class NodeInstall(Model):
    """What a toolbox holds that brings its own Node.

    packages: npm packages by exact version. overrides: versions of packages further down. commands: programs by name,
    as paths below `node_modules`, for those that the packages do not declare (`{arch}`: x64 or arm64; `{libc}`:
    `-musl` for an image that has it, else nothing); both may also stand in a package's name. scripts: programs by
    name that come with an installed Python package, as `package.module:file`, for this Node to run; their files
    lie in one directory, and can import each other. prune: paths below `node_modules` that are not needed (shell
    patterns).
    """

    runtime: Literal["node"]
    node: Exact = NODE_VERSION
    packages: dict[str, Exact] = {}
    overrides: dict[str, Exact] = {}
    commands: dict[str, str] = {}
    scripts: dict[Name, Resource] = {}
    prune: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _tell_scripts_apart(self) -> NodeInstall:
        files = [resource.partition(":")[2] for resource in self.scripts.values()]
        if "node" in self.scripts or len(set(files)) != len(files):
            raise ValueError("`scripts` need names of their own, other than `node`, and files of different names")
        return self


class PythonInstall(Model):
    """What a toolbox holds that brings its own Python. python: `3.12`. packages: from PyPI, by exact version."""

    runtime: Literal["python"]
    python: Annotated[str, StringConstraints(pattern=r"^3\.\d+$")]
    packages: dict[str, Exact] = Field(min_length=1)


class ConfigFile(Model):
    """A file that an agent reads from its home. content: its tables, with placeholders in keys and values."""

    path: BelowHome
    format: Literal["json", "toml"]
    content: dict[str, Any]


class Endpoint(Model):
    """How one kind of model endpoint reaches an agent.

    api: the wire format; a base URL is what its own clients take: with `/v1` for the two of OpenAI's kind, else without
    what their paths begin with. providers: names before the slash of `provider/model` that mean this one. base_url:
    what `{base_url}` is when the user names none. credentials: where the user has the key, the first one set counts.
    env, files, argv (added to the launch): what the agent is told. model: how the agent spells the model. requests:
    what the agent asks of the endpoint beside what the gateway passes on for its wire format anyway, as
    `POST /v1/embeddings`; each counts as a call.
    """

    api: Literal["anthropic-messages", "openai-chat", "openai-responses", "gemini"]
    providers: tuple[str, ...] = Field(min_length=1)
    base_url: str | None = None
    credentials: tuple[Variable, ...] = ()
    env: dict[Variable, Value] = {}
    files: tuple[ConfigFile, ...] = ()
    argv: tuple[str, ...] = ()
    model: str = "{model}"
    requests: tuple[RequestName, ...] = ()

    @property
    def upstream(self) -> str:
        """Where the provider itself answers, for whoever names no endpoint."""
        return self.base_url or PROVIDERS[self.api]

    @model_validator(mode="after")
    def _keep_keys_out_of_files(self) -> Endpoint:
        if any("{api_key}" in text for file in self.files for text in texts(file.content)):
            raise ValueError("a file may not hold {api_key}, since files end up in snapshots: name a variable in it")
        return self


class Choice(Model):
    """How a session is told its model or its effort.

    by: `config_option` and `set_model` are requests of the protocol; the others say what carries it into the process
    (`env`, `flag`, `config_file` of the endpoint), or that a mode of the session stands for it. option: the id of the
    configuration option. value: what is sent. levels: what is known to be accepted.
    """

    by: Literal["config_option", "set_model", "mode", "env", "flag", "config_file"]
    option: str | None = None
    value: str | None = None
    levels: tuple[str, ...] = ()

    required: bool = False
    """Whether the agent does not start without one."""

    @model_validator(mode="after")
    def _name_the_option(self) -> Choice:
        if (self.by == "config_option") != (self.option is not None):
            raise ValueError("`option` belongs to by = 'config_option', and to nothing else")
        return self


class SessionTraits(Model):
    """What is known of an agent's sessions.

    mode: to be set after `session/new`. rung: the best way known to go on with a session in a copy of its world.
    resume: whether `session/resume` is known to give the same as `session/load`, without telling all of it again.
    client: what it needs of us while it works. hazards: what else whoever runs it should know.
    """

    protocol_version: int = 1
    mode: str | None = None
    rung: LeastRung = "fresh"
    resume: bool = False
    client: tuple[Literal["fs", "terminal"], ...] = ()
    hazards: tuple[str, ...] = ()


class AgentRecord(Model):
    """One agent of the registry, a TOML file each.

    name: `acpx/NAME` for an agent that is driven through acpx. protocol: `acp` speaks the Agent Client Protocol on
    stdio, `acpx` does so with acpx, a client with a command line, `oracle` runs the task's own solution, `none` does
    nothing, `python` is code of the worker's own. version: its own, after acpx's where that drives it; with the name,
    its directory in every sandbox. user: who it acts as, unless the task says otherwise: `root`, or `agent` for an
    account that is made for it. install: None when the image has it. launch: a program of the toolbox (`node` is one),
    or of the image, and its arguments. required_env: variables without which it does not start. env: always set.
    home_dirs, credential_files: below its home. skills: where it looks for skills. checked: what was shown of this
    record, and what was not. source: the file or object that it was read from.
    """

    name: AgentName
    description: str
    aliases: tuple[Name, ...] = ()
    protocol: Literal["acp", "acpx", "oracle", "none", "python"]
    version: Exact | None = None
    user: Literal["root", "agent"] = "agent"
    install: Annotated[NodeInstall | PythonInstall, Field(discriminator="runtime")] | None = None
    launch: tuple[str, ...] = ()
    required_env: tuple[Variable, ...] = ()
    env: dict[Variable, Value] = {}
    endpoints: tuple[Endpoint, ...] = ()
    model: Choice | None = None
    effort: Choice | None = None
    credential_files: tuple[BelowHome, ...] = ()
    home_dirs: tuple[BelowHome, ...] = ()
    skills: tuple[str, ...] = ()
    session: SessionTraits = SessionTraits()
    checked: tuple[str, ...] = ()
    source: str = ""
    code: str | None = None
    """`module:object` of an agent that is code of the worker's: a function, or a class of agents."""

    code_root: str = ""
    """Directory of the user in which the module is looked for after the installed ones."""

    runs_inside: bool = True
    """Whether it is a process of the sandbox, which calls its model from there."""

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
        """Whether the engine itself acts, and nobody else."""
        return self.protocol in ("oracle", "none")

    @property
    def takes_model(self) -> bool:
        return self.model is not None

    @property
    def mount_path(self) -> str | None:
        """The directory of its toolbox in every sandbox; None when it has none."""
        return f"{TOOLBOX_ROOT}/{self.directory_name}" if self.install is not None else None

    @property
    def directory_name(self) -> str:
        """Its name and version as one part of a path."""
        return f"{self.name.replace('/', '-')}-{self.version}"


def texts(value: Any) -> Iterator[str]:
    """Every text in a table: keys, values, and those of tables and lists within."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts(inner)
