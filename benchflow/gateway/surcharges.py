"""Surcharges: what a request may ask for that costs more than its tokens and that no usage tells.

Where money is limited, such a request is refused: faster or cheaper service, other models, and tools that the endpoint
carries out for a fee. The tables name what is known to cost nothing more, so that a new tool of an endpoint is refused
until somebody has looked up its price.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchflow.contracts.gateway import Api
from benchflow.gateway.dialects import Document, tables

_ORDINARY: dict[str, frozenset[str]] = {
    "service_tier": frozenset({"auto", "default", "standard", "standard_only"}),
    "serviceTier": frozenset({"standard"}),
    "speed": frozenset({"standard"}),
    "inference_geo": frozenset({"global"}),
    # Routers of models: what is asked instead of the model.
    "models": frozenset(),
    "fallbacks": frozenset(),
    "plugins": frozenset(),
    # Chat's web search, and a request that is stored at the endpoint, with tools of its own.
    "web_search_options": frozenset(),
    "prompt": frozenset(),
}
"""The values of keys of a body that cost nothing more. Without the key, or with null, nothing is asked for."""

_PRICED_TOOLS: dict[Api, tuple[str, ...]] = {
    "openai-chat": ("function", "custom"),
    "openai-responses": (
        *("function", "custom", "local_shell", "apply_patch", "computer", "computer_use_preview", "mcp", "namespace"),
        *("tool_search", "web_search"),
    ),
    "anthropic-messages": (
        *("custom", "bash_*", "text_editor_*", "computer_*", "memory_*", "web_fetch_*", "mcp_toolset"),
        *("tool_search_tool_*", "web_search_20*"),
    ),
    "gemini": (
        *("functionDeclarations", "function_declarations", "codeExecution", "code_execution"),
        *("urlContext", "url_context", "computerUse", "computer_use"),
    ),
}
"""Tools that an agent carries out, that cost no more than their tokens, or whose uses are told; `*`: any version."""


def find_surcharge(api: Api, body: Document) -> str | None:
    """Return the first part of a call's body that may cost more than its tokens; None for none.

    Args:
        api: The call's wire format.
        body: The body, as the agent sent it.
    """
    for key, values in _ORDINARY.items():
        value = body.get(key)
        if value is not None and not (isinstance(value, str) and value in values):
            return f"{key}:{value}" if isinstance(value, str) else key
    return next((f"tools:{kind}" for kind in _tools(api, body) if not _is_priced(api, kind)), None)


def _tools(api: Api, body: Document) -> Iterator[str]:
    """Yield the kind of each tool that a body offers."""
    offered = tables(body.get("tools"))
    if api == "openai-responses":
        # Some clients offer further tools between the messages.
        for item in tables(body.get("input")):
            offered += tables(item.get("tools"))
    for tool in offered:
        if api == "gemini":
            yield from tool
            continue
        # Anthropic's are an agent's own where nothing else is said.
        yield str(tool.get("type", "custom" if api == "anthropic-messages" else ""))
        yield from (str(inner.get("type", "")) for inner in tables(tool.get("tools")))


def _is_priced(api: Api, kind: str) -> bool:
    return any(kind.startswith(known[:-1]) if known.endswith("*") else kind == known for known in _PRICED_TOOLS[api])
