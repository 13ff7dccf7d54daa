"""Random changes of a small world, and a model of what they do to it: files, links, modes, owners, and a database.

The model knows nothing of sandboxes: it is a dictionary of paths, and one of rows. `PROGRAM` makes the same changes in
a sandbox and prints what is there then.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

ROOM = "/room"
DATABASE = "/data/state.db"

Change = dict[str, Any]

# Changes are made as they were drawn. The process ends without closing the database, so that what it has committed in
# WAL mode stays in the file beside it.
PROGRAM = f"""
import json, os, shutil, sqlite3, stat, subprocess, sys

os.umask(0o022)
os.makedirs("{ROOM}", exist_ok=True)
os.makedirs("/data", exist_ok=True)
os.chdir("{ROOM}")
db = sqlite3.connect("{DATABASE}", isolation_level=None)
db.execute("CREATE TABLE IF NOT EXISTS facts (id INTEGER PRIMARY KEY, text TEXT)")

def make(kind, path=None, other=None, text=None, number=None):
    if kind == "write":
        with open(path, "w") as file:
            file.write(text)
    elif kind == "append":
        with open(path, "a") as file:
            file.write(text)
    elif kind == "mkdir":
        os.mkdir(path)
    elif kind == "symlink":
        os.symlink(text, path)
    elif kind == "link":
        os.link(other, path)
    elif kind == "rename":
        subprocess.run(["mv", "-T", path, other], check=True)  # may have to copy, and then keeps owners
    elif kind == "delete":
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    elif kind == "chmod":
        os.chmod(path, number)
    elif kind == "chown":
        os.chown(path, number, number)
    elif kind == "put":
        db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (number, text))
    elif kind == "drop":
        db.execute("DELETE FROM facts WHERE id = ?", (number,))
    elif kind == "journal":
        db.execute(f"PRAGMA journal_mode = {{text}}").fetchall()

def seen():
    found = {{}}
    for above, directories, files in os.walk("."):
        for name in directories + files:
            path = os.path.relpath(os.path.join(above, name), ".")
            told = os.lstat(path)
            if stat.S_ISLNK(told.st_mode):
                found[path] = ["link", os.readlink(path)]
            elif stat.S_ISDIR(told.st_mode):
                found[path] = ["directory", stat.S_IMODE(told.st_mode), told.st_uid]
            else:
                found[path] = ["file", open(path).read(), stat.S_IMODE(told.st_mode), told.st_uid]
    return {{"files": found, "facts": dict(db.execute("SELECT id, text FROM facts"))}}

for change in json.loads(sys.argv[1]):
    make(**change)
print(json.dumps(seen()), flush=True)
os._exit(0)
"""


@dataclass
class File:
    """A file that several names may have.

    shared: it is not changed any more, because a layered file system keeps what two names have in common only as long
    as the file is not copied up.
    """

    text: str
    mode: int = 0o644
    owner: int = 0
    shared: bool = False


@dataclass
class Directory:
    mode: int = 0o755
    owner: int = 0


@dataclass
class Model:
    """What a world must be. Paths are relative to `ROOM`; a link is its target."""

    places: dict[str, File | Directory | str] = field(default_factory=dict)
    facts: dict[int, str] = field(default_factory=dict)

    def copied(self) -> Model:
        return copy.deepcopy(self)

    def seen(self) -> dict[str, Any]:
        """As `PROGRAM` prints it."""
        files: dict[str, list[Any]] = {}
        for path, place in self.places.items():
            match place:
                case str():
                    files[path] = ["link", place]
                case Directory():
                    files[path] = ["directory", place.mode, place.owner]
                case File():
                    files[path] = ["file", place.text, place.mode, place.owner]
        return {"files": files, "facts": {str(number): text for number, text in self.facts.items()}}

    def change(self, chance: random.Random) -> Change:
        """Draw a change that can be made, and make it here."""
        while True:
            if (change := _KINDS[chance.choice(_NAMES)](self, chance)) is not None:
                return change

    # --- what there is to choose from ------------------------------------------------------------------------

    def _any(self, chance: random.Random, *kinds: type) -> str | None:
        found = sorted(path for path, place in self.places.items() if isinstance(place, kinds))
        return chance.choice(found) if found else None

    def _own_file(self, chance: random.Random) -> tuple[str, File] | None:
        found = [(path, it) for path, it in sorted(self.places.items()) if isinstance(it, File) and not it.shared]
        return chance.choice(found) if found else None

    def _free(self, chance: random.Random) -> str:
        """A name that nothing has; often one that something has had."""
        directories = ["", *(f"{path}/" for path, it in sorted(self.places.items()) if isinstance(it, Directory))]
        free = [path for each in directories for name in _FEW if (path := each + name) not in self.places]
        return chance.choice(free)

    def _below(self, path: str) -> list[str]:
        return [each for each in self.places if each == path or each.startswith(f"{path}/")]

    # --- the changes -----------------------------------------------------------------------------------------

    def write(self, chance: random.Random) -> Change:
        text = _text(chance)
        old = self._own_file(chance) if chance.random() < 0.4 else None
        path = old[0] if old else self._free(chance)
        if old:
            old[1].text = text
        else:
            self.places[path] = File(text)
        return {"kind": "write", "path": path, "text": text}

    def append(self, chance: random.Random) -> Change | None:
        if (found := self._own_file(chance)) is None:
            return None
        text = _text(chance)
        found[1].text += text
        return {"kind": "append", "path": found[0], "text": text}

    def mkdir(self, chance: random.Random) -> Change | None:
        path = self._free(chance)
        if path.count("/") > 2:
            return None
        self.places[path] = Directory()
        return {"kind": "mkdir", "path": path}

    def symlink(self, chance: random.Random) -> Change:
        path, target = self._free(chance), chance.choice(["a", "b", "../a", "/room/c", "nowhere"])
        self.places[path] = target
        return {"kind": "symlink", "path": path, "text": target}

    def link(self, chance: random.Random) -> Change | None:
        if (other := self._any(chance, File)) is None:
            return None
        file = self.places[other]
        assert isinstance(file, File)
        file.shared = True
        path = self._free(chance)
        self.places[path] = file
        return {"kind": "link", "other": other, "path": path}

    def rename(self, chance: random.Random) -> Change | None:
        if (path := self._any(chance, File, Directory, str)) is None:
            return None
        other = self._free(chance)
        if other.startswith(f"{path}/"):
            return None
        moved = {each: self.places.pop(each) for each in self._below(path)}
        self.places |= {other + each[len(path) :]: place for each, place in moved.items()}
        return {"kind": "rename", "path": path, "other": other}

    def delete(self, chance: random.Random) -> Change | None:
        if (path := self._any(chance, File, Directory, str)) is None:
            return None
        for each in self._below(path):
            del self.places[each]
        return {"kind": "delete", "path": path}

    def chmod(self, chance: random.Random) -> Change | None:
        return self._set(chance, "chmod", "mode", (0o600, 0o640, 0o700, 0o755, 0o777))

    def chown(self, chance: random.Random) -> Change | None:
        return self._set(chance, "chown", "owner", (0, 1000, 1001))

    def _set(self, chance: random.Random, kind: str, what: str, values: tuple[int, ...]) -> Change | None:
        found = {
            path: it
            for path, it in sorted(self.places.items())
            if isinstance(it, Directory) or (isinstance(it, File) and not it.shared)
        }
        if not found:
            return None
        path, value = chance.choice([*found]), chance.choice(values)
        setattr(found[path], what, value)
        return {"kind": kind, "path": path, "number": value}

    def put(self, chance: random.Random) -> Change:
        number, text = chance.randrange(6), _text(chance)
        self.facts[number] = text
        return {"kind": "put", "number": number, "text": text}

    def drop(self, chance: random.Random) -> Change | None:
        if not self.facts:
            return None
        number = chance.choice(sorted(self.facts))
        del self.facts[number]
        return {"kind": "drop", "number": number}

    def journal(self, chance: random.Random) -> Change:
        return {"kind": "journal", "text": chance.choice(["WAL", "WAL", "DELETE"])}


_KINDS = {
    kind.__name__: kind
    for kind in (
        Model.write,
        Model.append,
        Model.mkdir,
        Model.symlink,
        Model.link,
        Model.rename,
        Model.delete,
        Model.chmod,
        Model.chown,
        Model.put,
        Model.drop,
        Model.journal,
    )
}
_NAMES = [*_KINDS, "write", "write", "put", "put"]
_FEW = "abcdefghijklmnopqrstuvwxyz"


def _text(chance: random.Random) -> str:
    """Few that are alike, and of any length, so that none is found by its size."""
    return chance.choice("klmnopq") * chance.choice((1, 7, 300)) + str(chance.randrange(10**6))
