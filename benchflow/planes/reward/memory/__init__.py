"""Reward functions of the memory space: they compare an agent's skills and memory before and after it acted."""

from benchflow.planes.reward.memory.declared import list_directories, make_memory_rows
from benchflow.planes.reward.memory.memory_capture import (
    MemoryCapture,
    MemoryFile,
    capture_memory,
    read_memory,
    store_memory,
)
from benchflow.planes.reward.memory.memory_difference import MemoryChange, diff_memory
from benchflow.planes.reward.memory.memory_files import MemoryFiles
from benchflow.planes.reward.memory.skills import Skills

__all__ = [
    "MemoryCapture",
    "MemoryChange",
    "MemoryFile",
    "MemoryFiles",
    "Skills",
    "capture_memory",
    "diff_memory",
    "list_directories",
    "make_memory_rows",
    "read_memory",
    "store_memory",
]
