"""Facts about the options of `bench submit` that `JobConfig`, from which the options are made, does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchflow.cli.model_options import ModelCommand, OptionFacts

if TYPE_CHECKING:
    from benchflow.contracts.config import JobConfig

TASKS = "Which tasks"
"""Heading of a panel in the help text, as are the next three."""

AGENT = "Who acts"
RUN = "How they are run"
JOB = "The job"


class SubmitCommand(ModelCommand):
    """The command `bench submit`, with the fields of `JobConfig` as options."""

    panels = {
        None: {"allow_code": OptionFacts("MODULE")},
        TASKS: {
            "include": OptionFacts("GLOB"),
            "exclude": OptionFacts("GLOB"),
            "context_root": OptionFacts("DIR"),
            "environment_manifest": OptionFacts("FILE"),
            "environment_name": OptionFacts(flags="--environment"),
            "environment_import_path": OptionFacts("MODULE:CLASS"),
        },
        AGENT: {
            "agents": OptionFacts(
                "AGENT",
                "--agent",
                "NAME or NAME:MODEL, of bench agent list; by default oracle, the tasks' own solutions.",
            ),
            "agent_env": OptionFacts(
                "K=V", None, "Variable of the agents; K alone takes its value from yours. The value is not recorded."
            ),
            "base_url": OptionFacts(),
            "effort": OptionFacts("LEVEL"),
            "permissions": OptionFacts(),
            "agent_timeout_sec": OptionFacts(),
            "agent_idle_timeout_sec": OptionFacts(),
            "endpoint_policy": OptionFacts("fail|wait(LIMIT)"),
            "preflight": OptionFacts(None, None, "Don't ask each model for one token before the job starts."),
        },
        RUN: {
            "sandbox": OptionFacts("NAME"),
            "concurrency": OptionFacts(None, "-n --concurrency"),
            "repeats": OptionFacts(None, "-k --repeats"),
            "retry.max_retries": OptionFacts(None, "--max-retries"),
            "branch": OptionFacts(
                "POLICY:K=V,… | FILE",
                None,
                "How rollouts branch: group:n=8 or after_steps:steps=1+3,n=4, or a file; see docs/branching.md.",
            ),
            "mode": OptionFacts(
                "MODE:K=V,…",
                None,
                "Purpose of the job: grpo:n=8, a group per task in groups.jsonl, or value:depths=0+2,n=4, V(s) at "
                "these depths in values.jsonl.",
            ),
            "sandbox_setup_timeout": OptionFacts("SEC"),
        },
        "How they are scored": {
            "judge.model": OptionFacts(),
            "judge.base_url": OptionFacts(),
            "judge.credential": OptionFacts("NAME", "--judge-key"),
            "keep": OptionFacts(),
            "keep_max_mb": OptionFacts("MB"),
            "verify_in": OptionFacts(),
            "on_tampering": OptionFacts(),
            "reward_key": OptionFacts(),
        },
        JOB: {"job_name": OptionFacts(), "jobs_dir": OptionFacts()},
    }
    other_panel = RUN
    no_options = frozenset({"paths", "deadline_sec", "try_clean_room", "reward_lenient", "environment_root"})

    def model(self) -> type[JobConfig]:
        """Return `JobConfig`."""
        from benchflow.contracts.config import JobConfig

        return JobConfig


def find_option_name(key: str) -> str:
    """Return the option for a key of `JobConfig`, for error messages."""
    facts = {key: each for panel in SubmitCommand.panels.values() for key, each in panel.items()}
    return facts.get(key, OptionFacts()).spellings(key)[-1]
