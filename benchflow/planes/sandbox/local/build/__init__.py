"""Images: a task's Dockerfile carried out on this machine's root, in layers that are found again."""
