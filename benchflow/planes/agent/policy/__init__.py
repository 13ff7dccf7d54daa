"""The agent `policy`: the engine's own tool loop, for a model that a trainer serves.

A toolbox's Node runs `policy.mjs`; `mcp.mjs`, beside it, is its client of MCP servers.

It represents the model alone: nothing summarises, makes extra calls or streams, and a conversation only ever grows, so
that a trainer sees exactly the model's input.
"""
