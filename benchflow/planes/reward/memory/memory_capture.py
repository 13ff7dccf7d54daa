"""Capture the skills and the memory of an agent from a sandbox, in one round trip, and keep them with the evidence.

The agent may have written all of it, so nothing is trusted: names may have any bytes, files any size and number, links
any target. Links are recorded and never followed. The capture records what was left out.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from benchflow.contracts.base import Model
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import RewardFuncError, VerifierError
from benchflow.host_files import write_atomic
from benchflow.planes.reward.memory.path_patterns import find_outermost, make_absolute
from benchflow.stored_files import read_stored

TEXT_LIMIT = 64 * 1024
"""Maximum bytes of a file whose text is captured."""

TEXTS_LIMIT = 4 * 1024 * 1024
"""Maximum bytes of all texts of a capture."""

LIST_LIMIT = 3 * 1024 * 1024
"""Maximum bytes of the list of files, enough for about 20,000. With the texts, in base64, it fits into one answer of a
sandbox.
"""

HASH_LIMIT = 64 * 1024 * 1024
"""Maximum bytes of a file that are hashed."""

TIMEOUT = 120.0
"""Maximum seconds of a capture."""

When = Literal["before", "after"]
"""Moment of a capture: before or after the agent acted."""

# Prints one batch of files: kind, number, names, sizes, hashes. Only names may have any bytes; as sha256sum versions
# quote them differently, its lines are parsed with the names at hand.
_LIST = r"""
case $0 in
link) printf '%s\0' link $#; for f; do printf '%s\0' "$f" "$(readlink "$f" 2>/dev/null)"; done; exit 0;;
esac
sizes=$(stat -c %s -- "$@" 2>/dev/null) || sizes=$(for f; do wc -c <"$f" 2>/dev/null || echo -; done)
case $0 in
huge) sums=$(for f; do head -c HASHED <"$f" 2>/dev/null | sha256sum; done);;
*) sums=$(sha256sum -- "$@" 2>/dev/null);;
esac
printf '%s\0' "$0" $# "$@" "$sizes" "$sums"
"""

_SCRIPT = r"""
LC_ALL=C; export LC_ALL
list=$1; shift
for tool in find sha256sum head cat wc; do
  command -v $tool >/dev/null || { echo "the image has no $tool" >&2; exit 3; }
done
if command -v base64 >/dev/null; then coding=base64; encode() { base64; }
elif command -v od >/dev/null; then coding=hex; encode() { od -An -v -tx1; }
else echo "the image has neither base64 nor od" >&2; exit 3; fi
n=$#; while [ $n -gt 0 ]; do
  d=$1; shift; n=$((n - 1))
  if [ -e "$d" ] || [ -L "$d" ]; then set -- "$@" "$d"; fi
done
echo $coding
[ $# -gt 0 ] || exit 0
{ printf '%s\0' $# "$@"
  find "$@" -type f -size -SMALLc -exec sh -c "$list" small {} +
  find "$@" -type f ! -size -SMALLc ! -size +HASHEDc -exec sh -c "$list" large {} +
  find "$@" -type f -size +HASHEDc -exec sh -c "$list" huge {} +
  find "$@" -type l -exec sh -c "$list" link {} +
} 2>/dev/null | head -c LISTED | encode
echo --
find "$@" -type f -size -SMALLc -exec cat -- {} + 2>/dev/null | head -c TEXTS | encode
"""


class MemoryFile(Model):
    """A file or symbolic link of an agent's memory."""

    sha256: str
    """Hex sha256 of its first 64 MiB, or of a link's target."""

    size: int
    """Bytes of the file, or of a link's target."""

    text: str | None = None
    """Text, with secrets removed; None for a link, a large file or one that is no UTF-8 text, and beyond the limit of
    all texts.
    """

    link: str | None = None
    """Target of a symbolic link; None for a file."""


class MemoryCapture(Model):
    """The files in some directories of a sandbox at one moment."""

    home: str
    """Absolute path of the agent's home."""

    workspace: str
    """Absolute path of the task's workspace."""

    directories: tuple[str, ...]
    """Absolute paths of the directories that were captured."""

    missing: tuple[str, ...] = ()
    """Those directories that did not exist."""

    files: dict[str, MemoryFile] = {}
    r"""Files by absolute path, in which a backslash is doubled, and a byte that is not UTF-8 is written `\xNN`."""

    is_complete: bool = True
    """Whether all files are listed."""

    cuts: tuple[str, ...] = ()
    """Sentences about what was left out."""


async def capture_memory(
    sandbox: Sandbox, directories: Sequence[str], *, home: str, clean: Callable[[str], str] = lambda text: text
) -> MemoryCapture:
    """Return the files that are in these directories now.

    Args:
        sandbox: Sandbox of the agent.
        directories: Paths, absolute, below the agent's home (`~/…`) or relative to the workspace. A file is captured by
            itself.
        home: Absolute path of the agent's home.
        clean: Removes secrets from each text that is captured.

    Raises:
        VerifierError: The directories can't be captured.
    """
    workspace = sandbox.ref.workdir
    places = find_outermost([make_absolute(place, home=home, workspace=workspace) for place in directories])
    if not places:
        return MemoryCapture(home=home, workspace=workspace, directories=())
    limits = {"SMALL": TEXT_LIMIT + 1, "HASHED": HASH_LIMIT, "LISTED": LIST_LIMIT + 1, "TEXTS": TEXTS_LIMIT + 1}
    script, program = _SCRIPT, _LIST
    for name, value in limits.items():
        script, program = script.replace(name, str(value)), program.replace(name, str(value))
    result = await sandbox.control(script, program, *places, timeout=TIMEOUT)
    if result.return_code != 0 or result.truncated:
        why = f"it took more than {TIMEOUT:g} s" if result.timed_out else result.stderr.strip() or "the answer is cut"
        raise VerifierError(
            f"the agent's memory cannot be captured: {why}",
            remedy="name narrower directories, and an image with a POSIX shell, find and sha256sum",
        )
    listing, texts = _decode_answer(result.stdout)
    return _Reading(listing, texts, clean).make_capture(home, workspace, places)


def store_memory(capture: MemoryCapture, evidence: Path, when: When) -> Path:
    """Write a capture below a rollout's evidence, and return its file.

    Raises:
        StoreError: It can't be written.
    """
    path = evidence / "memory" / f"{when}.json"
    write_atomic(path, capture.model_dump_json().encode() + b"\n", durable=False)
    return path


def read_memory(evidence: Path | None) -> tuple[MemoryCapture, MemoryCapture]:
    """Return the captures before and after the agent.

    Raises:
        RewardFuncError: There is no evidence, or a capture is missing or invalid.
    """
    if evidence is None:
        raise RewardFuncError(
            "nothing was kept of this rollout's sandbox", remedy="score a rollout whose evidence was kept"
        )
    return _read_capture(evidence, "before"), _read_capture(evidence, "after")


def _read_capture(evidence: Path, when: When) -> MemoryCapture:
    path = evidence / "memory" / f"{when}.json"
    try:
        return MemoryCapture.model_validate_json(read_stored(path))
    except FileNotFoundError:
        raise RewardFuncError(
            f"the agent's memory was not captured {when} it acted",
            file=str(path),
            remedy="run the task again with `reward.funcs` that read the memory: a rescore cannot capture it",
        ) from None
    except (OSError, ValidationError) as error:
        raise RewardFuncError(
            f"is no capture of a memory: {error}", file=str(path), remedy="restore the file, or run the task again"
        ) from error


# --- what a sandbox has answered -----------------------------------------------------------------------


def _decode_answer(answer: str) -> tuple[bytes, bytes]:
    """Return the list of files and the texts in a script's output. Raise `VerifierError` if it is garbled."""
    coding, _, rest = answer.partition("\n")
    listing, _, texts = rest.partition("--\n")
    decode = base64.b64decode if coding == "base64" else bytes.fromhex
    try:
        return decode(listing), decode(texts)
    except ValueError as error:
        raise VerifierError(f"the agent's memory cannot be captured: the answer is garbled: {error}") from error


@dataclass
class _Reading:
    """Parser of a script's output."""

    listing: bytes
    """List of files, as items that end in NUL."""

    texts: bytes
    """Content of all small files, in the order of the list."""

    clean: Callable[[str], str]
    """Removes secrets from a text."""

    def make_capture(self, home: str, workspace: str, places: tuple[str, ...]) -> MemoryCapture:
        """Return the capture. Raises `VerifierError` if the list ends early without having reached its limit."""
        is_complete = len(self.listing) <= LIST_LIMIT
        # After the last NUL is nothing, or a part of an item of a list that was cut.
        items = iter(self.listing.split(b"\0")[:-1])
        files: dict[str, MemoryFile] = {}
        cuts = [] if is_complete else [f"of a list of files of more than {LIST_LIMIT} bytes, the rest is left out"]
        existing: set[bytes] = set()
        try:
            existing.update(next(items) for _ in range(int(next(items, b"0"))))
            self._read_batches(items, files)
        except StopIteration:
            if is_complete:
                raise VerifierError("the agent's memory cannot be captured: the answer ends early") from None
        without_text = sum(
            file.text is None and file.link is None and file.size <= TEXT_LIMIT for file in files.values()
        )
        if len(self.texts) > TEXTS_LIMIT:
            cuts.append(
                f"of small files, {without_text} have no text here: together they have more than {TEXTS_LIMIT} bytes"
            )
        if huge := sum(file.size > HASH_LIMIT for file in files.values()):
            cuts.append(f"of {huge} large files, only the first {HASH_LIMIT} bytes are hashed")
        return MemoryCapture(
            home=home,
            workspace=workspace,
            directories=places,
            missing=tuple(place for place in places if place.encode() not in existing),
            files=dict(sorted(files.items())),
            is_complete=is_complete,
            cuts=tuple(cuts),
        )

    def _read_batches(self, items: Iterator[bytes], files: dict[str, MemoryFile]) -> None:
        """Add the files of all batches."""
        at = 0
        for kind in items:
            count = int(next(items))
            if kind == b"link":
                for _ in range(count):
                    path, target = next(items), next(items)
                    digest = hashlib.sha256(target).hexdigest()
                    files[escape_path(path)] = MemoryFile(sha256=digest, size=len(target), link=escape_path(target))
                continue
            names = [next(items) for _ in range(count)]
            sizes, lines = next(items).split(), next(items)
            sums: Sequence[bytes | None]
            sums = [line[:64] for line in lines.splitlines()] if kind == b"huge" else _read_hashes(names, lines)
            for name, size, digest_line in zip(names, sizes, sums, strict=False):
                if digest_line is None or not size.isdigit():
                    continue  # It was removed before it could be read.
                length, digest, text = int(size), digest_line.decode(), None
                if kind == b"small":
                    text = self._read_text(at, length, digest)
                    at += length
                files[escape_path(name)] = MemoryFile(sha256=digest, size=length, text=text)

    def _read_text(self, at: int, length: int, digest: str) -> str | None:
        """Return the text of a small file at an offset of the texts; None if it is not complete, or no UTF-8."""
        content = self.texts[at : at + length]
        # The hash shows whether the content is complete, and this file's.
        if b"\0" in content or hashlib.sha256(content).hexdigest() != digest:
            return None
        try:
            return self.clean(content.decode())
        except UnicodeDecodeError:
            return None


def _read_hashes(names: Sequence[bytes], lines: bytes) -> Sequence[bytes | None]:
    """Return the hash of each name in lines of sha256sum, however it quotes names; None for a name without one.

    Args:
        names: Names of the files, in the order of the lines.
        lines: Output of sha256sum, without its last newlines.
    """
    lines += b"\n" * 256
    found: list[bytes | None] = []
    at = 0
    for name in names:
        slashed = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
        for start, quoted in ((0, name), (1, slashed), (1, slashed.replace(b"\r", b"\\r"))):
            end = at + start + 64
            if lines.startswith(b"  " + quoted + b"\n", end):
                found.append(lines[end - 64 : end])
                at = end + 2 + len(quoted) + 1
                break
        else:
            found.append(None)
    return found


def escape_path(path: bytes) -> str:
    """Return a path as text; different paths have different texts."""
    return path.replace(b"\\", b"\\\\").decode(errors="backslashreplace")
