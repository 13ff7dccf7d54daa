"""What is known of the copies of a world: which of its URLs answered in one as they did in the world itself.

`bench env check` tries it and writes it down, in the state directory, by the digest of the manifest and the files of
its image. A job that is submitted with the same state directory reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from benchflow.confined import read_regular
from benchflow.contracts.base import Model
from benchflow.errors import UnsafePathError
from benchflow.paths import StatePaths
from benchflow.planes.environment.verifier_urls import OPEN_END
from benchflow.store import make_private_directory, storage_errors, write_atomic

_MAX_BYTES = 16 * 1024 * 1024


class UrlProof(Model):
    """Holds the findings of a trial about one URL."""

    url: str
    """As it was asked for."""

    is_proven: bool = False
    """Whether its answer changed by what was done in the world, and was then the same in a copy."""

    is_lost: bool = False
    """Whether its answer was another one in the copy."""

    detail: str = ""
    """Finding in words."""

    sandbox: str = ""
    """The provider on which it was tried."""

    image: str = ""
    """The image of that sandbox."""

    task: str = ""
    """The task in whose world it was tried; empty for none."""

    task_image: str = ""
    """Digest of the files that the task's image was built from, by which the proof of a changed one is known."""

    at: str = ""
    """When, in ISO 8601."""


class _Proofs(Model):
    """The file of one world."""

    urls: dict[str, UrlProof] = {}


def record_proofs(paths: StatePaths, digest: str, proofs: Sequence[UrlProof]) -> None:
    """Write down what a trial showed; of a URL the last trial counts. digest: of the world (`EnvironmentRef`)."""
    if not proofs:
        return
    file = _file(paths, digest)
    with storage_errors(file):
        make_private_directory(file.parent)
    known = _Proofs(urls=read_proofs(paths, digest) | {proof.url: proof for proof in proofs})
    write_atomic(file, known.model_dump_json(indent=2).encode() + b"\n")


def read_proofs(paths: StatePaths, digest: str) -> dict[str, UrlProof]:
    """Return what is known of a world's URLs, by URL. A file that cannot be read proves nothing."""
    try:
        return dict(_Proofs.model_validate_json(read_regular(_file(paths, digest), _MAX_BYTES)).urls)
    except (OSError, UnsafePathError, ValidationError):
        return {}


def reason_unproven(
    urls: Sequence[str], proofs: Mapping[str, UrlProof], *, are_declared: bool, task: str = "", task_image: str = ""
) -> str | None:
    """Return why copies of a world are not proven to answer as the world itself; None where they are.

    Args:
        urls: Whose answers count: the declared ones, else those that verifiers read.
        proofs: What is known of the world, by URL.
        are_declared: Whether the manifest names them.
        task, task_image: The task that is to be run, and the digest of what its image is built from. A proof of another
            task counts, since one check is to do for a world of many tasks; one of another image of this task does not.
    """
    if not urls:
        return "no URL is declared by which copies could be compared, and none was found in the verifiers"
    for url in urls:
        if OPEN_END in url:
            return f"a verifier reads {url}, which is known only when it runs"
        proof = proofs.get(url)
        if proof is None:
            source = "is declared" if are_declared else "is read by a verifier"
            return f"{url} {source}, and was not compared yet"
        if task and proof.task == task and proof.task_image != task_image:
            return f"the image of {task} was changed since {url} was compared"
        if not proof.is_proven:
            # Without the detail, which may quote what services answer: results and histories hold this sentence.
            how = "answered otherwise in a copy" if proof.is_lost else "was asked, and proves nothing"
            return f"GET {url} {how}"
    return None


def _file(paths: StatePaths, digest: str) -> Path:
    return paths.proofs / f"{digest}.json"
