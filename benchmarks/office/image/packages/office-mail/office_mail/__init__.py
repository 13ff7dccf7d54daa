"""The mail service of the office world: accounts, messages, folders, labels, drafts."""
