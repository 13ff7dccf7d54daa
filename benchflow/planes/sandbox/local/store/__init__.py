"""The store: the file system of its own that layers and sandboxes lie on, so that a copy of one costs nothing."""
