"""Values for the fields of Harbor's task models. Runs in Harbor's environment, and imports nothing of the engine.

A field that is not named here is drawn from its type, and is in `Drawing.unknown`: it is new in the installed version
of Harbor, and somebody has to say what a valid value of it is, or that no sandbox of one machine can carry it out.
"""

from __future__ import annotations

import random
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel

SKIP = object()
"""What a value is where the field is to be left out."""

ODD_TEXTS = ("plain", "two words", 'it\'s "quoted"', "ünïcödé ✓", "a=b;c|d", "trailing ", "$HOME", "100%", "")
ENV_VALUES = (
    *ODD_TEXTS,
    "${PEER_SET}",
    "${PEER_SET:-unused}",
    "${PEER_UNSET:-default}",
    "${PEER_UNSET:-two words}",
    "${PEER_UNSET:-}",
    "${PEER_EMPTY:-instead}",
    "before ${PEER_SET} after",
)
"""Literal values and templates. Whoever runs the tasks sets PEER_SET, and PEER_EMPTY to nothing, but not PEER_UNSET."""

USERS = ("root", 0, "nobody", "daemon", 1000)
"""Users of any Debian, and one that has no name."""


@dataclass
class Drawing:
    """How the tasks of one seed are drawn. random: of the task that is drawn now.

    seen: all fields that were come by; drawn: those that have had a value; unknown: those that are not named here.
    step: the number of the step whose fields are drawn, None for the task's own.
    """

    random: random.Random
    seen: set[str] = field(default_factory=set)
    drawn: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    step: int | None = None

    def wants(self, key: str) -> bool:
        """Return whether to set an optional field: most likely one that no task has had yet."""
        return self.random.random() < (0.35 if key in self.drawn else 0.85)

    def choose(self, *values: Any) -> Any:
        return self.random.choice(values)

    def model(self, model: type[BaseModel]) -> dict[str, Any]:
        """Return a table with values for the model's fields, as task.toml would have it."""
        table: dict[str, Any] = {}
        # Not the fields' own annotations: those may name, as a text, a model that is defined below.
        types_of = typing.get_type_hints(model)
        for name, info in model.model_fields.items():
            key = f"{model.__name__}.{name}"
            self.seen.add(key)
            if not info.is_required() and not self.wants(key):
                continue
            if key in KNOWN:
                value = KNOWN[key](self, table)
            else:
                value = self.of_type(types_of[name])
                if not is_model(types_of[name]):
                    self.unknown.add(key)
            if value is not SKIP:
                self.drawn.add(key)
                table[name] = value
        return table

    def of_type(self, annotation: Any) -> Any:
        """Return a value of a type alone."""
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in (typing.Union, types.UnionType):
            return self.of_type(self.random.choice([kind for kind in arguments if kind is not type(None)]))
        if origin is Literal:
            return self.random.choice(arguments)
        if origin is list:
            return [self.of_type(arguments[0]) for _ in range(self.random.randint(0, 2))]
        if origin is dict:
            return {f"KEY_{number}": self.of_type(arguments[1]) for number in range(self.random.randint(0, 2))}
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return self.model(annotation)
        if isinstance(annotation, type) and issubclass(annotation, Enum):
            return self.random.choice([member.value for member in annotation])
        simple: dict[Any, Callable[[], Any]] = {
            bool: lambda: self.random.random() < 0.5,
            int: lambda: self.random.randint(1, 4),
            float: lambda: round(self.random.uniform(1, 90), 2),
            str: lambda: self.choose("word", "two words", "ünï"),
            Any: lambda: self.choose("free", 3, 0.5, True, ["a", "b"], {"deep": {"er": 1}}),
        }
        return simple[annotation]()


def is_model(annotation: Any) -> bool:
    """Return whether a field holds a model of its own, or a list of one: what is in it is drawn field by field."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    return any(is_model(argument) for argument in typing.get_args(annotation))


def env_of(prefix: str) -> Callable[[Drawing, dict[str, Any]], Any]:
    """Return a drawing of variables whose names begin so: which place sets one is seen by its name, or by who wins."""

    def draw(drawing: Drawing, table: dict[str, Any]) -> dict[str, str]:
        names = drawing.random.sample((f"{prefix}_A", f"{prefix}_B", "SHARED"), drawing.random.randint(1, 3))
        return {name: drawing.random.choice(ENV_VALUES) for name in names}

    return draw


def one_of(*values: Any) -> Callable[[Drawing, dict[str, Any]], Any]:
    return lambda drawing, table: drawing.random.choice(values)


def only_with(other: str, value: Any) -> Callable[[Drawing, dict[str, Any]], Any]:
    """Return a value that is legal only beside another field, and otherwise nothing."""
    return lambda drawing, table: value if other in table else SKIP


def left_out(drawing: Drawing, table: dict[str, Any]) -> Any:
    """Leave to `generate.py` what decides about the whole task, or to `BEYOND_ONE_MACHINE` what must be refused."""
    return SKIP


def step_names(drawing: Drawing, table: dict[str, Any]) -> str:
    # Any directory's name, but mostly a plain one: of a task of which one is refused, nothing else is compared.
    plain = drawing.choose("make", "check.it", "x-1_y") + f"-{drawing.step}"
    return f"ünï {plain}" if drawing.random.random() < 0.05 else plain


def healthy(drawing: Drawing, table: dict[str, Any]) -> str:
    """Return a command that succeeds, now or the third time that it is run."""
    third = 'n=$(cat /tmp/tries 2>/dev/null || echo 0); echo $((n + 1)) > /tmp/tries; [ "$n" -ge 2 ]'
    return drawing.choose("true", "test -d /", third)


def min_reward(drawing: Drawing, table: dict[str, Any]) -> Any:
    exact = round(drawing.random.random(), 2)
    return drawing.choose(0.0, 0, exact, exact, 1.0, {"reward": exact}, {"cwd": 1, "reward": 0.0}, {"absent": 0.0})


def verifier_environment(drawing: Drawing, table: dict[str, Any]) -> Any:
    """Return what a verifier's own sandbox is made of, for some tasks of one step; the others share the agent's."""
    if drawing.step is not None or (drawing.random.random() < 0.6 and "VerifierConfig.environment" in drawing.drawn):
        return SKIP
    table.pop("environment_mode", None)
    from harbor.models.task.config import EnvironmentConfig

    found = drawing.model(EnvironmentConfig)
    # Nothing acts there that could use one.
    found.pop("mcp_servers", None)
    return found


def mcp_servers(drawing: Drawing, table: dict[str, Any]) -> list[Any]:
    from harbor.models.task.config import MCPServerConfig

    server = drawing.model(MCPServerConfig)
    if server.get("transport") == "stdio":
        server["command"] = "true"
        server.pop("headers", None)
        drawing.drawn.add("MCPServerConfig.command")
    else:
        server["url"] = "http://127.0.0.1:1/mcp"
        drawing.drawn.add("MCPServerConfig.url")
    return [server]


def artifact(drawing: Drawing, table: dict[str, Any]) -> list[Any]:
    from harbor.models.task.config import ArtifactConfig

    entries: list[Any] = [drawing.choose("/tmp/solved", "/tmp/absent", "/logs/artifacts", "/etc/debian_version")]
    if drawing.wants("ArtifactConfig.source"):
        entries.append(drawing.model(ArtifactConfig))
    return entries


Draw = Callable[[Drawing, dict[str, Any]], Any]

KNOWN: dict[str, Draw] = {
    "Author.name": one_of("A. Writer", "Ünï Cödé"),
    "Author.email": one_of("writer@example.org"),
    "PackageInfo.name": one_of("org/name", "Some.Org/a-task_2"),
    "PackageInfo.version": one_of("1.0.0", "latest"),
    "PackageInfo.description": one_of(*ODD_TEXTS),
    "PackageInfo.keywords": one_of([], ["one", "two words"]),
    "SolutionConfig.env": env_of("SOLUTION"),
    "AgentConfig.timeout_sec": one_of(60, 90.5, 300.0),
    "AgentConfig.user": one_of(*USERS),
    "AgentConfig.network_mode": one_of("public"),
    "AgentConfig.allowed_hosts": only_with("network_mode", []),
    "HealthcheckConfig.command": healthy,
    "HealthcheckConfig.interval_sec": one_of(0.1, 1),
    "HealthcheckConfig.timeout_sec": one_of(5, 10.5),
    "HealthcheckConfig.start_period_sec": one_of(0, 0.5, 2.0),
    "HealthcheckConfig.start_interval_sec": one_of(0.1, 0.5),
    "HealthcheckConfig.retries": one_of(3, 5),
    "EnvironmentConfig.network_mode": one_of("public"),
    "EnvironmentConfig.allowed_hosts": one_of([]),
    "EnvironmentConfig.build_timeout_sec": one_of(300, 600.0),
    "EnvironmentConfig.os": one_of("linux", "Linux"),
    "EnvironmentConfig.cpus": one_of(1, 2, 0.5, 2.0),
    "EnvironmentConfig.memory_mb": one_of(512, 1024),
    "EnvironmentConfig.storage_mb": one_of(1024, 10240),
    "EnvironmentConfig.gpus": one_of(0),
    "EnvironmentConfig.gpu_types": one_of([], ["H100"]),
    "EnvironmentConfig.env": env_of("ENVIRONMENT"),
    "EnvironmentConfig.workdir": one_of("/work", "/work/deep", "/", "/tmp", "/app", "/with space"),
    "EnvironmentConfig.docker_image": left_out,
    "EnvironmentConfig.tpu": left_out,
    "EnvironmentConfig.skills_dir": left_out,
    "EnvironmentConfig.mcp_servers": mcp_servers,
    "EnvironmentConfig.allow_internet": one_of(True),
    "VerifierConfig.timeout_sec": one_of(120, 600.0),
    "VerifierConfig.env": env_of("VERIFIER"),
    "VerifierConfig.user": one_of(*USERS),
    "VerifierConfig.network_mode": one_of("public"),
    "VerifierConfig.allowed_hosts": only_with("network_mode", []),
    "VerifierConfig.environment_mode": one_of("shared"),
    "VerifierConfig.environment": verifier_environment,
    "VerifierCollectConfig.command": one_of("id -u > /tmp/collected", "pwd > /tmp/collected", "exit 3"),
    "VerifierCollectConfig.service": one_of("main"),
    "VerifierCollectConfig.timeout_sec": one_of(20, 30.5),
    "VerifierCollectConfig.user": one_of(*USERS),
    "MCPServerConfig.name": one_of("tools"),
    "MCPServerConfig.transport": one_of("sse", "streamable-http", "http", "stdio"),
    "MCPServerConfig.url": one_of("http://127.0.0.1:1/mcp"),
    "MCPServerConfig.command": one_of("true"),
    "MCPServerConfig.args": one_of([], ["--flag"]),
    "MCPServerConfig.headers": one_of({"X-Kind": "peer"}),
    "ArtifactConfig.source": one_of("/tmp/solved", "/logs/artifacts", "/tmp/absent"),
    "ArtifactConfig.destination": one_of("kept/it", "other"),
    "ArtifactConfig.exclude": one_of([], ["*.log"]),
    "ArtifactConfig.service": one_of("main"),
    "StepConfig.name": step_names,
    "StepConfig.min_reward": min_reward,
    "StepConfig.artifacts": artifact,
    "TaskConfig.schema_version": one_of("1.0", "1.1", "1.2", "1.3", "1.4"),
    "TaskConfig.metadata": one_of({}, {"difficulty": "easy", "tags": ["a"], "nested": {"n": 1}}),
    "TaskConfig.source": one_of("a-dataset"),
    "TaskConfig.artifacts": artifact,
    "TaskConfig.steps": left_out,
    "TaskConfig.multi_step_reward_strategy": left_out,
}
"""Values by `Model.field`, of which each sandbox of one machine can carry out all."""

BEYOND_ONE_MACHINE: dict[str, dict[str, Any]] = {
    "EnvironmentConfig.os": {"environment": {"os": "windows"}},
    "EnvironmentConfig.gpus": {"environment": {"gpus": 1}},
    "EnvironmentConfig.tpu": {"environment": {"tpu": {"type": "v6e", "topology": "2x2"}}},
    "EnvironmentConfig.allowed_hosts": {
        "environment": {"network_mode": "allowlist", "allowed_hosts": ["example.org", "*.example.org", "192.0.2.0/24"]}
    },
    "EnvironmentConfig.skills_dir": {"environment": {"skills_dir": "/skills"}},
    "AgentConfig.network_mode": {"agent": {"network_mode": "no-network"}},
    "AgentConfig.allowed_hosts": {"agent": {"network_mode": "allowlist", "allowed_hosts": ["example.org"]}},
    "VerifierConfig.network_mode": {"verifier": {"network_mode": "no-network"}},
    "VerifierConfig.allowed_hosts": {"verifier": {"network_mode": "allowlist", "allowed_hosts": ["example.org"]}},
    "VerifierCollectConfig.service": {"verifier": {"collect": [{"command": "true", "service": "database"}]}},
    "ArtifactConfig.service": {"artifacts": [{"source": "/data", "service": "database"}]},
}
"""Tasks that ask for what one machine, or one container, does not have: each has to be refused by name."""
