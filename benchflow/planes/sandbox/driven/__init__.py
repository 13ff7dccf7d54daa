"""Sandboxes over a driver: all that a sandbox can do and that no driver has to do itself."""
