"""The helper process: starts sandboxes, and enters them, from the host's side.

It is one thread of plain Python with nothing but the standard library, because it forks: what a fork would carry
into a sandbox (threads, locks, memory with secrets) is not there. It holds no truth, so that it may die at any moment.
"""
