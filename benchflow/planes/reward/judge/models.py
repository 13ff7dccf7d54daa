"""Resolve which model judges, at which endpoint, and which variable holds its key. Nothing is asked here."""

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
"""Providers of models that are known by their names alone."""

_NAME_IT = "name it as openai/<model> or anthropic/<model>, by whichever interface it has: --judge-model"
_INSTALL = "pip install 'benchflow[judge]'"


@dataclass(frozen=True)
class JudgeModel:
    """A model at its endpoint."""

    provider: Provider
    """Provider whose API the endpoint has."""

    name: str
    """Name of the model, without the provider."""

    base_url: str
    """Base URL without a slash at its end, as the provider's own client expects it."""

    def __str__(self) -> str:
        """Return `provider/model`."""
        return f"{self.provider}/{self.name}"

    @property
    def endpoint(self) -> str:
        """Return the base URL without user, password and query, for transcripts and errors."""
        url = urlsplit(self.base_url)
        return url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="").geturl()

    @property
    def is_official(self) -> bool:
        """Return whether the endpoint is the provider's own."""
        return self.base_url == _OFFICIAL[self.provider]


def resolve_model(settings: JudgeSettings, wanted: str | None = None) -> JudgeModel:
    """Return the model that judges, with its endpoint.

    Args:
        settings: Settings of the job, whose model is used first.
        wanted: Model that the task names, used if the settings name none.

    Raises:
        JudgeError: No model is named, its provider is not known, or the base URL is invalid.
    """
    named = settings.model or wanted
    if not named:
        raise JudgeError(
            "no model is named to judge",
            key="judge.model",
            remedy="name one in the rubric's `judge` table, or with --judge-model openai/… or anthropic/…",
        )
    provider, name = _find_provider(named)
    base_url = (settings.base_url or _OFFICIAL[provider]).rstrip("/")
    if not is_http_address(base_url):
        raise JudgeError(
            f"{settings.base_url!r} is not an address",
            key="judge.base_url",
            remedy="write http://host:port/v1: --judge-base-url",
        )
    if provider == "anthropic":
        base_url = base_url.removesuffix("/v1")  # the client adds it
    return JudgeModel(provider, name, base_url)


def _find_provider(named: str) -> tuple[Provider, str]:
    """Return (provider, name) of a model. Raise `JudgeError` if the provider is not known."""
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


def find_credential(settings: JudgeSettings, wanted: str | None = None) -> str:
    """Return the name of the variable that holds the judge's key.

    Args:
        settings: Settings of the job; a credential in them is returned as it is.
        wanted: Model that the task names.

    Raises:
        JudgeError: The model can't be resolved.
    """
    return settings.credential or _CREDENTIALS[resolve_model(settings, wanted).provider]


def require_library() -> None:
    """Raise `JudgeError` if the package that asks models is not installed."""
    if importlib.util.find_spec("pydantic_ai") is None:
        raise make_library_error()


def make_library_error() -> JudgeError:
    """Return the error for the missing package."""
    return JudgeError("judges need a package that is not installed: pydantic-ai", remedy=_INSTALL)
