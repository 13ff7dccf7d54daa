"""Which model judges, where it is reached, and which variable holds its key. Nothing is asked here."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from benchflow.addresses import is_http_address
from benchflow.contracts.reward import JudgeSettings
from benchflow.errors import JudgeError

Provider = Literal["openai", "anthropic"]

_OFFICIAL: dict[Provider, str] = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
_CREDENTIALS: dict[Provider, str] = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_FAMILIES: tuple[tuple[re.Pattern[str], Provider], ...] = (
    (re.compile(r"claude-"), "anthropic"),
    (re.compile(r"gpt-|o\d"), "openai"),
)
"""Whose models are known by their names alone."""

_NAME_IT = "name it as openai/<model> or anthropic/<model>, by whichever interface it has: --judge-model"
_INSTALL = "pip install 'benchflow[judge]'"


@dataclass(frozen=True)
class JudgeModel:
    """A model and its endpoint. base_url: without a slash at its end, as the interface's own clients take it."""

    provider: Provider
    name: str
    base_url: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.name}"

    @property
    def endpoint(self) -> str:
        """The URL without a user, a password and a query: it is written down."""
        url = urlsplit(self.base_url)
        return url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="").geturl()

    @property
    def is_official(self) -> bool:
        return self.base_url == _OFFICIAL[self.provider]


def judge_model(settings: JudgeSettings, wanted: str | None = None) -> JudgeModel:
    """The model that judges: the settings' one, else the one that the task wants. Raises `JudgeError`."""
    named = settings.model or wanted
    if not named:
        raise JudgeError(
            "no model is named to judge",
            key="judge.model",
            remedy="name one in the rubric's `judge` table, or with --judge-model openai/… or anthropic/…",
        )
    provider, name = _provider_of(named)
    base_url = (settings.base_url or _OFFICIAL[provider]).rstrip("/")
    if not is_http_address(base_url):
        raise JudgeError(
            f"{settings.base_url!r} is not an address",
            key="judge.base_url",
            remedy="write http://host:port/v1: --judge-base-url",
        )
    if provider == "anthropic":
        base_url = base_url.removesuffix("/v1")  # its clients add that themselves
    return JudgeModel(provider, name, base_url)


def _provider_of(named: str) -> tuple[Provider, str]:
    prefix, slash, name = named.partition("/")
    if slash and name:
        for provider in _OFFICIAL:
            if prefix == provider:
                return provider, name
        raise JudgeError(f"{prefix!r} is not an interface that judges have", key="judge.model", remedy=_NAME_IT)
    family = next((provider for pattern, provider in _FAMILIES if pattern.match(named)), None)
    if family is None:
        raise JudgeError(f"it is not known who serves the model {named!r}", key="judge.model", remedy=_NAME_IT)
    return family, named


def credential_of(settings: JudgeSettings, wanted: str | None = None) -> str:
    """The variable that holds the judge's key. Raises `JudgeError` for a model that is none."""
    return settings.credential or _CREDENTIALS[judge_model(settings, wanted).provider]


def require_library() -> None:
    """Raises `JudgeError` when the package that asks models is not installed."""
    if importlib.util.find_spec("pydantic_ai") is None:
        raise missing_library()


def missing_library() -> JudgeError:
    return JudgeError("judges need a package that is not installed: pydantic-ai", remedy=_INSTALL)
