"""What an agent is told when it starts: model, endpoint and key in the words of each agent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchflow.errors import ConfigError
from benchflow.planes.agent.agent_settings import AgentSettings, list_credentials, make_settings
from benchflow.planes.agent.registry import find_agent

ACP = ["claude", "codex", "gemini", "openclaw", "opencode", "openhands", "pi"]
URL = "http://gateway:9/v1"


def told(name: str, **wanted: Any) -> AgentSettings:
    return make_settings(find_agent(name), home="/home/agent", workspace="/app", **wanted)


@pytest.mark.parametrize("name", ACP)
def test_an_endpoint_of_our_own_reaches_every_agent(name: str) -> None:
    settings = told(name, model="scripted-1", base_url=URL, api_key="sk-canary")
    everything = json.dumps([settings.env, settings.files, settings.argv])
    assert URL in everything
    assert "scripted-1" in everything
    assert "sk-canary" in settings.env.values()


@pytest.mark.parametrize("name", ACP)
def test_a_key_reaches_no_file_and_no_argument(name: str) -> None:
    settings = told(name, model="scripted-1", base_url=URL, api_key="sk-canary")
    assert "sk-canary" not in json.dumps([settings.files, settings.argv, settings.model])
    assert "sk-canary" not in repr(settings)


@pytest.mark.parametrize("name", ACP)
def test_without_a_model_nothing_is_said_of_one(name: str) -> None:
    settings = told(name)
    assert settings.files == {}
    assert settings.argv == ()
    assert settings.model is None
    assert "{" not in "".join(value for value in settings.env.values() if not value.startswith("{"))


def test_claude_is_told_by_variables() -> None:
    settings = told("claude", model="anthropic/some-model", api_key="k")
    assert settings.env["ANTHROPIC_MODEL"] == "some-model"
    assert "ANTHROPIC_BASE_URL" not in settings.env


def test_codex_is_told_by_a_configuration_in_one_variable() -> None:
    config = json.loads(told("codex", model="openai/m", base_url=URL, effort="high").env["CODEX_CONFIG"])
    assert config["model"] == "m"
    assert config["model_reasoning_effort"] == "high"
    assert config["model_providers"][config["model_provider"]]["base_url"] == URL


def test_codex_is_told_no_effort_that_nobody_asked_for() -> None:
    assert "model_reasoning_effort" not in told("codex", model="m", base_url=URL).env["CODEX_CONFIG"]


def test_gemini_is_told_by_an_argument() -> None:
    assert told("gemini", model="gemini/m").argv == ("--model=m",)


def test_opencode_is_told_by_a_file() -> None:
    settings = told("opencode", model="openai/org/m", base_url=URL)
    config = json.loads(settings.files[".config/opencode/opencode.json"])
    assert config["model"] == settings.model == "benchflow/org/m"
    assert config["provider"]["benchflow"]["models"] == {"org/m": {}}
    assert config["provider"]["benchflow"]["options"]["apiKey"] == "{env:OPENAI_API_KEY}"


def test_the_provider_decides_which_endpoint_is_meant() -> None:
    assert told("opencode", model="anthropic/m", api_key="k").env["ANTHROPIC_API_KEY"] == "k"
    assert list_credentials(find_agent("opencode"), "anthropic/m", None) == ("ANTHROPIC_API_KEY",)
    assert list_credentials(find_agent("opencode"), "openai/m", None) == ("OPENAI_API_KEY",)


def test_with_an_endpoint_of_our_own_a_slash_belongs_to_the_model() -> None:
    files = told("openhands", model="meta/some-model", base_url=URL).files
    assert json.loads(files[".openhands/agent_settings.json"])["llm"]["model"] == "openai/meta/some-model"


def test_an_unknown_provider_without_an_endpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match="'meta'") as caught:
        told("opencode", model="meta/some-model")
    assert "--base-url" in str(caught.value.remedy)


def test_an_unknown_effort_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        told("claude", model="m", effort="heroic")
    assert "xhigh" in str(caught.value.remedy)


def test_an_agent_without_levels_of_effort_is_given_none() -> None:
    with pytest.raises(ConfigError, match="no levels"):
        told("gemini", model="m", effort="high")


def test_a_toolbox_may_lie_elsewhere() -> None:
    assert told("pi").env["PI_ACP_PI_COMMAND"] == "/opt/benchflow/agents/pi-acp-0.0.34/bin/pi"
    assert told("pi", toolbox="/tmp/box").env["PI_ACP_PI_COMMAND"] == "/tmp/box/bin/pi"


def test_skills_are_where_the_agent_looks() -> None:
    assert told("openclaw").skills == ("/home/agent/.claude/skills", "/app/skills")
