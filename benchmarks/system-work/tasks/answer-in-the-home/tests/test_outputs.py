def test_answers():
    assert open("/root/flag.txt").read().strip() == "FLAG{quiet-harbour}"
    assert open("/line.txt").read().strip() == "417"
