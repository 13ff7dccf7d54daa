"""Parser of manifest files: every field of the published format, and nothing else.

The format is TOML, with the root table `[environment]`, or YAML, with the root key `environment`: the same content is
the same manifest. A problem is a `ManifestError` with file, line, key and remedy. Values are validated beyond their
types in `rules`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from benchflow.contracts.base import Model
from benchflow.contracts.environment import Manifest
from benchflow.errors import ManifestError
from benchflow.planes.environment.rules import find_problems
from benchflow.user_files.problems import ProblemError, find_nearest
from benchflow.user_files.user_document import Form, UserDocument, read_text
from benchflow.user_files.user_model import KeyFault, find_models, list_fields, make_model

MAX_BYTES = 256 * 1024
"""Maximum size of a manifest's file, in bytes: more than any needs."""


class _File(Model):
    """The root of the file."""

    environment: Manifest


_TABLES: dict[str, type] = {
    "environment": Manifest,
    **{name: model for name, field in list_fields(Manifest).items() for model in find_models(field.annotation)},
}

_SHARED_FLEET = frozenset(
    {
        *("accountbroker", "accounts", "fleet", "hostports", "sharedfleet", "sidecar", "sidecars"),
        *("taskdatabase", "topology"),
    }
)
"""Keys of the topology in which worlds run beside the sandboxes, in lower case, without `_` and `-`."""


def read_manifest(file: Path) -> Manifest:
    """Read, parse and validate the manifest in a file. Raise `ManifestError` for its first problem."""
    document = _read(file)

    def report(fault: KeyFault) -> None:
        raise fault.as_error(ManifestError, _format_place(file, document.line(fault.at)))

    if "environment" not in document.table and not find_nearest("environment", document.table):
        raise ManifestError(
            "has no table `environment`, so it is no manifest",
            file=str(file),
            key="environment",
            remedy="begin it with [environment] (in YAML with `environment:`)",
        )
    found = make_model(
        _File,
        document.table,
        report,
        unknown=lambda fault, _: report(_explain_unknown(fault, document)),
        header=document.header,
        strict=True,
    )
    assert found is not None
    for at, message, remedy in find_problems(found.environment, document.data["environment"]):
        report(KeyFault(("environment", *at), message, remedy))
    return found.environment


def digest_manifest(manifest: Manifest, image: str | None) -> str:
    """Return the SHA-256, in hex, of a manifest's content, whatever its file's format, order and comments.

    Args:
        manifest: The manifest.
        image: Digest of the files in `image/` beside it; None if there are none.
    """
    # Without the defaults: a field that a later release adds leaves the digests of today's manifests as they are.
    said = {"manifest": manifest.model_dump(mode="json", exclude_defaults=True), "image": image}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _read(file: Path) -> UserDocument:
    """Return the content of a manifest's file, which is a mapping. Raise `ManifestError` if it is none."""
    if file.is_dir():
        raise ManifestError(
            "is a directory, not a manifest", file=str(file), remedy=f"give the file: {file / 'environment.toml'}"
        )
    form: Form = "yaml" if file.suffix.lower() in (".yaml", ".yml") else "toml"
    try:
        document = UserDocument(file, read_text(file, MAX_BYTES), form, has_dates=False)
        document.data = document.table
    except ProblemError as error:
        failure = error.as_error(ManifestError)
        failure.file = _format_place(file, error.line)
        raise failure from error
    return document


def _format_place(file: Path, line: int | None) -> str:
    return f"{file}:{line}" if line else str(file)


def _explain_unknown(fault: KeyFault, document: UserDocument) -> KeyFault:
    """Return the fault of an unknown key with what is known about it: another topology, or another table."""
    key = str(fault.at[-1])
    if key.lower().replace("_", "").replace("-", "") in _SHARED_FLEET:
        return KeyFault(
            fault.at,
            "belongs to the shared-fleet topology (TaskDatabase, AccountBroker), which is no part of the manifest",
            "remove it: a world runs inside each rollout's own sandbox; "
            'isolation = "persistent" shares one among the episodes of a job',
        )
    table = next((part for part in reversed(fault.at[:-1]) if isinstance(part, str)), None)
    if "did you mean" not in fault.remedy:
        for name, model in _TABLES.items():
            if key in list_fields(model) and name != table:
                home = document.header(("environment",) if name == "environment" else ("environment", name))
                return KeyFault(fault.at, "is not a known key of this table", f"it belongs to {home}")
    return fault
