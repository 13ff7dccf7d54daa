"""The documents service: its tables, the shapes of its answers, its operations, and how a world fills it."""

from __future__ import annotations

from office_core.arguments import PAGE, choice, flag, line, number, people, person, text
from office_core.service import (
    COUNT,
    FLAG,
    TEXT,
    TIME,
    WORD_OR_NULL,
    Operation,
    Service,
    list_of,
    listing,
    refer,
    shape,
)
from office_core.store import Store, remember_last

from office_documents import people as around
from office_documents import texts
from office_documents.access import ROLES
from office_documents.texts import CLASSIFICATIONS, FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from office_core.store import Row
    from office_core.worlds import Item, World

TABLES = """
create table documents(id text primary key, title text not null, body text not null, owner text not null,
                       classification text not null, shared json not null, revision integer not null,
                       created_at text not null, updated_at text not null, trashed boolean not null);
create table revisions(document text not null references documents, revision integer not null, title text not null,
                       body text not null, author text not null, at text not null, summary text not null,
                       primary key (document, revision));
create table comments(id text primary key, document text not null references documents, author text not null,
                      text text not null, quote text, reply_to text references comments,
                      resolved boolean not null, at text not null);
create index comments_by_document on comments(document);
"""

HEAD = {
    "id": TEXT,
    "title": TEXT,
    "owner": TEXT,
    "classification": {"type": "string", "enum": list(CLASSIFICATIONS)},
    "shared": list_of(shape(email=TEXT, role={"type": "string", "enum": list(ROLES)})),
    "revision": COUNT,
    "created_at": TIME,
    "updated_at": TIME,
    "trashed": FLAG,
}
SHAPES = {
    "Document": shape(**HEAD, body=TEXT, comments=list_of(refer("Comment"))),
    "DocumentSummary": shape(**HEAD),
    "DocumentFound": shape(**HEAD, snippet=TEXT),
    "Revision": shape(revision=COUNT, title=TEXT, author=TEXT, at=TIME, summary=TEXT),
    "Comment": shape(
        id=TEXT,
        document=TEXT,
        author=TEXT,
        text=TEXT,
        quote=WORD_OR_NULL,
        reply_to=WORD_OR_NULL,
        resolved=FLAG,
        at=TIME,
    ),
    "Export": shape(name=TEXT, media_type=TEXT, content=TEXT),
}
DOCUMENT = refer("Document")
ID = {"id": line("Of a document: d-0007.", required=True)}
REVISION = {"revision": number(1, 1_000_000, required=True)}
PEOPLE = {"people": people("Addresses or handles; `everyone` is the whole company.", required=True)}

OPERATIONS = (
    Operation(
        "list_documents",
        "GET /documents",
        texts.list_documents,
        "Documents that I may read, by title, without their texts.",
        {
            "owner": person(),
            "classification": choice(CLASSIFICATIONS),
            "trashed": flag("true: those in the trash."),
            **PAGE,
        },
        result=listing("documents", "DocumentSummary"),
    ),
    Operation(
        "search_documents",
        "GET /search",
        texts.search_documents,
        "Search titles and texts.",
        {"q": line('Words and "phrases" that must all occur; also owner: title:', required=True), **PAGE},
        result=listing("documents", "DocumentFound"),
    ),
    Operation(
        "read_document",
        "GET /documents/{id}",
        texts.read_document,
        "A document with its comments.",
        {**ID, "revision": number(1, 1_000_000, "As it was then.")},
        result=DOCUMENT,
    ),
    Operation(
        "create_document",
        "POST /documents",
        texts.create_document,
        "Write a new document; it is mine.",
        {
            "title": line(required=True),
            "body": text("Markdown, without the title.", required=True),
            "classification": choice(CLASSIFICATIONS, "internal unless given."),
        },
        result=DOCUMENT,
        status=201,
    ),
    Operation(
        "edit_document",
        "POST /documents/{id}/edit",
        texts.edit_document,
        "Change the text: replace `old` by `new`, `append` to it, or give a whole new `body`.",
        {
            **ID,
            "old": text("A piece of the text that occurs once."),
            "new": text("What stands there instead."),
            "all": flag("Replace it wherever it occurs."),
            "append": text("Goes below, on a new line."),
            "body": text(),
        },
        result=DOCUMENT,
    ),
    Operation(
        "update_document",
        "PATCH /documents/{id}",
        texts.update_document,
        "Change the title or the classification.",
        {**ID, "title": line(), "classification": choice(CLASSIFICATIONS)},
        result=DOCUMENT,
    ),
    Operation(
        "delete_document",
        "DELETE /documents/{id}",
        texts.delete_document,
        "Put my document into the trash.",
        ID,
        result=DOCUMENT,
    ),
    Operation(
        "list_revisions",
        "GET /documents/{id}/revisions",
        texts.list_revisions,
        "What happened to a document.",
        ID,
        result=shape(revisions=list_of(refer("Revision"))),
    ),
    Operation(
        "restore_revision",
        "POST /documents/{id}/revisions/{revision}/restore",
        texts.restore_revision,
        "Bring an earlier text back, as a new revision.",
        {**ID, **REVISION},
        result=DOCUMENT,
    ),
    Operation(
        "comment_on_document",
        "POST /documents/{id}/comments",
        around.comment_on_document,
        "Comment on a document.",
        {
            **ID,
            "text": text(required=True),
            "quote": text("The piece of the text that it is about."),
            "reply_to": line("The comment that it answers: k-0007."),
        },
        result=refer("Comment"),
        status=201,
    ),
    Operation(
        "resolve_comment",
        "POST /comments/{id}/resolve",
        around.resolve_comment,
        "Mark a comment as dealt with.",
        {"id": line("Of a comment: k-0007.", required=True), "resolved": flag("true unless given.")},
        result=refer("Comment"),
    ),
    Operation(
        "share_document",
        "POST /documents/{id}/share",
        around.share_document,
        "Let people read it, comment on it, or write in it. They may be outside of the company.",
        {**ID, **PEOPLE, "role": choice(ROLES, required=True)},
        result=DOCUMENT,
    ),
    Operation(
        "unshare_document",
        "POST /documents/{id}/unshare",
        around.unshare_document,
        "Take a document away from people.",
        {**ID, **PEOPLE},
        result=DOCUMENT,
    ),
    Operation(
        "export_document",
        "GET /documents/{id}/export",
        texts.export_document,
        "A document as the content of a file.",
        {**ID, "format": choice(tuple(FORMATS), "markdown unless given.")},
        result=refer("Export"),
    ),
)


def seed(world: World, store: Store) -> None:
    for item in world.items("documents"):
        updated = item.time("updated_at")
        row = {"id": item.text("id"), "title": item.text("title"), "body": item.text("body")}
        row.update(owner=item.address(item.text("owner")), created_at=item.time("created_at", updated))
        row.update(classification=item.choice("classification", CLASSIFICATIONS, "internal"), updated_at=updated)
        shared = item.shared(ROLES)
        store.insert("documents", {**row, "shared": shared, "revision": 1, "trashed": item.flag("trashed", False)})
        first = {"document": row["id"], "revision": 1, "title": row["title"], "body": row["body"]}
        store.insert("revisions", {**first, "author": row["owner"], "at": updated, "summary": "created"})
        for comment in item.value("comments", []):
            _seed_comment(item, comment, store)
        item.done()
    remember_last(store, "documents", "d-")
    remember_last(store, "comments", "k-")


def _seed_comment(document: Item, fields: dict[str, str], store: Store) -> None:
    item = document.part("comments", fields)
    row: Row = {"id": item.text("id"), "document": document.text("id"), "author": item.address(item.text("author"))}
    row.update(text=item.text("text"), quote=item.text("quote", "") or None, reply_to=item.text("reply_to", "") or None)
    store.insert("comments", {**row, "resolved": item.flag("resolved", False), "at": item.time("at")})
    item.done()


SERVICE = Service(
    "documents",
    9104,
    "the company's documents: Markdown texts with revisions, comments and sharing.",
    tables=TABLES,
    shapes=SHAPES,
    operations=OPERATIONS,
    seed=seed,
)
