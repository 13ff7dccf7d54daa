"""The mask: a layer between the host's root and the sandbox, which hides secrets and other files of the host.

`policy` lists what is hidden, `plan` applies it to this host, `layer` writes it in a form that an overlay understands.
"""
