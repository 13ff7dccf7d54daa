"""The Environment plane: the stateful world that an agent acts in, on any sandbox.

An environment is described by a manifest, which `ManifestEnvironment` implements, or is a class in the user's code
(`environment_code`). `exports` has the names for the rest of the engine.
"""
