"""Reward functions of the memory space: they compare an agent's skills and memory before and after it acted."""

from benchflow.planes.reward.memory.declared import directories_of, memory_rows
from benchflow.planes.reward.memory.memory_capture import (
    MemoryCapture,
    MemoryFile,
    capture_memory,
    keep_memory,
    read_memory,
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
    "directories_of",
    "keep_memory",
    "memory_rows",
    "read_memory",
]
