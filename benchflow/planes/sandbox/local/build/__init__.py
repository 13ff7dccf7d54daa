"""Builds of images: a task's Dockerfile, carried out on this machine's root in layers that are cached."""
