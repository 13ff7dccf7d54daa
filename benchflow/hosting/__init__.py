"""A rollout on this host: its task, secrets, sandbox, world and model, and the operations of its activities on them.

Start with `HostedRollout`. `Host` is the state that all rollouts of one worker process share.
"""
