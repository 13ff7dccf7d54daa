"""BenchFlow: an environment-and-rollout engine for agentic RL.

The public names are imported when they are first used, so that `import benchflow` costs nothing. It imports nothing
but `importlib`, which is there already: `python -m benchflow.cli` has this run while the current directory still comes
before the standard library.
"""

import importlib

TYPE_CHECKING = False
"""Substitute for `typing.TYPE_CHECKING`, without the cost of importing `typing`; type checkers know the name."""

__version__ = "0.1.0"

if TYPE_CHECKING:
    from benchflow.contracts.agent import AgentPlace as AgentPlace
    from benchflow.contracts.agent import Session as Session
    from benchflow.contracts.agent import StopReason as StopReason
    from benchflow.contracts.agent import TurnRequest as TurnRequest
    from benchflow.contracts.agent import Unanswered as Unanswered
    from benchflow.contracts.branch import AfterSteps as AfterSteps
    from benchflow.contracts.branch import BranchConfig as BranchConfig
    from benchflow.contracts.branch import ChildSpec as ChildSpec
    from benchflow.contracts.branch import CustomPolicy as CustomPolicy
    from benchflow.contracts.branch import EverySteps as EverySteps
    from benchflow.contracts.branch import Group as Group
    from benchflow.contracts.config import JobConfig as JobConfig
    from benchflow.contracts.config import Role as Role
    from benchflow.contracts.config import RolloutConfig as RolloutConfig
    from benchflow.contracts.config import RuntimeConfig as RuntimeConfig
    from benchflow.contracts.config import Scene as Scene
    from benchflow.contracts.config import Turn as Turn
    from benchflow.contracts.driver import SandboxDriver as SandboxDriver
    from benchflow.contracts.images import ImageConfig as ImageConfig
    from benchflow.contracts.images import ImageRef as ImageRef
    from benchflow.contracts.job_modes import GrpoMode as GrpoMode
    from benchflow.contracts.job_modes import ValueMode as ValueMode
    from benchflow.contracts.job_retries import RetryConfig as RetryConfig
    from benchflow.contracts.reward import RewardEvent as RewardEvent
    from benchflow.contracts.reward import RewardFunc as RewardFunc
    from benchflow.contracts.reward import RolloutNode as RolloutNode
    from benchflow.contracts.reward import VerifyResult as VerifyResult
    from benchflow.contracts.rollout_records import Answer as Answer
    from benchflow.contracts.rollout_records import RolloutResult as RolloutResult
    from benchflow.contracts.rollout_records import RolloutResult as RunResult  # noqa: F401
    from benchflow.contracts.rollout_records import RolloutTree as RolloutTree
    from benchflow.contracts.rollout_records import UserQuestion as UserQuestion
    from benchflow.contracts.sandbox import SandboxExecResult as SandboxExecResult
    from benchflow.contracts.sandbox_provider import ImageBuilder as ImageBuilder
    from benchflow.contracts.task import Task as Task
    from benchflow.errors import ACPError as ACPError
    from benchflow.errors import BenchFlowError as BenchFlowError
    from benchflow.planes.agent.function.function_turn import AgentTurn as AgentTurn
    from benchflow.planes.reward.output import CodeExecRewardFunc as CodeExecRewardFunc
    from benchflow.planes.reward.output import StringMatchRewardFunc as StringMatchRewardFunc
    from benchflow.planes.reward.output import TestRewardFunc as TestRewardFunc
    from benchflow.planes.sandbox.driven.protocol import PublicSandbox as Sandbox  # noqa: F401
    from benchflow.rollout import Rollout as Rollout
    from benchflow.rubric import LLMJudgeRewardFunc as LLMJudgeRewardFunc
    from benchflow.rubric import Rubric as Rubric
    from benchflow.runtime import Agent as Agent
    from benchflow.runtime import Environment as Environment
    from benchflow.runtime import Runtime as Runtime
    from benchflow.runtime import run as run
    from benchflow.trajectories.stored import StoredTree as StoredTree
    from benchflow.trajectories.stored import load_tree as load_tree

_PUBLIC = {
    "ACPError": "benchflow.errors",
    "AfterSteps": "benchflow.contracts.branch",
    "Agent": "benchflow.runtime",
    "AgentPlace": "benchflow.contracts.agent",
    "AgentTurn": "benchflow.planes.agent.function.function_turn",
    "Answer": "benchflow.contracts.rollout_records",
    "BenchFlowError": "benchflow.errors",
    "BranchConfig": "benchflow.contracts.branch",
    "ChildSpec": "benchflow.contracts.branch",
    "CodeExecRewardFunc": "benchflow.planes.reward.output",
    "CustomPolicy": "benchflow.contracts.branch",
    "Environment": "benchflow.runtime",
    "EverySteps": "benchflow.contracts.branch",
    "Group": "benchflow.contracts.branch",
    "GrpoMode": "benchflow.contracts.job_modes",
    "ImageBuilder": "benchflow.contracts.sandbox_provider",
    "ImageConfig": "benchflow.contracts.images",
    "ImageRef": "benchflow.contracts.images",
    "JobConfig": "benchflow.contracts.config",
    "LLMJudgeRewardFunc": "benchflow.rubric",
    "RetryConfig": "benchflow.contracts.job_retries",
    "RewardEvent": "benchflow.contracts.reward",
    "RewardFunc": "benchflow.contracts.reward",
    "Role": "benchflow.contracts.config",
    "Rollout": "benchflow.rollout",
    "RolloutConfig": "benchflow.contracts.config",
    "RolloutNode": "benchflow.contracts.reward",
    "RolloutResult": "benchflow.contracts.rollout_records",
    "RolloutTree": "benchflow.contracts.rollout_records",
    "RunResult": "benchflow.contracts.rollout_records:RolloutResult",
    "Rubric": "benchflow.rubric",
    "Runtime": "benchflow.runtime",
    "RuntimeConfig": "benchflow.contracts.config",
    "Sandbox": "benchflow.planes.sandbox.driven.protocol:PublicSandbox",
    "SandboxDriver": "benchflow.contracts.driver",
    "SandboxExecResult": "benchflow.contracts.sandbox",
    "Scene": "benchflow.contracts.config",
    "Session": "benchflow.contracts.agent",
    "StopReason": "benchflow.contracts.agent",
    "StoredTree": "benchflow.trajectories.stored",
    "StringMatchRewardFunc": "benchflow.planes.reward.output",
    "Task": "benchflow.contracts.task",
    "TestRewardFunc": "benchflow.planes.reward.output",
    "Turn": "benchflow.contracts.config",
    "TurnRequest": "benchflow.contracts.agent",
    "Unanswered": "benchflow.contracts.agent",
    "UserQuestion": "benchflow.contracts.rollout_records",
    "ValueMode": "benchflow.contracts.job_modes",
    "VerifyResult": "benchflow.contracts.reward",
    "load_tree": "benchflow.trajectories.stored",
    "run": "benchflow.runtime",
}

__all__ = sorted(["__version__", *_PUBLIC])


def __getattr__(name: str) -> object:
    """Import a public name on first use, and cache it as a global of this module."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'benchflow' has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    value = getattr(importlib.import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return __all__
