"""The model gateway: one process a host through which every agent reaches its model.

It passes calls on, byte for byte and unbuffered, without translating between dialects; it knows by its token whose
call it is, puts the real key in, records, meters and limits, keeps the agent waiting while an upstream is overloaded,
knows when no call is in flight, holds new ones back, and answers from a record where a rollout is replayed.
`benchflow.contracts.gateway` has the data, `client` is how the engine talks to it, `process` how it is started.
"""
