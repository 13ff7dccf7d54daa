"""The files service of the office world: folders and files, a trash, and people to share them with."""
