"""Task queues, and the timeouts and retries of every activity, made from the job's frozen `WorkflowOptions`.

Timeouts and retries of activities are set here; only `work_retries` limits attempts. Retries are for faults of the
engine, not of the work: the failure of an agent or a verifier is not retryable, and reaches the workflow as data. All
attempts together have no time limit by default, because an outage of the server would use it up. They end by the
rollout's deadline, whose clock stops during an outage, or by the number of failures that the activity interceptor
allows (`max_failures`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

from benchflow.contracts.operator_options import WorkflowOptions

SHARED_QUEUE = "benchflow"
"""Task queue of all workflows, and of the activities that may run on any host."""

NAMESPACE = "benchflow"
"""Default Temporal namespace."""

RETENTION = timedelta(days=365)
"""Time for which the namespace of the embedded server retains closed workflows."""


def format_host_queue(host_id: str) -> str:
    """Return the task queue of the activities that use a sandbox of the host `host_id`."""
    return f"benchflow-host-{host_id}"


def get_options() -> WorkflowOptions:
    """Return the frozen options of the running workflow: the attribute `options` of its instance."""
    frozen: WorkflowOptions = workflow.instance().options
    return frozen


def make_shared_options(limit_sec: float | None = None, *, total_sec: float | None = None) -> dict[str, Any]:
    """Return keyword arguments of `workflow.start_activity` for an activity that any host may run.

    Args:
        limit_sec: Seconds of one attempt; `short_limit_sec` by default.
        total_sec: Seconds of all attempts together, an outage included; no limit by default.
    """
    frozen = get_options()
    return {
        "task_queue": SHARED_QUEUE,
        "start_to_close_timeout": timedelta(seconds=limit_sec or frozen.short_limit_sec),
        "schedule_to_close_timeout": timedelta(seconds=total_sec) if total_sec else None,
        "heartbeat_timeout": timedelta(seconds=frozen.heartbeat_timeout_sec),
        "retry_policy": RetryPolicy(
            initial_interval=timedelta(seconds=frozen.retry_initial_sec),
            backoff_coefficient=frozen.retry_backoff,
            maximum_interval=timedelta(seconds=frozen.retry_max_sec),
        ),
        "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    }


def make_host_options(queue: str, limit_sec: float | None = None, *, total_sec: float | None = None) -> dict[str, Any]:
    """Return keyword arguments of `workflow.start_activity` for an activity in a sandbox on one host.

    Args:
        queue: Task queue of the host.
        limit_sec: Seconds of one attempt; `short_limit_sec` by default.
        total_sec: Seconds of all attempts together, an outage included; no limit by default.
    """
    return make_shared_options(limit_sec, total_sec=total_sec) | {
        "task_queue": queue,
        "schedule_to_start_timeout": timedelta(seconds=get_options().host_start_timeout_sec),
    }
