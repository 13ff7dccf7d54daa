"""Jobs on the client's side: planned from a configuration, submitted or attached to, watched, controlled."""

from benchflow.jobs.engine_connection import Engine
from benchflow.jobs.identity import differences, pending_indices, spec_digest
from benchflow.jobs.job_client import Job, open_job
from benchflow.jobs.job_plan import JobPlan, default_name, plan_job
from benchflow.jobs.start import submit

__all__ = [
    "Engine",
    "Job",
    "JobPlan",
    "default_name",
    "differences",
    "open_job",
    "pending_indices",
    "plan_job",
    "spec_digest",
    "submit",
]
