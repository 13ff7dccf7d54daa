"""The helper programs that the engine runs inside a sandbox, in Python and in JavaScript with the same behaviour.

`snapshot` copies databases, `restore` restores them; `probe` polls services until they are healthy, `ports` finds
listeners, `observe` sends GET requests. They are sent as text and never installed. Of the Python ones the engine
imports constants alone; they use only features of Python 3.7.
"""
