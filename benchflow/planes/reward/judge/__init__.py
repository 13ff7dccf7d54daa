"""Models as judges.

`models` resolves the model, `model_judge` asks it, `transcripts` records the answers, `documents` makes the prompt;
`criteria` and `role` turn verdicts into rewards.
"""

from benchflow.planes.reward.judge.criteria import SYSTEM, Material, brief, judge_rubric, judging
from benchflow.planes.reward.judge.documents import JudgedDocument, documents_below, question_text, select
from benchflow.planes.reward.judge.model_judge import ModelJudge
from benchflow.planes.reward.judge.models import credential_of, judge_model, require_library
from benchflow.planes.reward.judge.role import judge_as_role

__all__ = [
    "SYSTEM",
    "JudgedDocument",
    "Material",
    "ModelJudge",
    "brief",
    "credential_of",
    "documents_below",
    "judge_as_role",
    "judge_model",
    "judge_rubric",
    "judging",
    "question_text",
    "require_library",
    "select",
]
