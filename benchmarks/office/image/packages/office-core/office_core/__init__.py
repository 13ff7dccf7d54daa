"""What the five services of the office world share: server, store, action log, and the worlds they are seeded from.

A service is a table of operations over one SQLite database (`service`). The same table is dispatched as HTTP routes
(`application`, `server`), described as OpenAPI (`openapi`), and offered as MCP tools (`mcp`). Only the standard library
is used, and of that as little as possible: five of these start in every rollout.
"""
