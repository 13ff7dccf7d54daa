"""Temporal activities: thin wrappers that call the engine on this host, translate errors, and heartbeat."""
