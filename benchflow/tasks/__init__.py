"""Tasks: find, read, check, freeze, create and migrate the task directories that become `Task`s."""

from benchflow.tasks.environments import manifest_of
from benchflow.tasks.find import find_tasks
from benchflow.tasks.ignored import ignored_files
from benchflow.tasks.load import TaskReading, load_task, read_task
from benchflow.tasks.migrate import MigrationReport, migrate_task
from benchflow.tasks.pack import digest_tree, unpack, write_pack
from benchflow.tasks.prompts import prompt_for, prompt_of, turn_prompt
from benchflow.tasks.scaffold import init_task
from benchflow.tasks.support import require_supported, verified_in
from benchflow.tasks.task_check import check
from benchflow.user_files.problems import Problem

__all__ = [
    "MigrationReport",
    "Problem",
    "TaskReading",
    "check",
    "digest_tree",
    "find_tasks",
    "ignored_files",
    "init_task",
    "load_task",
    "manifest_of",
    "migrate_task",
    "prompt_for",
    "prompt_of",
    "read_task",
    "require_supported",
    "turn_prompt",
    "unpack",
    "verified_in",
    "write_pack",
]
