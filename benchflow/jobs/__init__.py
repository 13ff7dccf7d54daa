"""Jobs on the client's side: planned from a configuration, submitted or attached to, watched, controlled."""

from benchflow.jobs.engine_connection import Engine
from benchflow.jobs.identity import compute_spec_digest, list_differences, list_pending_indices
from benchflow.jobs.job_client import Job, open_job
from benchflow.jobs.job_plan import JobPlan, make_default_name, plan_job
from benchflow.jobs.start import submit

__all__ = [
    "Engine",
    "Job",
    "JobPlan",
    "compute_spec_digest",
    "list_differences",
    "list_pending_indices",
    "make_default_name",
    "open_job",
    "plan_job",
    "submit",
]
