"""What the answers of a URL show, of a world and its copy: proven, lost, or nothing."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from benchflow.contracts.environment import Observation
from benchflow.planes.environment.copying import judge_url
from benchflow.planes.environment.proofs import UrlProof

URL = "http://localhost:9101/log"


def judged(first: Any, before: Any, again: Any, after: Any) -> UrlProof:
    """Judge four bodies that were answered with status 200; None is a connection refused."""

    def seen(body: Any) -> Observation:
        if body is None:
            return Observation(url=URL, error="connection refused")
        text = json.dumps(body)
        return Observation(url=URL, status=200, digest=hashlib.sha256(text.encode()).hexdigest(), body=text)

    return judge_url(seen(first), seen(before), seen(again), seen(after), "POST /act")


def test_an_answer_that_has_changed_and_is_the_same_in_the_copy_is_proven() -> None:
    proof = judged([], [1], [1], [1])
    assert (proof.is_proven, proof.is_lost) == (True, False)


def test_an_answer_that_nothing_has_changed_proves_nothing() -> None:
    proof = judged([], [], [], [])
    assert (proof.is_proven, proof.is_lost) == (False, False)
    assert "before anything was done (POST /act)" in proof.detail


def test_an_answer_that_is_another_one_in_the_copy_is_lost_whatever_was_done() -> None:
    for first in ([], [1]):
        proof = judged(first, [1], [1], [])
        assert (proof.is_proven, proof.is_lost) == (False, True)
    assert "$ has 0 entries, not 1" in proof.detail
    assert judged([], [1], [1], None).is_lost


def test_an_answer_that_changes_by_itself_is_not_compared() -> None:
    proof = judged([0], [1], [2], [1])
    assert (proof.is_proven, proof.is_lost) == (False, False)
    assert "what changes by itself cannot be compared" in proof.detail


def test_no_answer_is_not_proven_by_no_answer_in_the_copy() -> None:
    proof = judged(None, None, None, None)
    assert (proof.is_proven, proof.is_lost) == (False, False)
    assert "it answers nothing (connection refused)" in proof.detail
