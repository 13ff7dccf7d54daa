"""The mask: a layer between the host's root and the sandbox, which hides what must not be seen.

`policy` says what that is, `plan` applies it to this host, `layer` writes it down so that an overlay understands it.
"""
