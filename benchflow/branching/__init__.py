"""Branch policies: built-in ones, users' own, and the checks of their configuration before anything runs."""
