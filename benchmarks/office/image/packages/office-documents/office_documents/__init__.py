"""The documents service of the office world: texts with revisions, comments, and people to share them with."""
