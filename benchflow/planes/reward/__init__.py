"""The Reward plane: how a rollout is scored. `script` reads the reward files of a verifier script."""

from benchflow.planes.reward.aggregate import aggregate_metrics
from benchflow.planes.reward.script_reward import parse_rewards

__all__ = ["aggregate_metrics", "parse_rewards"]
