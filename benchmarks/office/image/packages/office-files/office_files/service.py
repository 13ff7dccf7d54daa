"""The files service: its tables, the shapes of its answers, its operations, and how a world fills it."""

from __future__ import annotations

from office_core.arguments import PAGE, choice, content, flag, line, people
from office_core.service import (
    COUNT,
    FLAG,
    TEXT,
    TIME,
    Operation,
    Service,
    list_of,
    listing,
    refer,
    shape,
)
from office_core.store import Store, remember_last

from office_files import tree
from office_files.access import ROLES, clean, make_folders, parent
from office_files.tree import ENCODINGS, media_type_of, size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from office_core.store import Row
    from office_core.worlds import World

TABLES = """
create table folders(path text primary key, owner text not null, shared json not null) without rowid;
create table files(id text primary key, path text not null, owner text not null, media_type text not null,
                   encoding text not null, content text not null, size integer not null, shared json not null,
                   version integer not null, created_at text not null, updated_at text not null,
                   trashed boolean not null);
create unique index live_files_by_path on files(path) where not trashed;
"""

SHARED = list_of(shape(email=TEXT, role={"type": "string", "enum": list(ROLES)}))
HEAD = {
    "id": TEXT,
    "path": TEXT,
    "owner": TEXT,
    "media_type": TEXT,
    "size": COUNT,
    "shared": SHARED,
    "version": COUNT,
    "encoding": {"type": "string", "enum": list(ENCODINGS)},
    "created_at": TIME,
    "updated_at": TIME,
    "trashed": FLAG,
}
SHAPES = {
    "File": shape(**HEAD, content=TEXT),
    "FileSummary": shape(**HEAD),
    "FileFound": shape(**HEAD, snippet=TEXT),
    "Folder": shape(path=TEXT, owner=TEXT, shared=SHARED),
}
FILE, FOLDER, SUMMARIES = refer("File"), refer("Folder"), listing("files", "FileSummary")
ID = {"id": line("Of a file: f-0007.", required=True)}
PATH = {"path": line("From the top: /Finance/2026/budget.csv", required=True)}
PEOPLE = {"people": people("Addresses or handles; `everyone` is the whole company.", required=True)}
ROLE = {"role": choice(ROLES, required=True)}
CONTENT = {"content": content("The whole content."), "encoding": choice(ENCODINGS, "text unless given.")}

OPERATIONS = (
    Operation(
        "list_folder",
        "GET /folders",
        tree.list_folder,
        "What is in a folder.",
        {"path": line("/ unless given."), "recursive": flag("true: also what is in the folders below.")},
        result=shape(path=TEXT, folders=list_of(FOLDER), files=list_of(refer("FileSummary"))),
    ),
    Operation(
        "create_folder",
        "POST /folders",
        tree.create_folder,
        "Make a folder, and those above it.",
        PATH,
        result=FOLDER,
        status=201,
    ),
    Operation(
        "share_folder",
        "POST /folders/share",
        tree.share_folder,
        "Let people read or write all in a folder. They may be outside of the company.",
        {**PATH, **PEOPLE, **ROLE},
        result=FOLDER,
    ),
    Operation(
        "unshare_folder",
        "POST /folders/unshare",
        tree.unshare_folder,
        "Take a folder away from people.",
        {**PATH, **PEOPLE},
        result=FOLDER,
    ),
    Operation(
        "search_files",
        "GET /search",
        tree.search_files,
        "Search paths and texts.",
        {"q": line('Words and "phrases" that must all occur.', required=True), **PAGE},
        result=listing("files", "FileFound"),
    ),
    Operation(
        "find_file",
        "GET /files",
        tree.find_file,
        "The file at a path, without its content.",
        PATH,
        result=refer("FileSummary"),
    ),
    Operation("read_file", "GET /files/{id}", tree.read_file, "A file with its content.", ID, result=FILE),
    Operation(
        "create_file",
        "POST /files",
        tree.create_file,
        "Make a file; missing folders are made.",
        {**PATH, **CONTENT, "media_type": line("By the name unless given.")},
        result=FILE,
        status=201,
    ),
    Operation(
        "write_file", "PUT /files/{id}", tree.write_file, "Replace a file's content.", {**ID, **CONTENT}, result=FILE
    ),
    Operation(
        "append_to_file",
        "POST /files/{id}/append",
        tree.append_to_file,
        "Add lines to a text.",
        {**ID, "content": content()},
        result=FILE,
    ),
    Operation(
        "move_file", "POST /files/{id}/move", tree.move_file, "Move or rename a file.", {**ID, **PATH}, result=FILE
    ),
    Operation(
        "copy_file",
        "POST /files/{id}/copy",
        tree.copy_file,
        "Copy a file; the copy is mine.",
        {**ID, **PATH},
        result=FILE,
        status=201,
    ),
    Operation("delete_file", "DELETE /files/{id}", tree.delete_file, "Put a file into the trash.", ID, result=FILE),
    Operation(
        "restore_file",
        "POST /files/{id}/restore",
        tree.restore_file,
        "Take a file out of the trash, to where it was.",
        ID,
        result=FILE,
    ),
    Operation("list_trash", "GET /trash", tree.list_trash, "The files in the trash.", result=SUMMARIES),
    Operation(
        "share_file",
        "POST /files/{id}/share",
        tree.share_file,
        "Let people read or write a file. They may be outside of the company.",
        {**ID, **PEOPLE, **ROLE},
        result=FILE,
    ),
    Operation(
        "unshare_file",
        "POST /files/{id}/unshare",
        tree.unshare_file,
        "Take a file away from people.",
        {**ID, **PEOPLE},
        result=FILE,
    ),
)


def seed(world: World, store: Store) -> None:
    """Folders that only files name belong to the files' owners."""
    for item in world.items("folders"):
        place = {"path": clean(item.text("path")), "owner": item.address(item.text("owner"))}
        make_folders(store, place["path"], place["owner"])
        store.update("folders", place["path"], {"owner": place["owner"], "shared": item.shared(ROLES)}, "path")
        item.done()
    for item in world.items("files"):
        path, owner = clean(item.text("path")), item.address(item.text("owner"))
        encoding = item.choice("encoding", ENCODINGS, "text")
        # Unlike in other texts, the last line break is part of the content.
        content = item.needed("content")
        row: Row = {"id": item.text("id"), "path": path, "owner": owner, "encoding": encoding, "content": content}
        row.update(media_type=item.text("media_type", media_type_of(path, encoding)), size=size_of(content, encoding))
        updated = item.time("updated_at")
        row.update(created_at=item.time("created_at", updated), updated_at=updated, trashed=item.flag("trashed", False))
        make_folders(store, parent(path), owner)
        store.insert("files", {**row, "shared": item.shared(ROLES), "version": 1})
        item.done()
    remember_last(store, "files", "f-")


SERVICE = Service(
    "files",
    9105,
    "the company's files: folders, texts and other files, a trash, sharing.",
    tables=TABLES,
    shapes=SHAPES,
    operations=OPERATIONS,
    seed=seed,
)
