"""The request to score a job again, as a user writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator

from benchflow.contracts.base import Model
from benchflow.contracts.job import MAX_WINDOW
from benchflow.contracts.reward import JudgeSettings
from benchflow.errors import ConfigError


class RescoringRequest(Model):
    """Request to score the stored rollouts of a job again."""

    rubric: str | Path | None = None
    """Rubric file, or import path `module:object` of a `benchflow.Rubric`; None for the tasks' own verifiers."""

    tasks: Path | None = None
    """Directory of tasks that replace the recorded ones of the same names; None for those that were submitted."""

    include: list[str] = []
    """Shell patterns of task names; a rollout is scored if one matches. Empty for all rollouts."""

    ask_again: bool = False
    """Whether judges are called again although their answers are stored."""

    trust_workspace: bool = False
    """Whether a changed verifier runs without the check that the earlier one still gives the workspace its reward."""

    concurrency: int = Field(default=4, ge=1, le=MAX_WINDOW)
    """Maximum number of rollouts that are scored at a time."""

    sandbox: str | None = None
    """Name of the sandbox provider for the verifiers; None for that of the job."""

    judge: JudgeSettings = JudgeSettings()
    """Settings of the judge. Those that are set override the job's."""

    name: str | None = None
    """Name of the scoring; what is complete under it is not done again. None for one made from what scores."""

    allow_code: list[str] = []
    """Modules of the host whose code the tasks may name for import, in addition to those that the job's configuration
    allows. Installed entry points need no permission."""

    trust: bool = False
    """Whether a job that was not submitted with this user's state directory is scored anyway."""

    take_variables: bool = True
    """Whether the tasks may use the variables of this environment that they name."""

    @property
    def judge_settings(self) -> dict[str, Any]:
        """Return the settings of the judge that override the job's."""
        return self.judge.model_dump(exclude_unset=True)

    @field_validator("judge", mode="wrap")
    @classmethod
    def _check_judge(cls, value: object, validate: ValidatorFunctionWrapHandler) -> Any:
        """Raise `ConfigError` for an invalid setting."""
        try:
            return validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in ("judge", *first["loc"]))
            raise ConfigError(first["msg"], key=key, remedy="give fields of JudgeSettings") from error
