"""The helper programs that the engine runs inside a sandbox.

`snapshot` copies databases, `restore` restores them; `probe` polls services until they are healthy, `ports` finds
listeners, `observe` sends GET requests. They are sent as text and never installed. They use only features of
Python 3.7, and the engine imports constants alone of them.
"""
