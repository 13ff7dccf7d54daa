def check(add):
    assert add(2, 3) == 5
    assert add(-7, 3) == -4
