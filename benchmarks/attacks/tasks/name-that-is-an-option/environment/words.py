def first(text):
    return text.split()[0]
