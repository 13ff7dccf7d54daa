"""Trajectories: append-only journals of an agent's events, and the tree to which the events belong."""
