def read(text):
    """Return the numbers of a text."""
    return [int(part) for part in text.split()]
