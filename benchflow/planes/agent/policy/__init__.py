"""The agent `policy`: our own tool loop, for a model that a trainer serves.

A toolbox's Node runs `policy.mjs`; `mcp.mjs`, which lies beside it, is its way to MCP servers.

It stands for the model alone: nothing summarises, asks on the side or streams, and a conversation only ever grows, so
that what a trainer sees is what the model was asked.
"""
