"""What is said of two answers of one URL, and which URLs a verifier is found to read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from support.task_writer import write_task

from benchflow.contracts.environment import Manifest, Observation, Service
from benchflow.paths import StatePaths
from benchflow.planes.environment.helper.observe import canonicalize
from benchflow.planes.environment.observing import describe_difference, describe_differences
from benchflow.planes.environment.proofs import UrlProof, explain_unproven, read_proofs, record_proofs
from benchflow.planes.environment.verifier_urls import find_verifier_urls
from benchflow.tasks import load_task

URL = "http://localhost:9101/log"
MANIFEST = Manifest(
    name="world",
    base_image="debian:bookworm-slim",
    owns_lifecycle=False,
    services=(Service(name="a", command="a", port=9101), Service(name="b", command="b", port=9102)),
)


def seen(body: Any, status: int | None = 200, *, is_shown: bool = True, error: str = "") -> Observation:
    text = body if isinstance(body, str) else json.dumps(body)
    digest = hashlib.sha256(canonicalize(text.encode())).hexdigest()
    return Observation(
        url=URL, status=status, digest=digest, size=len(text), body=text if is_shown else None, error=error
    )


# --- differences ----------------------------------------------------------------------------------------


def test_json_is_compared_as_json() -> None:
    assert describe_difference(seen('{"a": 1, "b": [2]}'), seen('{"b":[2],"a":1}')) is None
    assert describe_difference(seen("[1, 2]"), seen("[2, 1]")) is not None


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (seen({"log": ["a", "b"]}), seen({"log": []}), '$.log has 0 entries, not 2: [], not ["a", "b"]'),
        (seen({"a": {"b": 1}, "c": 2}), seen({"a": {"b": True}, "d": 2}), "$.a.b is true, not 1; $.c is gone: 2"),
        (seen([{"id": 1}]), seen([{"id": 2}]), "$[0].id is 2, not 1"),
        (seen("one\ntwo"), seen("one\n2"), '$[1] is "2", not "two"'),
        (seen("a" * 99), seen("b"), f'not "{"a" * 58}…'),
        (seen([1]), seen([1], 500), "answered HTTP 200 with 3 bytes, and HTTP 500 with 3 bytes in the copy"),
        (seen([1, 2], is_shown=False), seen([1], is_shown=False), "HTTP 200 with 6 bytes, and HTTP 200 with 3 bytes"),
        (seen([1]), seen("", None, error="connection refused"), "and nothing (connection refused) in the copy"),
        (seen("", 404), seen("", 404), "could not be compared: it answers HTTP 404"),
        (seen("", 302), seen("", 302), "could not be compared: it answers HTTP 302"),
        (seen("", None, error="timed out"), seen([1]), "could not be compared: it answers nothing (timed out)"),
    ],
)
def test_what_differs_is_told_with_its_place(before: Observation, after: Observation, said: str) -> None:
    (told,) = describe_differences([before], [after])
    assert told.startswith(f"GET {URL} ") and said in told


def test_many_places_are_counted() -> None:
    told = describe_difference(seen(dict.fromkeys("abcdef", 1)), seen(dict.fromkeys("abcdef", 2)))
    assert told is not None and told.endswith("$.c is 2, not 1; and 3 more")


# --- what verifiers read --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("curl http://localhost:9101/log?n=2 | grep x", ["http://localhost:9101/log?n=2"]),
        ("see http://127.0.0.1:9102/a/b.json.", ["http://localhost:9102/a/b.json"]),
        ("get('http://localhost:9101')", ["http://localhost:9101/"]),
        ('BASE = "http://localhost:9101"\nget(f"{BASE}/log")\nget(BASE + "/sent")', ["9101/log", "9101/sent"]),
        ('BASE=http://localhost:9101/\ncurl "$BASE/log"; curl ${BASE}/sent', ["9101/log", "9101/sent"]),
        ('curl "http://localhost:9101/users/$ID"', ["9101/users/{…}"]),
        ('get(f"http://localhost:9101/users/{name}")', ["9101/users/{…}"]),
        ('BASE = "http://localhost:9101"\nget(BASE + path)', ["9101{…}"]),
        ("get('http://localhost:9101' + path)", ["9101/{…}"]),
        # Nothing that the manifest knows of, and nothing of this sandbox.
        ("curl http://localhost:7000/log http://example.org:9101/log", []),
    ],
)
def test_the_urls_that_a_verifier_names_are_found(tmp_path: Path, text: str, found: list[str]) -> None:
    task = write_task(tmp_path, test=text)
    (task / "tests" / "data.bin").write_bytes(b"\xff\x00http://localhost:9101/binary")
    wanted = [url if url.startswith("http") else f"http://localhost:{url}" for url in found]
    assert list(find_verifier_urls(MANIFEST, load_task(task), task)) == wanted


# --- proofs ---------------------------------------------------------------------------------------------


def test_of_a_url_the_last_trial_counts_and_a_broken_record_proves_nothing(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path / "state")
    assert read_proofs(paths, "d") == {}
    record_proofs(paths, "d", [UrlProof(url=URL, is_proven=True), UrlProof(url="other", is_proven=True)])
    assert explain_unproven([URL, "other"], read_proofs(paths, "d"), are_declared=True) is None
    record_proofs(paths, "d", [UrlProof(url=URL, is_lost=True, detail="$ is 1, not a secret")])
    known = read_proofs(paths, "d")
    assert explain_unproven([URL, "other"], known, are_declared=True) == f"GET {URL} answered otherwise in a copy"
    assert explain_unproven(["other"], known, are_declared=True) is None
    assert read_proofs(paths, "e") == {}
    (paths.proofs / "d.json").write_text("{")
    assert read_proofs(paths, "d") == {}


def test_a_proof_counts_for_other_tasks_of_its_world_and_not_for_another_image_of_its_own() -> None:
    known = {URL: UrlProof(url=URL, is_proven=True, task="one", task_image="a")}
    assert explain_unproven([URL], known, are_declared=True, task="one", task_image="a") is None
    assert explain_unproven([URL], known, are_declared=True, task="two", task_image="b") is None
    changed = explain_unproven([URL], known, are_declared=True, task="one", task_image="b")
    assert changed == f"the image of one was changed since {URL} was compared"


@pytest.mark.parametrize(
    ("urls", "are_declared", "reason"),
    [
        ([], False, "no URL is declared by which copies could be compared"),
        ([URL], True, "is declared, and was not compared yet"),
        ([URL], False, "is read by a verifier, and was not compared yet"),
        (["http://localhost:9101/{…}"], False, "which is known only when it runs"),
    ],
)
def test_what_nobody_has_compared_is_not_proven(urls: list[str], are_declared: bool, reason: str) -> None:
    assert reason in str(explain_unproven(urls, {}, are_declared=are_declared))
