"""Checkpoints: the layers of a rollout's world captured as of one moment, and verified in every copy of it."""

from benchflow.checkpoints.checkpoint_capture import Captured, capture, discard
from benchflow.checkpoints.digests import describe_difference, digest_world
from benchflow.checkpoints.proof import prove

__all__ = ["Captured", "capture", "describe_difference", "digest_world", "discard", "prove"]
