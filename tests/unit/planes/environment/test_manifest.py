"""A manifest's file is read as what it says; what is wrong with it is told with file, line, key and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow.contracts.environment import (
    ForwardEnv,
    Manifest,
    Readiness,
    Service,
    StateTable,
    TaskSelection,
)
from benchflow.errors import ManifestError
from benchflow.planes.environment.environment_manifest import digest_manifest, read_manifest

FULL_TOML = """
# Every key there is.
[environment]
name = "office"
base_image = "office:1"
ports = [8025, 8026]
owns_lifecycle = false
keep_alive = false
isolation = "persistent"

[environment.task_selection]
mechanism = "env_var"
key = "TASK"
inject_into = "exec"

[[environment.services]]
name = "mail"
command = "mail serve --port 9001"
port = 9001
health_path = "/healthz"

[[environment.services]]
name = "chat"
command = "chat serve"
port = 9002

[environment.readiness]
http = ["http://localhost:9001/deep"]
tcp = [9002]
timeout_sec = 2.5

[environment.forward_env]
keys = ["TOKEN"]

[environment.state]
kind = "sqlite"
paths = ["/data/a/world.db", "/data/b/world.db"]
observe = ["http://localhost:9101/log"]
"""

FULL_YAML = """
environment:
  state: {paths: [/data/a/world.db, /data/b/world.db], observe: ["http://localhost:9101/log"]}
  forward_env:
    keys: [TOKEN]
  readiness: {http: ["http://localhost:9001/deep"], tcp: [9002], timeout_sec: 2.5}
  services:
    - {name: mail, command: mail serve --port 9001, port: 9001, health_path: /healthz}
    - name: chat
      command: chat serve
      port: 9002
  task_selection: {key: TASK, inject_into: exec}
  name: office
  base_image: office:1
  ports: [8025, 8026]
  owns_lifecycle: false
  keep_alive: false
  isolation: persistent
"""

FULL = Manifest(
    name="office",
    base_image="office:1",
    ports=(8025, 8026),
    owns_lifecycle=False,
    keep_alive=False,
    isolation="persistent",
    task_selection=TaskSelection(mechanism="env_var", key="TASK", inject_into="exec"),
    services=(
        Service(name="mail", command="mail serve --port 9001", port=9001, health_path="/healthz"),
        Service(name="chat", command="chat serve", port=9002, health_path="/health"),
    ),
    readiness=Readiness(http=("http://localhost:9001/deep",), tcp=(9002,), timeout_sec=2.5),
    forward_env=ForwardEnv(keys=("TOKEN",)),
    state=StateTable(
        kind="sqlite", paths=("/data/a/world.db", "/data/b/world.db"), observe=("http://localhost:9101/log",)
    ),
)

HEAD = '[environment]\nname = "x"\nimage = "i"\n'
"""The smallest manifest: what a test appends begins in line 4."""


def read(directory: Path, text: str | bytes, name: str = "environment.toml") -> Manifest:
    (directory / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_manifest(directory / name)


def refused(directory: Path, text: str | bytes, name: str = "environment.toml") -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        read(directory, text, name)
    assert caught.value.remedy
    assert str(caught.value.file).startswith(str(directory / name))
    return caught.value


def test_every_field_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, FULL_TOML) == FULL


@pytest.mark.parametrize("name", ["environment.yaml", "world.YML"])
def test_the_same_content_in_yaml_is_the_same_manifest(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, FULL_YAML, name) == FULL


def test_what_is_not_given_has_the_published_default(tmp_path: Path) -> None:
    assert read(tmp_path, HEAD).model_dump() == {
        "name": "x",
        "image": "i",
        "base_image": None,
        "ports": (),
        "owns_lifecycle": True,
        "keep_alive": True,
        "isolation": "per_task",
        "task_selection": {"mechanism": "env_var", "key": "BENCHFLOW_TASK_ID", "inject_into": "entrypoint"},
        "services": (),
        "readiness": {"http": (), "tcp": (), "timeout_sec": 120.0},
        "forward_env": {"keys": ()},
        "state": None,
    }


def test_an_empty_state_table_makes_the_world_stateful(tmp_path: Path) -> None:
    assert read(tmp_path, HEAD + "[environment.state]").state == StateTable(kind="sqlite", paths=())


def test_a_byte_order_mark_and_windows_line_ends_are_no_content(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + FULL_TOML.replace("\n", "\r\n").encode()
    assert read(tmp_path, text) == FULL


def test_a_yaml_key_may_come_from_a_merge(tmp_path: Path) -> None:
    text = "environment:\n  name: x\n  image: i\n  task_selection: &t {key: A}\n  <<: {ports: [1]}\n"
    assert read(tmp_path, text, "e.yaml").ports == (1,)


# --- what is wrong, and where ---------------------------------------------------------------------------

SERVICE = 'owns_lifecycle = false\n[[environment.services]]\nname = "a"\ncommand = "c"\nport = 1\n'
SECOND = '[[environment.services]]\nname = "{}"\ncommand = "c"\nport = {}\n'


def state(path: str) -> str:
    return f'[environment.state]\npaths = ["/data/ok.db", "{path}"]'


def http(url: str) -> str:
    return f'[environment.readiness]\nhttp = ["{url}"]'


WRONG = [
    # Keys.
    ("iamge = 1", 4, "iamge", "did you mean `image`?"),
    ("environmental = 1", 4, "environmental", "known here: base_image, forward_env, image"),
    ("[environment.sate]\npaths = []", 4, "sate", "did you mean `state`?"),
    ("[environment.readiness]\npaths = []", 5, "readiness.paths", "it belongs to [environment.state]"),
    ("timeout_sec = 3", 4, "timeout_sec", "it belongs to [environment.readiness]"),
    (SERVICE.replace("port", "prot"), 8, "services[0].prot", "did you mean `port`?"),
    ("[environment.task_database]\nurl = 'x'", 4, "task_database", "remove it"),
    ("[environment.AccountBroker]\nurl = 'x'", 4, "AccountBroker", "remove it"),
    (SERVICE + "sidecar = true", 9, "services[0].sidecar", "remove it"),
    # Types.
    ("keep_alive = 'true'", 4, "keep_alive", "without quotes: true"),
    ("keep_alive = 1", 4, "keep_alive", "change"),
    ("ports = ['80']", 4, "ports[0]", "without quotes: 80"),
    ("ports = [\n  1,\n  true,\n]", 4, "ports[1]", "change"),
    ("ports = [80.0]", 4, "ports[0]", "change"),
    ("ports = 80", 4, "ports", "[80]"),
    ("state = 3", 4, "state", "write [environment.state]"),
    ("state = '/data/x.db'", 4, "state", "write [environment.state]"),
    ("[environment.services]\nname = 'a'", 4, "services", "[[environment.services]]"),
    ("isolation = 'persistant'", 4, "isolation", "did you mean `persistent`?"),
    ("[environment.state]\nkind = 'postgres'", 5, "state.kind", "known here: sqlite"),
    ("[environment.readiness]\n\ntimeout_sec = true", 6, "readiness.timeout_sec", "change"),
    ("[environment.readiness]\ntimeout_sec = 0", 5, "readiness.timeout_sec", "change"),
    ("[environment.readiness]\ntimeout_sec = inf", 5, "readiness.timeout_sec", "give a number"),
    ("base_image = 2026-01-01", 4, "base_image", "in quotes"),
    # What must be there, and what must not.
    ("base_image = 'b'", 4, "base_image", "keep `image`"),
    ("owns_lifecycle = false", 4, "owns_lifecycle", "[[environment.services]]"),
    (SERVICE.replace("false", "true"), 5, "services", "owns_lifecycle = false"),
    (SERVICE.replace("port = 1\n", ""), 5, "services[0].port", "add `port` to [[environment.services]]"),
    # Services.
    (SERVICE + SECOND.format("a", 2), 10, "services[1].name", "rename"),
    (SERVICE + SECOND.format("b", 1), 12, "services[1].port", "of its own"),
    (SERVICE + SECOND.format("b/c", 2), 10, "services[1].name", "it names files"),
    (SERVICE + SECOND.format("..", 2), 10, "services[1].name", "it names files"),
    (SERVICE + SECOND.format("b", 65536), 12, "services[1].port", "1 to 65535"),
    (SERVICE + SECOND.format("b", 0), 12, "services[1].port", "1 to 65535"),
    (SERVICE.replace('"c"', '" "'), 7, "services[0].command", "the full command"),
    (SERVICE + "health_path = 'health'", 9, "services[0].health_path", "begin it with /"),
    (SERVICE + "health_path = '/a b'", 9, "services[0].health_path", "begin it with /"),
    # Ports and probes.
    ("ports = [1, 2, 1]", 4, "ports[2]", "once"),
    ("ports = [70000]", 4, "ports[0]", "1 to 65535"),
    ("[environment.readiness]\ntcp = [0]", 5, "readiness.tcp[0]", "1 to 65535"),
    ("[environment.readiness]\ntcp = [5, 5]", 5, "readiness.tcp[1]", "once"),
    (http("localhost:80/health"), 5, "readiness.http[0]", "http://localhost"),
    (http("ftp://localhost/"), 5, "readiness.http[0]", "http://localhost"),
    (http("http:///health"), 5, "readiness.http[0]", "http://localhost"),
    (http("http://localhost:99999/"), 5, "readiness.http[0]", "http://localhost"),
    (http("http://localhost:0/"), 5, "readiness.http[0]", "http://localhost"),
    (http("http://local host/"), 5, "readiness.http[0]", "http://localhost"),
    # Variables.
    ("[environment.task_selection]\nkey = 'A-B'", 5, "task_selection.key", "letters"),
    ("[environment.task_selection]\nmechanism = 'image'\nkey = 'A'", 6, "task_selection.key", "remove one"),
    (
        "[environment.task_selection]\ninject_into = 'exec'\nmechanism = 'image'",
        5,
        "task_selection.inject_into",
        "remove one",
    ),
    ("[environment.forward_env]\nkeys = ['A', '1B']", 5, "forward_env.keys[1]", "letters"),
    ("[environment.forward_env]\nkeys = ['A', 'A']", 5, "forward_env.keys[1]", "once"),
    ("[environment.forward_env]\nkeys = ['BENCHFLOW_TASK_ID']", 5, "forward_env.keys[0]", "rename"),
    # One sandbox for all, and an image for each.
    ("isolation = 'persistent'\n[environment.task_selection]\nmechanism = 'image'", 4, "isolation", "per_task"),
    # State.
    (state("data/x.db"), 5, "state.paths[1]", "begin it with /"),
    (state("~/x.db"), 5, "state.paths[1]", "begin it with /"),
    (state("/data/../x.db"), 5, "state.paths[1]", "without `..`"),
    (state("/data/~/x.db"), 5, "state.paths[1]", "`~`"),
    (state("/data//x.db"), 5, "state.paths[1]", "/data/x.db"),
    (state("//data/x.db"), 5, "state.paths[1]", "/data/x.db"),
    (state("/data/./x.db"), 5, "state.paths[1]", "/data/x.db"),
    (state("/data/"), 5, "state.paths[1]", "/data"),
    (state("/"), 5, "state.paths[1]", "name"),
    (state("/data/*.db"), 5, "state.paths[1]", "each file"),
    (state("/data/x.db-wal"), 5, "state.paths[1]", "/data/x.db"),
    (state("/proc/1/mem"), 5, "state.paths[1]", "own"),
    (state("/sys/x"), 5, "state.paths[1]", "own"),
    (state("/dev/sda"), 5, "state.paths[1]", "own"),
    (state("/dev/shm"), 5, "state.paths[1]", "own"),
    (state("/run/benchflow/x.db"), 5, "state.paths[1]", "elsewhere"),
    (state("/var/lib/benchflow/x.db"), 5, "state.paths[1]", "elsewhere"),
    (state("/logs/verifier/x.db"), 5, "state.paths[1]", "elsewhere"),
    (state("/data/ok.db"), 5, "state.paths[1]", "once"),
    ('[environment.state]\nobserve = ["/log"]', 5, "state.observe[0]", "http://localhost:8000"),
    ('[environment.state]\nobserve = ["http://h:1/", "http://h:1/"]', 5, "state.observe[1]", "once"),
]


@pytest.mark.parametrize(("more", "line", "key", "remedy"), WRONG, ids=[f"{case[2]}: {case[3]}" for case in WRONG])
def test_what_is_wrong_is_told_with_file_line_key_and_remedy(
    tmp_path: Path, more: str, line: int, key: str, remedy: str
) -> None:
    error = refused(tmp_path, HEAD + more)
    assert (error.file, error.key) == (f"{tmp_path}/environment.toml:{line}", f"environment.{key}")
    assert remedy in str(error.remedy)


@pytest.mark.parametrize("path", ["/dev/shm/x.db", "/data/.hidden", "/logsdata/x.db", "/data/a b.db", "/x~"])
def test_unusual_paths_of_state_are_allowed(tmp_path: Path, path: str) -> None:
    manifest = read(tmp_path, HEAD + f'[environment.state]\npaths = ["{path}"]')
    assert manifest.state == StateTable(paths=(path,))


def test_the_shared_fleet_is_refused_by_its_name(tmp_path: Path) -> None:
    error = refused(tmp_path, HEAD + "[environment.account_broker]\nurl = 'x'")
    assert "shared-fleet topology" in error.message


@pytest.mark.parametrize(
    ("text", "file", "key"),
    [
        ("", "environment.toml", "environment"),
        ('name = "x"', "environment.toml", "environment"),
        ('[enviroment]\nname = "x"', "environment.toml:1", "enviroment"),
        (HEAD + "[other]", "environment.toml:4", "other"),
        ('[environment]\nimage = "i"', "environment.toml:1", "environment.name"),
        ('[environment]\nname = "x"', "environment.toml:1", "environment.image"),
        ('[environment]\nname = " "\nimage = "i"', "environment.toml:2", "environment.name"),
        ('[environment]\nname = "x"\nimage = "a b"', "environment.toml:3", "environment.image"),
        ('[environment]\nname = "x"\nimage = ""', "environment.toml:3", "environment.image"),
        (HEAD + 'name = "y"', "environment.toml", None),
        ("[environment", "environment.toml", None),
        (b"[environment]\n\n# \xff", "environment.toml:3", None),
        (b"\0" * 300_000, "environment.toml", None),
        ("x = " + "[" * 5000, "environment.toml", None),
    ],
)
def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path, text: str | bytes, file: str, key: str | None) -> None:
    error = refused(tmp_path, text)
    assert (error.file, error.key) == (f"{tmp_path}/{file}", key)


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("environment:\n  name: 1.10\n  image: i", 2, "environment.name"),
        ("environment:\n  name: x\n\n  name: y", 4, "environment.name"),
        ("environment: {name: x, image: i,\n  ports: [1,\n  0]}", 3, "environment.ports[1]"),
        ("environment:\n  name: x\n  image: i\n  services:\n  - nme: a", 5, "environment.services[0].nme"),
        ("environment:\n  name: x\n  image: i\n  on: 3", 4, "environment.on"),
        ("environment:\n  name: x\n  image: 2026-01-01", 3, "environment.image"),
        ("environment:\n  <<: {name: x, image: i}\n  keep_alive: 'no'", 3, "environment.keep_alive"),
        ("# none\nenvironment:", 2, "environment"),
    ],
)
def test_what_is_wrong_in_yaml_is_told_with_its_line(tmp_path: Path, text: str, line: int, key: str) -> None:
    error = refused(tmp_path, text, "environment.yaml")
    assert (error.file, error.key) == (f"{tmp_path}/environment.yaml:{line}", key)
    assert "[environment" not in str(error.remedy)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n" for before, name in ("ab", "bc", "cd", "de", "ef")
)


@pytest.mark.parametrize(
    "text", ["- 1", "environment: [", "a: &a [*a]", "environment: &e\n  x: *e", "? [1, 2]\n: 3", "a: !!int x", BOMB]
)
def test_yaml_that_is_no_mapping_of_plain_values_is_refused(tmp_path: Path, text: str) -> None:
    refused(tmp_path, text, "environment.yaml")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "environment.toml").mkdir()
    for name in ("environment.toml", "missing.toml", "a\0b.toml"):
        with pytest.raises(ManifestError) as caught:
            read_manifest(tmp_path / name)
        assert caught.value.file == str(tmp_path / name)


# --- the digest -----------------------------------------------------------------------------------------


def test_the_digest_is_of_the_content_and_not_of_its_writing(tmp_path: Path) -> None:
    one = digest_manifest(read(tmp_path, FULL_TOML), None)
    assert one == digest_manifest(read(tmp_path, "# changed\n" + FULL_TOML), None)
    assert one == digest_manifest(read(tmp_path, FULL_YAML, "e.yaml"), None)
    plain = digest_manifest(read(tmp_path, HEAD), None)
    assert plain == digest_manifest(read(tmp_path, HEAD + "keep_alive = true"), None)


def test_the_digest_changes_with_the_content_and_the_images_files(tmp_path: Path) -> None:
    digests = {
        digest_manifest(read(tmp_path, HEAD), None),
        digest_manifest(read(tmp_path, HEAD), "00"),
        digest_manifest(read(tmp_path, HEAD + "keep_alive = false"), None),
        digest_manifest(read(tmp_path, HEAD + "[environment.state]"), None),
        digest_manifest(read(tmp_path, HEAD.replace('"i"', '"j"')), None),
    }
    assert len(digests) == 5
    assert all(len(digest) == 64 for digest in digests)
