"""The names by which workflows, activities and clients call each other, and the searchable attributes.

They are part of every recorded history: a name is added, never changed.
"""

from __future__ import annotations

JOB_WORKFLOW = "JobWorkflow"
ROLLOUT_WORKFLOW = "RolloutWorkflow"
PREFLIGHT_WORKFLOW = "PreflightWorkflow"

# Activities of a rollout, one a phase.
PLAN = "plan"
PROVISION = "provision"
WAIT_FOR_SLOT = "wait_for_slot"
READINESS = "readiness"
CONNECT = "connect"
EXECUTE = "execute"
VERIFY = "verify"
REPORT = "report"
TEARDOWN = "teardown"
CHECKPOINT = "checkpoint"
RELEASE_CHECKPOINT = "release_checkpoint"
WRITE_TREE = "write_tree"
DECIDE = "decide"
AGGREGATE = "aggregate"
UNDO = "undo"
HOST_STATUS = "host_status"
REPORT_WITHOUT_SANDBOX = "report_without_sandbox"
RESCORE = "rescore"
TRY_WORLD = "try_world"
RETAIN = "retain"
RECALL = "recall"

# Activities of a job.
NAME_ROLLOUTS = "name_rollouts"
ROLLOUT_STATES = "rollout_states"
REPORT_LOST = "report_lost"
FINISH_JOB = "finish_job"
PREFLIGHT = "preflight"

# Signals, updates, queries.
ROLLOUT_DONE = "rollout_done"
PAUSE = "pause"
RESUME = "resume"
SET_CONCURRENCY = "set_concurrency"
CANCEL_ROLLOUT = "cancel_rollout"
DECIDE_TO_CONTINUE = "decide_to_continue"
SLOTS = "slots"
SLOTS_GRANTED = "slots_granted"
ANSWER = "answer"
SOFT_VERIFY = "soft_verify"
RESTORE = "restore"
TREE = "tree"
PROGRESS = "progress"

# Search attributes: Keyword, but for the reward, which is a Double.
ATTR_JOB = "BenchflowJob"
ATTR_TASK = "BenchflowTask"
ATTR_AGENT = "BenchflowAgent"
ATTR_MODEL = "BenchflowModel"
ATTR_PHASE = "BenchflowPhase"
ATTR_REWARD = "BenchflowReward"
KEYWORD_ATTRIBUTES = (ATTR_JOB, ATTR_TASK, ATTR_AGENT, ATTR_MODEL, ATTR_PHASE)
DOUBLE_ATTRIBUTES = (ATTR_REWARD,)
