"""The skills and the memory of an agent as they lie in a sandbox: captured in one round trip, kept with the evidence.

An agent may have written what is captured, so nothing about it is taken for granted: names of any bytes, files of any
size and number, links to anywhere. Links are told and never followed. What is left out is said in the capture.
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
from benchflow.planes.reward.memory.places import absolute, outermost
from benchflow.store import write_atomic
from benchflow.stored_files import read_stored

TEXT_LIMIT = 64 * 1024
"""Bytes of a file whose text is kept."""

TEXTS_LIMIT = 4 * 1024 * 1024
"""Bytes of all texts of a capture."""

LIST_LIMIT = 3 * 1024 * 1024
"""Bytes of the list of files: some 20,000. With the texts, and in base64, it fits into one answer of a sandbox."""

HASHED = 64 * 1024 * 1024
"""Bytes of a file that are hashed."""

TIMEOUT = 120.0
"""Seconds that a capture may take."""

When = Literal["before", "after"]

# One batch of files: how many, their names, their sizes, their hashes. Only names are of any bytes; since sha256sum
# quotes them in more than one way, whoever reads its lines goes by the names.
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
    """A file of an agent's memory. sha256: of its first 64 MiB, of a link's target. size: bytes. link: the target of a
    symbolic link. text: of a small file that is UTF-8.
    """

    sha256: str
    size: int
    text: str | None = None
    link: str | None = None


class MemoryCapture(Model):
    """What lay in some directories of a sandbox at one moment.

    home: the agent's; workspace: the task's. directories: absolute, those that were looked into; missing: of them,
    those that are not there. files: by absolute path, in which a backslash is doubled and a byte that is not UTF-8 is
    written `\\xNN`. is_complete: whether all files are listed. cuts: what was left out, in sentences.
    """

    home: str
    workspace: str
    directories: tuple[str, ...]
    missing: tuple[str, ...] = ()
    files: dict[str, MemoryFile] = {}
    is_complete: bool = True
    cuts: tuple[str, ...] = ()


async def capture_memory(
    sandbox: Sandbox, directories: Sequence[str], *, home: str, clean: Callable[[str], str] = lambda text: text
) -> MemoryCapture:
    """What lies in these directories now; one that is a file is that file.

    directories: absolute, below the agent's home (`~/…`), or relative to the workspace. home: absolute. clean: takes
    secrets out of every text that is kept. Raises `VerifierError` when it cannot be captured.
    """
    workspace = sandbox.ref.workdir
    places = outermost([absolute(place, home=home, workspace=workspace) for place in directories])
    if not places:
        return MemoryCapture(home=home, workspace=workspace, directories=())
    limits = {"SMALL": TEXT_LIMIT + 1, "HASHED": HASHED, "LISTED": LIST_LIMIT + 1, "TEXTS": TEXTS_LIMIT + 1}
    script, program = _SCRIPT, _LIST
    for name, value in limits.items():
        script, program = script.replace(name, str(value)), program.replace(name, str(value))
    said = await sandbox.control(script, program, *places, timeout=TIMEOUT)
    if said.return_code != 0 or said.truncated:
        why = f"it took more than {TIMEOUT:g} s" if said.timed_out else said.stderr.strip() or "the answer is cut"
        raise VerifierError(
            f"the agent's memory cannot be captured: {why}",
            remedy="name narrower directories, and an image with a POSIX shell, find and sha256sum",
        )
    listing, texts = _decoded(said.stdout)
    return _Reading(listing, texts, clean).capture(home, workspace, places)


def keep_memory(capture: MemoryCapture, evidence: Path, when: When) -> Path:
    """Write a capture to a rollout's evidence; the file."""
    path = evidence / "memory" / f"{when}.json"
    write_atomic(path, capture.model_dump_json().encode() + b"\n", durable=False)
    return path


def read_memory(evidence: Path | None) -> tuple[MemoryCapture, MemoryCapture]:
    """The captures before and after the agent. Raises `RewardFuncError` where there are none, or none that is one."""
    if evidence is None:
        raise RewardFuncError(
            "nothing was kept of this rollout's sandbox", remedy="score a rollout whose evidence was kept"
        )
    return _read(evidence, "before"), _read(evidence, "after")


def _read(evidence: Path, when: When) -> MemoryCapture:
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


def _decoded(answer: str) -> tuple[bytes, bytes]:
    coding, _, rest = answer.partition("\n")
    listing, _, texts = rest.partition("--\n")
    decode = base64.b64decode if coding == "base64" else bytes.fromhex
    try:
        return decode(listing), decode(texts)
    except ValueError as error:
        raise VerifierError(f"the agent's memory cannot be captured: the answer is garbled: {error}") from error


@dataclass
class _Reading:
    """One answer, as it is read. listing: items that end in NUL. texts: of the small files, in the list's order."""

    listing: bytes
    texts: bytes
    clean: Callable[[str], str]

    def capture(self, home: str, workspace: str, places: tuple[str, ...]) -> MemoryCapture:
        is_complete = len(self.listing) <= LIST_LIMIT
        # What follows the last NUL is nothing, or half an item of a list that was cut.
        items = iter(self.listing.split(b"\0")[:-1])
        files: dict[str, MemoryFile] = {}
        cuts = [] if is_complete else [f"of a list of files of more than {LIST_LIMIT} bytes, the rest is left out"]
        there: set[bytes] = set()
        try:
            there.update(next(items) for _ in range(int(next(items, b"0"))))
            self._read(items, files)
        except StopIteration:
            if is_complete:
                raise VerifierError("the agent's memory cannot be captured: the answer ends early") from None
        untold = sum(file.text is None and file.link is None and file.size <= TEXT_LIMIT for file in files.values())
        if len(self.texts) > TEXTS_LIMIT:
            cuts.append(f"of small files, {untold} have no text here: together they have more than {TEXTS_LIMIT} bytes")
        if huge := sum(file.size > HASHED for file in files.values()):
            cuts.append(f"of {huge} large files, only the first {HASHED} bytes are hashed")
        return MemoryCapture(
            home=home,
            workspace=workspace,
            directories=places,
            missing=tuple(place for place in places if place.encode() not in there),
            files=dict(sorted(files.items())),
            is_complete=is_complete,
            cuts=tuple(cuts),
        )

    def _read(self, items: Iterator[bytes], files: dict[str, MemoryFile]) -> None:
        at = 0
        for kind in items:
            count = int(next(items))
            if kind == b"link":
                for _ in range(count):
                    path, target = next(items), next(items)
                    digest = hashlib.sha256(target).hexdigest()
                    files[shown(path)] = MemoryFile(sha256=digest, size=len(target), link=shown(target))
                continue
            names = [next(items) for _ in range(count)]
            sizes, lines = next(items).split(), next(items)
            sums: Sequence[bytes | None]
            sums = [line[:64] for line in lines.splitlines()] if kind == b"huge" else _sums(names, lines)
            for name, size, told in zip(names, sizes, sums, strict=False):
                if told is None or not size.isdigit():
                    continue  # It was gone before it could be read.
                length, digest, text = int(size), told.decode(), None
                if kind == b"small":
                    text = self._text(at, length, digest)
                    at += length
                files[shown(name)] = MemoryFile(sha256=digest, size=length, text=text)

    def _text(self, at: int, length: int, digest: str) -> str | None:
        content = self.texts[at : at + length]
        # The hash tells whether it is whole, and whether it is this file's.
        if b"\0" in content or hashlib.sha256(content).hexdigest() != digest:
            return None
        try:
            return self.clean(content.decode())
        except UnicodeDecodeError:
            return None


def _sums(names: Sequence[bytes], lines: bytes) -> Sequence[bytes | None]:
    """The hash of each name that a sha256sum told, whichever way it quotes names. lines: without the last newlines."""
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


def shown(path: bytes) -> str:
    """A path as text that is another for every other path."""
    return path.replace(b"\\", b"\\\\").decode(errors="backslashreplace")
