"""The helper process: starts sandboxes and enters them, from the host's side.

It is one thread of plain Python with only the standard library, because it forks: it has no threads, locks or memory
with secrets that a fork could carry into a sandbox. It holds no state, so that it may die at any moment.
"""
