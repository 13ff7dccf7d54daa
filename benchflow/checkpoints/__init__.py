"""Checkpoints: the layers of a rollout's world captured as of one moment, and verified in every copy of it."""

from benchflow.checkpoints.checkpoint_capture import Captured, capture, discard
from benchflow.checkpoints.digests import difference, world_digests
from benchflow.checkpoints.proof import prove

__all__ = ["Captured", "capture", "difference", "discard", "prove", "world_digests"]
