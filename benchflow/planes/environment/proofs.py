"""Records of the comparison of worlds with their copies: which URLs answered in a copy as in the world itself.

`bench env check` compares, and writes the records to the state directory, under the digest of the manifest and of its
image's files. A job that is submitted with the same state directory reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from benchflow.confined import read_regular
from benchflow.contracts.base import Model
from benchflow.errors import UnsafePathError
from benchflow.host_files import make_private_directory, raise_storage_errors, write_atomic
from benchflow.paths import StatePaths
from benchflow.planes.environment.verifier_urls import OPEN_END

_MAX_BYTES = 16 * 1024 * 1024


class UrlProof(Model):
    """Findings of a trial about one URL."""

    url: str
    """The URL, as the sandbox sees it."""

    is_proven: bool = False
    """Whether its answer changed by the writes to the world, and was then the same in a copy."""

    is_lost: bool = False
    """Whether its answer was another one in the copy."""

    detail: str = ""
    """Finding in words."""

    sandbox: str = ""
    """Name of the sandbox provider on which it was tried."""

    image: str = ""
    """Image of that sandbox."""

    task: str = ""
    """Id of the task in whose world it was tried; empty for none."""

    task_image: str = ""
    """Digest of the files from which the task's image was built, so that a proof of an older image is not used."""

    at: str = ""
    """Time of the trial, in ISO 8601."""


class _Proofs(Model):
    """The file of one world."""

    urls: dict[str, UrlProof] = {}


def record_proofs(paths: StatePaths, digest: str, proofs: Sequence[UrlProof]) -> None:
    """Store the findings of a trial; they replace earlier ones of the same URLs.

    Args:
        paths: The state directory.
        digest: Digest of the world (`EnvironmentRef`).
        proofs: The findings.
    """
    if not proofs:
        return
    file = _locate_file(paths, digest)
    with raise_storage_errors(file):
        make_private_directory(file.parent)
    known = _Proofs(urls=read_proofs(paths, digest) | {proof.url: proof for proof in proofs})
    write_atomic(file, known.model_dump_json(indent=2).encode() + b"\n")


def read_proofs(paths: StatePaths, digest: str) -> dict[str, UrlProof]:
    """Return the stored findings about a world's URLs, by URL; none if the file is missing or invalid."""
    try:
        return dict(_Proofs.model_validate_json(read_regular(_locate_file(paths, digest), _MAX_BYTES)).urls)
    except (OSError, UnsafePathError, ValidationError):
        return {}


def explain_unproven(
    urls: Sequence[str], proofs: Mapping[str, UrlProof], *, are_declared: bool, task: str = "", task_image: str = ""
) -> str | None:
    """Return why copies of a world are not proven to answer as the world itself; None if they are.

    Args:
        urls: URLs to be proven: the declared ones, else those that verifiers read.
        proofs: Findings about the world, by URL.
        are_declared: Whether the manifest names the URLs.
        task: Id of the task that is to be run. A proof of another task counts, so that one check does for a world of
            many tasks.
        task_image: Digest of the files from which its image is built. A proof of another image of this task does not
            count.
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
            # Without the detail, which may quote a service's answer: this sentence goes into results and histories.
            how = "answered otherwise in a copy" if proof.is_lost else "was asked, and proves nothing"
            return f"GET {url} {how}"
    return None


def _locate_file(paths: StatePaths, digest: str) -> Path:
    return paths.proofs / f"{digest}.json"
