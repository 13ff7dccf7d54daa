"""The Environment plane: the stateful world that an agent acts in, from one manifest, on any sandbox.

What a manifest says is read and checked in `manifest`; whether a task fits it, in `fit`. Starting it, waiting for it,
and taking its state back and forth are done inside the sandbox.
"""
