"""The model gateway: one process per host through which every agent reaches its model.

It forwards calls byte for byte and unbuffered, without translation between dialects. By a call's token it identifies
the rollout, and replaces the token by the real key. It records, meters and limits calls, retries while an upstream is
overloaded, reports when no call is in flight, holds new ones back, and answers from a record where a rollout is
replayed. `benchflow.contracts.gateway` has the data, `client` is the engine's client, `process` starts and stops the
process.
"""
