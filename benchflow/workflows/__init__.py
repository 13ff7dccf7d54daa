"""Temporal workflows of jobs and rollouts: they decide, and leave all I/O to activities."""
