"""Local sandboxes: processes on this machine, in namespaces over a copy-on-write view of its root.

They are for tasks that one would run on one's own machine, and for the fastest trees there are. `mask` and
`helper.launch` describe how changes to the host are prevented and the run's secrets hidden. As a boundary against
hostile code that is weaker than a container with a filtered kernel interface.
"""
