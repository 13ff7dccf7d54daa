"""When a rollout branches, and into what: built-in policies, users' own, and what is refused before anything runs."""
