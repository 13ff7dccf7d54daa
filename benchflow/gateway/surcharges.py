"""Surcharges: parts of a request that cost more than its tokens and that no usage reports.

Where cost is limited, such a request is refused: faster or cheaper service, other models, and tools that the endpoint
runs for a fee. The tables list what is known to cost nothing more, so that a new tool of an endpoint is refused until
its price has been looked up.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchflow.contracts.gateway import Api
from benchflow.llm_apis.json_values import Document, tables

_ORDINARY: dict[str, frozenset[str]] = {
    "service_tier": frozenset({"auto", "default", "standard", "standard_only"}),
    "serviceTier": frozenset({"standard"}),
    "speed": frozenset({"standard"}),
    "inference_geo": frozenset({"global"}),
    # Routers of models: models that may answer instead of the requested one.
    "models": frozenset(),
    "fallbacks": frozenset(),
    "plugins": frozenset(),
    # Web search of chat completions, and a prompt that is stored at the endpoint, with tools of its own.
    "web_search_options": frozenset(),
    "prompt": frozenset(),
}
"""Values of keys of a body that cost nothing more. An absent key, or null, requests nothing."""

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
"""Tools that an agent runs itself, that cost no more than their tokens, or whose uses are reported; `*`: any version.
"""


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
        # Some clients offer further tools among the messages.
        for item in tables(body.get("input")):
            offered += tables(item.get("tools"))
    for tool in offered:
        if api == "gemini":
            yield from tool
            continue
        # Anthropic's tools without a type are the agent's own.
        yield str(tool.get("type", "custom" if api == "anthropic-messages" else ""))
        yield from (str(inner.get("type", "")) for inner in tables(tool.get("tools")))


def _is_priced(api: Api, kind: str) -> bool:
    return any(kind.startswith(known[:-1]) if known.endswith("*") else kind == known for known in _PRICED_TOOLS[api])
