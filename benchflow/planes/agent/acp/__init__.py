"""Agents that speak the Agent Client Protocol, and whose turn survives the death of whoever talks to them.

An agent's stdio belongs to files (see `pump.mjs` and `wire`). A worker appends requests under ids that it would choose
again, and follows what the agent says from a byte offset; after a crash the next worker reads the same files, sends
nothing that is there already, and goes on.
"""
