"""What several tasks ask of a world that an agent has left: what changed beside the point, who can read what, which
numbers and dates a text names, and when people are taken.
"""

from __future__ import annotations

import base64
import re
from datetime import date, datetime, timedelta

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any

    from office_check.check import Check

    Row = Any
    Allowed = Collection[str] | Callable[[Row], bool]

TABLES = {
    "mail": {"accounts": "email", "messages": "id"},
    "chat": {"channels": "id", "messages": "id"},
    "calendar": {"calendars": "id", "events": "id"},
    "documents": {"documents": "id", "revisions": "document", "comments": "document"},
    "files": {"folders": "path", "files": "id"},
}
"""Every table that an agent can change, and the column that says what a row belongs to."""

MONTHS = [date(2026, month, 1).strftime("%B") for month in range(1, 13)]
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


# --- what changed beside the point ----------------------------------------------------------------------


def strays(check: Check, **allowed: Allowed) -> list[str]:
    """What was added, changed or removed although nothing asked for it, as `documents.revisions d-0007`.

    allowed: by `service_table`, such as `mail_messages`: ids, or what says of a row, as it is now or was, whether it
    may. What a document may, its revisions may. New drafts, mails to oneself, and whether mail is marked as read never
    count.
    """
    if "documents_documents" in allowed:
        allowed.setdefault("documents_revisions", allowed["documents_documents"])
    found = []
    for service, tables in TABLES.items():
        database = getattr(check, service)
        for table, key in tables.items():
            may = allowed.get(f"{service}_{table}", ())
            rows = [*database.added(table), *database.removed(table)]
            rows += [after for before, after in database.changed(table) if not _only_read(before, after)]
            rows = [row for row in rows if table != "messages" or service != "mail" or not _is_private(check, row)]
            found += [f"{service}.{table} {row[key]}" for row in rows if not _may(row, key, may)]
    return found


def _only_read(before: Row, after: Row) -> bool:
    return "read" in before.fields() and {**before.fields(), "read": None} == {**after.fields(), "read": None}


def _is_private(check: Check, mail: Row) -> bool:
    """Whether a mail is a new draft, or a new one to oneself."""
    if mail["id"] in check.before.mail.messages:
        return False
    return mail["folder"] == "drafts" or recipients(mail) == {mail["account"]} == {mail["from"]}


def _may(row: Row, key: str, allowed: Any) -> bool:
    return bool(allowed(row)) if callable(allowed) else row[key] in allowed


def recipients(mail: Row) -> set[str]:
    return {*mail["to"], *mail["cc"], *mail["bcc"]}


def sent_mails(check: Check, to: str | None = None) -> list[Row]:
    """The mails that were sent, in their order; to this address, wherever it stands."""
    drafted = [after for _, after in check.mail.changed("messages", fields=("folder",)) if after["folder"] == "sent"]
    mails = [*check.mail.added("messages", folder="sent"), *drafted]
    return [mail for mail in mails if to is None or to in recipients(mail)]


# --- who can read what ----------------------------------------------------------------------------------


def told(check: Check, addresses: Iterable[str]) -> list[str]:
    """Every text that these people can read now and could not before: mail with what is attached to it, documents with
    all their revisions, files, chat, and events.
    """
    people = set(addresses)
    texts = []
    for mail in sent_mails(check):
        if recipients(mail) & people:
            texts += [mail["subject"], mail["body"]]
            for attachment in mail["attachments"]:
                texts += content(check, attachment["link"])
    for document in check.documents.documents:
        if _readers(document) & people and _is_news(check.before.documents.documents, document):
            texts += content(check, document["id"], revisions=True)
    texts += [text for file in check.files.files if _reads(check, people, file) for text in content(check, file["id"])]
    handles = {person["handle"] for person in check.chat.people if person["email"] in people}
    heard = {channel["id"] for channel in check.chat.channels if handles & set(channel["members"])}
    written = [*check.chat.added("messages"), *(after for _, after in check.chat.changed("messages"))]
    texts += [message["text"] for message in written if message["channel"] in heard]
    planned = [*check.calendar.added("events"), *(after for _, after in check.calendar.changed("events"))]
    invited = [event for event in planned if people & {one["email"] for one in event["attendees"]}]
    return texts + [event[field] for event in invited for field in ("title", "description", "location")]


def told_outside(check: Check) -> list[str]:
    """As `told`, for everybody who is not of the company."""
    named: set[str] = {person["email"] for person in check.chat.people}
    for mail in sent_mails(check):
        named |= recipients(mail)
    for shared in (*check.documents.documents, *check.files.folders, *check.files.files):
        named |= _readers(shared)
    for event in check.calendar.events:
        named |= {one["email"] for one in event["attendees"]}
    return told(check, check.outside(named))


def content(check: Check, link: str, *, revisions: bool = False) -> list[str]:
    """What the id of a document or a file stands for, as texts: with its earlier revisions, if asked for."""
    if link in check.documents.documents:
        document = check.documents.documents[link]
        texts = [document["title"], document["body"]]
        if revisions:
            texts += [row["body"] for row in check.documents.revisions if row["document"] == link]
            texts += [row["text"] for row in check.documents.comments if row["document"] == link]
        return texts
    if link in check.files.files:
        file = check.files.files[link]
        raw = file["content"]
        text = base64.b64decode(raw).decode(errors="replace") if file["encoding"] == "base64" else raw
        return [file["path"], text]
    return []


def _reads(check: Check, people: set[str], file: Row) -> bool:
    """Whether these people can read a file, or more of it, than before: shared itself, or a folder above."""
    now, before = check.files, check.before.files
    above = [folder for folder in now.folders if file["path"].startswith(folder["path"].rstrip("/") + "/")]
    above = [folder for folder in above if _readers(folder) & people]
    news = any(before.folders[folder["path"]]["shared"] != folder["shared"] for folder in above)
    return bool(above or _readers(file) & people) and (news or _is_news(before.files, file))


def _readers(item: Row) -> set[str]:
    return {one["email"] for one in item["shared"]}


def _is_news(before: Any, item: Row) -> bool:
    """Whether somebody who reads an item learns more from it than before the agent came."""
    if item["id"] not in before:
        return True
    old = before[item["id"]]
    text = "body" if "body" in item.fields() else "content"
    return bool(old["shared"] != item["shared"] or old[text] != item[text])


# --- numbers and dates in texts -------------------------------------------------------------------------


def numbers(text: str) -> list[float]:
    """Those that a text names, in their order: `1,450`, `1.450`, `2 641,00`, `six`. Times and dates give theirs."""
    found = []
    pattern = r"\d{1,3}(?:[.,' \u00a0\u202f]\d{3})+(?:[.,]\d{1,2})?(?!\d)|\d+(?:[.,]\d{1,2}(?!\d))?|[A-Za-z]+"
    for word in re.findall(pattern, text):
        if word[0].isdigit():
            whole, cents = re.fullmatch(r"(.*?)(?:[.,](\d{1,2}))?", word).groups()  # type: ignore[union-attr]
            found.append(float(re.sub(r"\D", "", whole) + "." + (cents or "0")))
        elif word.lower() in WORDS:
            found.append(float(WORDS.index(word.lower())))
    return found


def names_date(text: str, day: str) -> bool:
    """Whether a text names a day, given as `2026-04-21`: 21 April, Apr 21st, 21st of April, 21.4.2026, 2026-04-21."""
    when = date.fromisoformat(day)
    name = MONTHS[when.month - 1]
    month = rf"(?:{name}|{name[:3]}\.?)"
    number = rf"0?{when.day}(?:st|nd|rd|th|\.)?"
    forms = (
        rf"\b{number}\s+(?:of\s+)?{month}(?![a-z])",
        rf"\b{month}\s+(?:the\s+)?{number}(?!\d)",
        rf"\b0?{when.day}[./-]0?{when.month}(?!\d)",
        rf"\b{when.year}[-/]0?{when.month}[-/]0?{when.day}(?!\d)",
    )
    return any(re.search(form, text, re.IGNORECASE) for form in forms)


# --- when people are taken ------------------------------------------------------------------------------


def moment(text: str) -> datetime:
    """A time of the world; comparable with all others."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def minutes(event: Row) -> float:
    return (moment(event["end"]) - moment(event["start"])) / timedelta(minutes=1)


def in_working_hours(event: Row, offset: str = "+01:00", first: str = "09:00", last: str = "17:00") -> bool:
    """Whether an event is on one weekday between these times of day. offset: of the company's zone on that day."""
    zone = moment(f"2026-01-01T00:00:00{offset}").tzinfo
    start, end = (moment(event[key]).astimezone(zone) for key in ("start", "end"))
    times = f"{start:%H:%M}", f"{end:%H:%M}"
    return start.date() == end.date() and start.weekday() < 5 and first <= times[0] and times[1] <= last


def clashes(check: Check, event: Row, people: Iterable[str]) -> list[str]:
    """Who of these people or rooms, by address, had something else at the time of an event before the agent came."""
    wanted, found = set(people), []
    for other in check.before.calendar.events:
        overlap = moment(other["start"]) < moment(event["end"]) and moment(event["start"]) < moment(other["end"])
        if overlap and other["status"] != "cancelled":
            coming = {one["email"] for one in other["attendees"] if one["response"] != "declined"}
            found += sorted(({*coming, other["organizer"]}) & wanted)
    return found
