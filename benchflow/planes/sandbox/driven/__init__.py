"""Sandboxes over a driver: the generic implementation of all that a driver does not have to do itself."""
