"""Agents that speak the Agent Client Protocol, and whose turns survive the death of the worker that drives them.

An agent's stdio is held by files (see `pump.mjs` and `wire`). A worker appends requests under deterministic ids, and
follows the agent's output from a byte offset; after a crash the next worker reads the same files, does not resend
anything, and continues.
"""
