def read(text):
    """Return the numbers of a text, whatever separates them."""
    return [int(part) for part in text.replace(",", " ").split()]
