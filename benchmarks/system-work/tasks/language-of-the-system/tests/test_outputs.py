def settings(file):
    lines = [line.strip() for line in open(file) if "=" in line and not line.startswith("#")]
    return {name: value.strip('"') for name, value in (line.split("=", 1) for line in lines)}


def test_default():
    assert settings("/etc/default/locale") == {"LANG": "C.UTF-8", "LC_TIME": "C"}


def test_environment():
    assert settings("/etc/environment") == {"SITE": "lisbon", "LANG": "C.UTF-8", "LC_TIME": "C"}
