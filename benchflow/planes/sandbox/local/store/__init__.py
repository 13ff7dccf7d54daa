"""The store: a filesystem of its own for layers and sandboxes, on which a copy of one costs nothing."""
