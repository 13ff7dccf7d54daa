"""Queues, and the options of every activity, made from the job's frozen `WorkflowOptions`.

Workflows and workers read this table; nothing else sets a timeout or a retry. Retries of activities are for the
engine's own trouble. The time of all attempts together has no limit, because an outage of the server would use it up: a
rollout's deadline, which stands still meanwhile, and the boundary's cap of failures end them. A failure of the work
itself is not retryable and goes to the workflow as data.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

from benchflow.contracts.options import WorkflowOptions

SHARED_QUEUE = "benchflow"
"""Workflows, and activities that may run on any host."""

NAMESPACE = "benchflow"
RETENTION = timedelta(days=365)


def host_queue(host_id: str) -> str:
    """Return the task queue of all activities that touch a sandbox of this host."""
    return f"benchflow-host-{host_id}"


def current() -> WorkflowOptions:
    """Return the options that the running workflow was started with: the attribute `options` of its instance."""
    frozen: WorkflowOptions = workflow.instance().options
    return frozen


def shared(limit_sec: float | None = None, *, total_sec: float | None = None) -> dict[str, Any]:
    """Return the options of an activity that any host may run, and that ends within `limit_sec`.

    Args:
        limit_sec: Seconds of one attempt, `short_limit_sec` by default.
        total_sec: Seconds of all attempts together, an outage included; no limit by default.
    """
    frozen = current()
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


def on_host(queue: str, limit_sec: float | None = None, *, total_sec: float | None = None) -> dict[str, Any]:
    """Return the options of an activity that works in a sandbox on the host of `queue`; arguments as in `shared`."""
    return shared(limit_sec, total_sec=total_sec) | {
        "task_queue": queue,
        "schedule_to_start_timeout": timedelta(seconds=current().host_start_timeout_sec),
    }
