"""A rollout on this host: its task, secrets, sandbox, world and model, and what activities do with them.

`HostedRollout` is the way in; `Host` is what the rollouts of one worker process share.
"""
