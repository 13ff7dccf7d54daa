"""Test tools for this project and for authors of extensions.

A scripted model, a demo agent, a no-op sandbox, and conformance suites for sandbox providers, agents, environments and
reward functions.

Importing this package needs nothing beyond BenchFlow itself; the scripted model's server needs the extra `testing`.
`docs/testing.md` shows how to use each.
"""
