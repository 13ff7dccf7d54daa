"""The mail service: its table, the shapes of its answers, its operations, and how a world fills it."""

from __future__ import annotations

from office_core.arguments import PAGE, choice, flag, line, lines, objects, people, person, text
from office_core.service import (
    COUNT,
    FLAG,
    TEXT,
    TEXTS,
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

from office_mail import mailbox, writing
from office_mail.mailbox import FOLDERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from office_core.worlds import World

TABLES = """
create table accounts(email text primary key, name text not null) without rowid;
create table messages(id text primary key, account text not null references accounts, folder text not null,
                      thread text not null, "from" text not null, "to" json not null, cc json not null,
                      bcc json not null, subject text not null, body text not null, sent_at text not null,
                      read boolean not null, labels json not null, attachments json not null, in_reply_to text);
create index messages_by_folder on messages(account, folder);
create index messages_by_thread on messages(thread);
"""

ATTACHMENT = shape(name=TEXT, link=TEXT)
HEAD = {
    "id": TEXT,
    "account": TEXT,
    "folder": {"type": "string", "enum": list(FOLDERS)},
    "thread": TEXT,
    "from": TEXT,
    "to": TEXTS,
    "cc": TEXTS,
    "bcc": TEXTS,
    "subject": TEXT,
    "sent_at": TIME,
    "read": FLAG,
    "labels": TEXTS,
    "attachments": list_of(ATTACHMENT),
    "in_reply_to": WORD_OR_NULL,
}
COUNTS = shape(total=COUNT, unread=COUNT)
SHAPES = {
    "Mail": shape(**HEAD, body=TEXT),
    "MailSummary": shape(**HEAD, snippet=TEXT),
    "Account": shape(email=TEXT, name=TEXT, folders=shape(**dict.fromkeys(FOLDERS, COUNTS))),
    "Label": shape(name=TEXT, total=COUNT),
}

ID = {"id": line("Of a message: m-0007.", required=True)}
ACCOUNT = {"account": person("The account (GET /accounts); mine unless given.")}
ATTACHMENTS = {
    "attachments": objects(
        {"name": {"type": "string", "minLength": 1}, "link": {"type": "string", "minLength": 1}},
        ("name", "link"),
        "What goes along; link is the id of a file or a document (f-0007, d-0003), or a URL.",
    )
}
DRAFT = {
    "to": people("Who gets it."),
    "cc": people(),
    "bcc": people(),
    "subject": line(),
    "body": text(),
    **ATTACHMENTS,
}
MAIL, MAILS = refer("Mail"), listing("messages", "MailSummary")

OPERATIONS = (
    Operation(
        "list_accounts",
        "GET /accounts",
        mailbox.list_accounts,
        "My accounts, with how much is in their folders.",
        result=shape(accounts=list_of(refer("Account"))),
    ),
    Operation(
        "list_mail",
        "GET /messages",
        mailbox.list_mail,
        "Messages without their bodies, newest first.",
        {
            "folder": choice(FOLDERS),
            "label": line("Only messages with this label."),
            "unread": flag("true: only unread ones, false: only read ones."),
            **ACCOUNT,
            **PAGE,
        },
        result=MAILS,
    ),
    Operation(
        "search_mail",
        "GET /search",
        mailbox.search_mail,
        "Search all folders, newest first.",
        {
            "q": line(
                'Words and "phrases" that must all occur; also from: to: subject: label: in:FOLDER is:unread is:read '
                "has:attachment before:2026-03-01 after:2026-03-01",
                required=True,
            ),
            **PAGE,
        },
        result=MAILS,
    ),
    Operation("read_mail", "GET /messages/{id}", mailbox.read_mail, "A message. It stays unread.", ID, result=MAIL),
    Operation(
        "read_mail_thread",
        "GET /threads/{thread}",
        mailbox.read_mail_thread,
        "All messages of a thread, oldest first.",
        {"thread": line("Of a message: t-0007.", required=True)},
        result=shape(thread=TEXT, messages=list_of(MAIL)),
    ),
    Operation(
        "list_labels",
        "GET /labels",
        mailbox.list_labels,
        "The labels in use.",
        result=shape(labels=list_of(refer("Label"))),
    ),
    Operation(
        "send_mail",
        "POST /messages",
        writing.send_mail,
        "Send a new message.",
        {
            "to": people("Addresses, or handles of the directory.", required=True),
            "subject": line(required=True),
            "body": text(required=True),
            "cc": people(),
            "bcc": people(),
            **ATTACHMENTS,
            **ACCOUNT,
        },
        result=MAIL,
        status=201,
    ),
    Operation(
        "reply_to_mail",
        "POST /messages/{id}/reply",
        writing.reply_to_mail,
        "Answer the sender of a message, or all whom it went to.",
        {**ID, "body": text(required=True), "all": flag("To all."), "cc": people("Also to these."), **ATTACHMENTS},
        result=MAIL,
        status=201,
    ),
    Operation(
        "forward_mail",
        "POST /messages/{id}/forward",
        writing.forward_mail,
        "Send a message on, with its text and its attachments.",
        {**ID, "to": people(required=True), "body": text("What stands above it."), "cc": people()},
        result=MAIL,
        status=201,
    ),
    Operation(
        "move_mail",
        "POST /messages/{id}/move",
        mailbox.move_mail,
        "Move a message to another folder.",
        {**ID, "folder": choice(("inbox", "archive", "trash"), required=True)},
        result=MAIL,
    ),
    Operation(
        "archive_mail",
        "POST /messages/{id}/archive",
        mailbox.archive_mail,
        "Move a message to the archive.",
        ID,
        result=MAIL,
    ),
    Operation(
        "delete_mail", "DELETE /messages/{id}", mailbox.delete_mail, "Move a message to the trash.", ID, result=MAIL
    ),
    Operation(
        "label_mail",
        "POST /messages/{id}/labels",
        mailbox.label_mail,
        "Put labels on a message, or take them off.",
        {**ID, "add": lines(), "remove": lines()},
        result=MAIL,
    ),
    Operation(
        "mark_mail",
        "POST /messages/{id}/mark",
        mailbox.mark_mail,
        "Mark a message as read or unread.",
        {**ID, "read": flag(required=True)},
        result=MAIL,
    ),
    Operation(
        "create_draft",
        "POST /drafts",
        writing.create_draft,
        "Write a message without sending it.",
        {**DRAFT, "in_reply_to": line("The message that it answers."), **ACCOUNT},
        result=MAIL,
        status=201,
    ),
    Operation(
        "update_draft", "PATCH /drafts/{id}", writing.update_draft, "Change a draft.", {**ID, **DRAFT}, result=MAIL
    ),
    Operation("send_draft", "POST /drafts/{id}/send", writing.send_draft, "Send a draft.", ID, result=MAIL),
)


def seed(world: World, store: Store) -> None:
    """One account for whoever acts, one for every other that a message names."""
    messages = [_message(item) for item in world.items("mail")]
    names = {world.emails[person["handle"]]: person["name"] for person in world.people()}
    for email in dict.fromkeys([world.emails[world.me], *(row["account"] for row in messages)]):
        store.insert("accounts", {"email": email, "name": names.get(email, email)})
    threads = {row["id"]: row["thread"] for row in messages}
    for row in messages:
        if row["thread"] is None:
            answered = row["in_reply_to"]
            row["thread"] = threads[row["id"]] = threads.get(answered) or "t-" + (answered or row["id"])[2:]
        store.insert("messages", row)
    remember_last(store, "messages", "m-")


def _message(item: Any) -> dict[str, Any]:
    world = item.world
    account = item.address(item.text("account", world.me))
    sender = item.address(item.text("from"))
    folder = item.choice("folder", FOLDERS, "sent" if sender == account else "inbox")
    answered = item.text("in_reply_to", "") or None
    if answered and not world.has("mail", answered):
        raise item.problem(f"in_reply_to is {answered!r}, which is not there")
    row = {
        "id": item.text("id"),
        "account": account,
        "folder": folder,
        "thread": item.text("thread", "") or None,
        "from": sender,
        "to": item.addresses("to"),
        "cc": item.addresses("cc"),
        "bcc": item.addresses("bcc"),
        "subject": item.text("subject"),
        "body": item.text("body"),
        "sent_at": item.time("sent_at"),
        "read": item.flag("read", folder in ("sent", "drafts")),
        "labels": item.texts("labels"),
        "attachments": item.objects("attachments", ("name", "link")),
        "in_reply_to": answered,
    }
    item.done()
    return row


SERVICE = Service(
    "mail",
    9101,
    "mail of the person you act for: folders, threads, labels, drafts.",
    tables=TABLES,
    shapes=SHAPES,
    operations=OPERATIONS,
    seed=seed,
)
