from pathlib import Path

OUT = Path("/data/out")


def test_files():
    found = sorted(str(path.relative_to(OUT)) for path in OUT.rglob("*.txt"))
    assert found == ["2024/a.txt", "2025/a.txt", "2025/b-c.txt"]
    assert (OUT / "2025" / "b-c.txt").read_text() == "third\n"


def test_summary():
    assert (OUT / "summary.csv").read_text() == "2024,1\n2025,2\n"
