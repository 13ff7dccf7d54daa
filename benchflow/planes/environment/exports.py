"""The names of the Environment plane that hosting and activities import: nothing else of the plane.

They are not in the package's `__init__`: a command that only reads a manifest would import the whole plane.
"""

from benchflow.planes.environment.environment_lookup import check_environment, open_environment, prepare_sandbox
from benchflow.planes.environment.environment_trial import EnvironmentCheck, Setting, try_world
from benchflow.planes.environment.observing import describe_differences
from benchflow.planes.environment.verifier_urls import find_verifier_urls
from benchflow.planes.environment.world_context import WorldContext
from benchflow.planes.environment.world_setup import WorldSetup
from benchflow.planes.environment.writing import parse_post

__all__ = [
    "EnvironmentCheck",
    "Setting",
    "WorldContext",
    "WorldSetup",
    "check_environment",
    "describe_differences",
    "find_verifier_urls",
    "open_environment",
    "parse_post",
    "prepare_sandbox",
    "try_world",
]
