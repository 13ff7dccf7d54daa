"""Models as judges.

`models` resolves the model, `model_judge` asks it, `transcripts` records the answers, `documents` makes the prompt;
`criteria` and `role` turn verdicts into rewards.
"""

from benchflow.planes.reward.judge.criteria import SYSTEM, Material, cut_reasoning, judge_rubric, summarise_answers
from benchflow.planes.reward.judge.documents import JudgedDocument, list_documents, make_prompt, select_documents
from benchflow.planes.reward.judge.model_judge import ModelJudge
from benchflow.planes.reward.judge.models import find_credential, require_library, resolve_model
from benchflow.planes.reward.judge.role import judge_as_role

__all__ = [
    "SYSTEM",
    "JudgedDocument",
    "Material",
    "ModelJudge",
    "cut_reasoning",
    "find_credential",
    "judge_as_role",
    "judge_rubric",
    "list_documents",
    "make_prompt",
    "require_library",
    "resolve_model",
    "select_documents",
    "summarise_answers",
]
