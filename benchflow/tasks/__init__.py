"""Tasks: find, read, check, freeze, create and migrate the task directories that become `Task`s."""

from benchflow.tasks.environments import find_manifest
from benchflow.tasks.find import find_tasks
from benchflow.tasks.ignored import find_ignored_files
from benchflow.tasks.load import TaskReading, load_task, read_task
from benchflow.tasks.migrate import MigrationReport, migrate_task
from benchflow.tasks.pack import digest_tree, unpack, write_pack
from benchflow.tasks.prompts import compose_prompt, compose_step_prompt, compose_turn_prompt
from benchflow.tasks.scaffold import init_task
from benchflow.tasks.support import apply_verifier_options, require_supported
from benchflow.tasks.task_check import check
from benchflow.user_files.problems import Problem

__all__ = [
    "MigrationReport",
    "Problem",
    "TaskReading",
    "apply_verifier_options",
    "check",
    "compose_prompt",
    "compose_step_prompt",
    "compose_turn_prompt",
    "digest_tree",
    "find_ignored_files",
    "find_manifest",
    "find_tasks",
    "init_task",
    "load_task",
    "migrate_task",
    "read_task",
    "require_supported",
    "unpack",
    "write_pack",
]
