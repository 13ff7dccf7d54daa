"""What we test with, for benchmark authors too: a scripted model, a demo agent, a sandbox that does nothing, and the
conformance tests that every sandbox provider, and every environment, passes.

Importing this package needs nothing beyond BenchFlow itself; the scripted model's server needs the extra `testing`.
`docs/testing.md` shows how to use each.
"""
