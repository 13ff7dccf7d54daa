"""The options that a job was submitted with are those of all its workflows, for as long as they are open."""

from __future__ import annotations

from support.in_process_worker import InProcessWorker

from benchflow.contracts import temporal_names
from benchflow.jobs import Job
from benchflow.results.summary import read_spec


async def limits_of(job: Job, rollout: str = "") -> set[tuple[float, float]]:
    """Return the heartbeat timeouts, and the longest waits between retries, of all activities of a workflow."""
    handle = job.engine.client.get_workflow_handle(job.id + rollout)
    history = await handle.fetch_history()
    scheduled = [event.activity_task_scheduled_event_attributes for event in history.events]
    return {
        (each.heartbeat_timeout.ToSeconds(), each.retry_policy.maximum_interval.ToTimedelta().total_seconds())
        for each in scheduled
        if each.activity_id
    }


async def test_an_open_workflow_and_what_it_starts_keep_the_options_that_it_began_with(worker: InProcessWorker) -> None:
    worker.options(heartbeat_timeout_sec=77, retry_max_sec=7.5)
    worker.provider.held = True
    job = await worker.submit(repeats=2, concurrency=1)
    await worker.in_turn(1)
    worker.options(heartbeat_timeout_sec=88, retry_max_sec=8.5)
    # The second rollout begins, and both go on, when this process would read other ones.
    worker.provider.release_all()
    results = await worker.results(job)
    assert [result.status for result in results] == ["passed"] * 2
    for workflow in ("", *(result.workflow_id.removeprefix(job.id) for result in results)):
        assert await limits_of(job, workflow) == {(77, 7.5)}


async def test_a_job_that_is_run_again_has_the_options_of_then_and_says_so(worker: InProcessWorker) -> None:
    worker.options(heartbeat_timeout_sec=77)
    job = await worker.submit()
    await worker.results(job)
    worker.options(heartbeat_timeout_sec=88)
    await worker.submit()
    assert read_spec(job.directory).options.heartbeat_timeout_sec == 77
    again = await worker.submit(again=("passed",))
    (result,) = await worker.results(again)
    assert read_spec(job.directory).options.heartbeat_timeout_sec == 88
    assert {limit for limit, _ in await limits_of(again, result.workflow_id.removeprefix(job.id))} == {88}


async def test_no_activity_ends_before_one_of_its_attempts_may(worker: InProcessWorker) -> None:
    """A turn may take for as long as its rollout, and the attempts after an outage as long again."""
    day_sec = 86_400
    job = await worker.submit(deadline_sec=day_sec)
    (result,) = await worker.results(job)
    history = await job.engine.client.get_workflow_handle(result.workflow_id).fetch_history()
    scheduled = [event.activity_task_scheduled_event_attributes for event in history.events]
    limits = {
        each.activity_type.name: (each.start_to_close_timeout.ToSeconds(), each.schedule_to_close_timeout.ToSeconds())
        for each in scheduled
        if each.activity_id
    }
    assert {
        temporal_names.PROVISION,
        temporal_names.EXECUTE,
        temporal_names.VERIFY,
        temporal_names.REPORT,
        temporal_names.TEARDOWN,
    } <= limits.keys()
    assert {name for name, (attempt_sec, total_sec) in limits.items() if total_sec < attempt_sec} == set()
    attempt_sec, total_sec = limits[temporal_names.EXECUTE]
    assert attempt_sec >= day_sec and total_sec > attempt_sec + day_sec
