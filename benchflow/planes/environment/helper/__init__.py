"""The programs that the keeper has run inside a sandbox, in Python and in JavaScript, each with the same meaning.

`snapshot` captures databases, `restore` puts them back; `probe` asks services whether they are healthy, `ports` who
listens. They are sent as text and never installed; nothing here is imported by the engine, and the Python ones hold to
what Python 3.7 knows.
"""
