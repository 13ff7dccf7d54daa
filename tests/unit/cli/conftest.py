"""The command line as a function, and tasks to give it."""

from support.command_line import bench, task, tasks

__all__ = ["bench", "task", "tasks"]
