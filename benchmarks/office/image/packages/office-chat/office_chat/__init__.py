"""The chat service of the office world: channels, messages, threads, reactions, direct messages."""
