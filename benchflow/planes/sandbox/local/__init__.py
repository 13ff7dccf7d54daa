"""Sandboxes on this machine itself: namespaces over a copy-on-write view of its root.

For tasks one would run on one's own machine, and for the fastest trees there are. What keeps the host from being
changed and the run's secrets from being seen is described in `mask` and `helper.launch`; it is not a boundary against
hostile code as strong as a container with a filtered kernel interface.
"""
