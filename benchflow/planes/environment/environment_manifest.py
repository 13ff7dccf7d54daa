"""Parser of manifest files: every field of the published format, and nothing else.

The format is TOML, with the root table `[environment]`, or YAML, with the root key `environment`: the same content is
the same manifest. A problem is a `ManifestError` with file, line, key and remedy. Values are validated beyond their
types in `rules`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from benchflow.contracts.base import Model, non_finite
from benchflow.contracts.environment import (
    ForwardEnv,
    Manifest,
    Readiness,
    Service,
    StateTable,
    TaskSelection,
)
from benchflow.errors import ManifestError
from benchflow.planes.environment.document import KeyPath, ManifestDocument
from benchflow.planes.environment.rules import problems_of


class _File(Model):
    """The root of the file."""

    environment: Manifest


_TABLES: dict[str, type[BaseModel]] = {
    "environment": Manifest,
    "task_selection": TaskSelection,
    "services": Service,
    "readiness": Readiness,
    "forward_env": ForwardEnv,
    "state": StateTable,
}

_SHARED_FLEET = frozenset(
    {
        *("accountbroker", "accounts", "fleet", "hostports", "sharedfleet", "sidecar", "sidecars"),
        *("taskdatabase", "topology"),
    }
)
"""Keys of the topology in which worlds run beside the sandboxes, in lower case, without `_` and `-`."""

_WORDS = {
    "string_type": "must be a text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "model_type": "must be a table",
    "greater_than": "must be greater than 0",
}


def read_manifest(file: Path) -> Manifest:
    """Read, parse and validate the manifest in a file. Raise `ManifestError` for its first problem."""
    document = ManifestDocument(file)
    if "environment" not in document.data and not _near("environment", document.data):
        raise ManifestError(
            "has no table `environment`, so it is no manifest",
            file=str(file),
            key="environment",
            remedy="begin it with [environment] (in YAML with `environment:`)",
        )
    try:
        # Strict validation of JSON accepts lists for tuples, but no string for a number.
        manifest = _File.model_validate_json(json.dumps(document.data), strict=True).environment
    except ValidationError as error:
        # A key that is missing is often one that is misspelled.
        first = min(error.errors(), key=lambda details: details["type"] != "extra_forbidden")
        raise _model_error(first, document) from error
    for at in non_finite(manifest, ("environment",)):
        raise document.error(at, "must be a finite number", "give a smaller number")
    for at, message, remedy in problems_of(manifest, document.data["environment"]):
        raise document.error(("environment", *at), message, remedy)
    return manifest


def manifest_digest(manifest: Manifest, image: str | None) -> str:
    """Return the SHA-256, in hex, of a manifest's content, whatever its file's format, order and comments.

    Args:
        manifest: The manifest.
        image: Digest of the files in `image/` beside it; None if there are none.
    """
    # Without the defaults: a field that a later release adds leaves the digests of today's manifests as they are.
    said = {"manifest": manifest.model_dump(mode="json", exclude_defaults=True), "image": image}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _model_error(details: ErrorDetails, document: ManifestDocument) -> ManifestError:
    """Return the `ManifestError` for an error of pydantic, with the line of its key and a remedy."""
    at: KeyPath = tuple(details["loc"])
    if details["type"] == "extra_forbidden":
        return _unknown_key(at, document)
    if details["type"] == "missing":
        return document.error(at, "is missing", f"add `{at[-1]}` to {document.table(at[:-1])}")
    given = details["input"]
    shown = "" if isinstance(given, dict | list) else f", not {json.dumps(given, ensure_ascii=False)}"
    if details["type"] == "literal_error":
        allowed = _field_choices(at)
        near = _near(str(given), allowed)
        remedy = f'did you mean "{near}"?' if near else f"write {' or '.join(json.dumps(one) for one in allowed)}"
        return document.error(at, "must be " + " or ".join(json.dumps(one) for one in allowed) + shown, remedy)
    message = _WORDS.get(details["type"], details["msg"])
    return document.error(at, message + shown, _type_remedy(details["type"], given, at, document))


def _unknown_key(at: KeyPath, document: ManifestDocument) -> ManifestError:
    key = str(at[-1])
    if key.lower().replace("_", "").replace("-", "") in _SHARED_FLEET:
        return document.error(
            at,
            "belongs to the shared-fleet topology (TaskDatabase, AccountBroker), which is no part of the manifest",
            "remove it: a world runs inside each rollout's own sandbox; "
            'isolation = "persistent" shares one among the episodes of a job',
        )
    table = next((part for part in reversed(at[:-1]) if isinstance(part, str)), None)
    known = list(_TABLES[table].model_fields) if table else ["environment"]
    near = _near(key, known)
    if near:
        return document.error(at, "is not a known key", f"did you mean `{near}`?")
    for name, model in _TABLES.items():
        if key in model.model_fields and name != table:
            home = document.table(("environment",) if name == "environment" else ("environment", name))
            return document.error(at, "is not a known key of this table", f"it belongs to {home}")
    return document.error(at, "is not a known key", f"remove it; known here: {', '.join(known)}")


def _near(word: str, known: Sequence[str] | dict[str, Any]) -> str | None:
    """Return the known word that is most like a misspelled one; None if none is."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)


def _field_choices(at: KeyPath) -> list[str]:
    """Return the allowed values of a `Literal` field."""
    table = next(part for part in reversed(at[:-1]) if isinstance(part, str))
    annotation: Any = _TABLES[table].model_fields[str(at[-1])].annotation
    return [str(word) for word in annotation.__args__]


def _type_remedy(kind: str, given: Any, at: KeyPath, document: ManifestDocument) -> str:
    if kind == "string_type" and isinstance(given, int | float):
        return "write it in quotes"
    if kind in ("int_type", "float_type") and isinstance(given, str) and given.strip().isdigit():
        return f"write it without quotes: {given.strip()}"
    if kind == "bool_type" and str(given).lower() in ("true", "false"):
        return f"write it without quotes: {str(given).lower()}"
    if kind == "tuple_type" and at[-1] == "services":
        return f"write each service as a table of its own: {document.table((*at, 0))}"
    if kind == "tuple_type":
        return f"write [{json.dumps(given)}]" if isinstance(given, str | int) else "write a list: [...]"
    if kind == "model_type":
        return f"write {document.table(at)} and its keys below it"
    return "change the value"
