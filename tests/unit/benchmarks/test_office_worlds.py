"""Worlds of the office: the base company is coherent, tasks add to it, and mistakes in them are named."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.office_services import PACKAGE, PACKAGES, WORLDS, write_worlds

from benchflow.contracts.environment import Manifest
from benchflow.planes.environment.environment_manifest import read_manifest

TASKS = sorted(path.stem for path in WORLDS.glob("*.toml"))


@pytest.fixture(autouse=True, scope="module")
def office_packages() -> Iterator[None]:
    """The packages of the office world can be imported, and nothing is written beside them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.dont_write_bytecode", True)
        for path in PACKAGES:
            patch.syspath_prepend(path)
        yield


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The databases of the base company, as seeded."""
    directory = tmp_path_factory.mktemp("seeded")
    assert seed(directory, "") is None
    return directory / "data"


def seed(directory: Path, text: str) -> str | None:
    """Seed the base company with a task of this text into `data`; return what is wrong with it."""
    return seed_from(write_worlds(directory / "worlds", "trial", text), "trial", directory / "data")


def seed_from(worlds: Path, task: str, data: Path) -> str | None:
    from office_core.errors import WorldError
    from office_core.seeding import seed_all
    from office_core.worlds import World

    try:
        seed_all(World.load(worlds, task), data)
    except WorldError as problem:
        return str(problem)
    return None


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_the_base_company_is_big_enough_to_search_in(seeded: Path) -> None:
    counts = {
        "people": rows(seeded / "mail.db", "select count(*) from people where not external")[0][0],
        "mail": rows(seeded / "mail.db", "select count(*) from messages")[0][0],
        "chat": rows(seeded / "chat.db", "select count(*) from messages")[0][0],
        "events": rows(seeded / "calendar.db", "select count(*) from events")[0][0],
        "documents": rows(seeded / "documents.db", "select count(*) from documents")[0][0],
        "files": rows(seeded / "files.db", "select count(*) from files")[0][0],
    }
    assert counts == {"people": 13, "mail": 60, "chat": 87, "events": 26, "documents": 14, "files": 21}


def test_what_mails_attach_is_there(seeded: Path) -> None:
    links = re.findall(r'"link": "([^"]+)"', str(rows(seeded / "mail.db", "select attachments from messages")))
    known = {row[0] for row in rows(seeded / "files.db", "select id from files")}
    known |= {row[0] for row in rows(seeded / "documents.db", "select id from documents")}
    assert links and set(links) <= known


def test_nothing_happened_after_now(seeded: Path) -> None:
    for name, table, column in (
        ("mail", "messages", "sent_at"),
        ("chat", "messages", "posted_at"),
        ("documents", "documents", "updated_at"),
        ("files", "files", "updated_at"),
    ):
        latest = rows(seeded / f"{name}.db", f"select max({column}) from {table}")[0][0]
        assert str(latest) < "2026-03-12T09:00:00+01:00"


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_world_that_can_be_seeded(tmp_path: Path, task: str) -> None:
    assert (PACKAGE / "tasks" / task).is_dir()
    assert seed_from(WORLDS, task, tmp_path) is None
    assert rows(tmp_path / "mail.db", "select value from meta where key = 'task'") == [(task,)]


def test_a_task_adds_changes_and_removes(tmp_path: Path) -> None:
    problem = seed(
        tmp_path,
        """
        about = "a trial"
        company = { now = 2026-03-13T10:00:00, me = "noor" }
        mail = [{ id = "m-0046", read = true, account = "maya" },
                { id = "m-0950", from = "sam", subject = "s", body = "b", sent_at = 2026-03-13T09:00:00Z }]
        people = [{ handle = "bo", name = "Bo Lund", email = "bo@else.example" }]
        remove = { mail = ["m-0001"], files = ["f-0021"] }
        """,
    )
    assert problem is None
    data = tmp_path / "data"
    changed = "select id, read, account, subject from messages where id in ('m-0001', 'm-0046', 'm-0950') order by id"
    noor, maya = "noor.haddad@tidemark.example", "maya.okafor@tidemark.example"
    assert rows(data / "mail.db", changed) == [("m-0046", 1, maya, "Van 1, rear door"), ("m-0950", 0, noor, "s")]
    assert rows(data / "mail.db", "select value from meta where key in ('now', 'last m-') order by key") == [
        ("950",),
        ("2026-03-13T10:00:00+01:00",),
    ]
    assert rows(data / "mail.db", "select email, external from people where handle = 'bo'") == [("bo@else.example", 1)]
    assert rows(data / "files.db", "select count(*) from files where id = 'f-0021'") == [(0,)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mail = 3 4", "trial.toml"),
        ("posts = []", "it may have people, mail"),
        ('task = "other"', "task must be the name of the file, 'trial'"),
        ("company = { colour = 1 }", "company has 'colour'"),
        ('company = { me = "nobody" }', "company.me is 'nobody'"),
        (
            'mail = [{ id = "m-0901", from = "sam", subject = "s", body = "b" }]',
            "[[mail]] m-0901: 'sent_at' is missing",
        ),
        ('mail = [{ id = "m-0046", colour = "red" }]', "[[mail]] m-0046: has 'colour'"),
        ('mail = [{ id = "m-0046", to = ["nobody"] }]', "'nobody' is neither an address nor a handle"),
        ('mail = [{ id = "m-0046", folder = "attic" }]', "'folder' is 'attic', not one of inbox"),
        ('mail = [{ id = "m-0046", in_reply_to = "m-0999" }]', "in_reply_to is 'm-0999'"),
        ('mail = [{ id = "m-0046", sent_at = "soon" }]', "'sent_at'"),
        ('mail = [{ subject = "s" }]', "an item of [[mail]] has no 'id'"),
        ('mail = [{ id = "m-0046" }, { id = "m-0046" }]', "has 'm-0046' twice"),
        (
            'mail = [{ id = "letter", from = "sam", subject = "s", body = "b", sent_at = 2026-03-01 }]',
            "ids of messages are m-0001",
        ),
        ('chat = [{ id = "msg-0001", author = "dirk" }]', "dirk is not in it"),
        ('chat = [{ id = "msg-0001", channel = "nowhere" }]', "channel 'nowhere' is not there"),
        (
            'events = [{ id = "e-0001", end = 2026-02-01T10:00:00 }]',
            "[[events]] e-0001: end: 2026-02-01T10:00:00+01:00 is not after the start",
        ),
        (
            'events = [{ id = "e-0001", timezone = "Mars/Base" }]',
            "[[events]] e-0001: timezone: there is no zone 'Mars/Base'",
        ),
        (
            'events = [{ id = "e-0001", attendees = [{ email = "sam", response = "perhaps" }] }]',
            "an attendee has email and response",
        ),
        ('documents = [{ id = "d-0001", shared = [{ email = "sam", role = "king" }] }]', "the role 'king'"),
        ('remove = { mail = ["m-0999"] }', "remove.mail names 'm-0999'"),
    ],
)
def test_mistakes_in_a_world_are_named(tmp_path: Path, text: str, complaint: str) -> None:
    assert complaint in (seed(tmp_path, text) or "")
    assert not [path for path in (tmp_path / "data").glob("*") if path.suffix != ".db"]


def test_both_manifests_are_the_same_world() -> None:
    started, owned = (_manifest(f"{name}.toml") for name in ("environment", "entrypoint"))
    assert started.base_image == owned.image == "benchflow/office"
    assert started.state == owned.state
    assert tuple(service.port for service in started.services) == owned.ports
    assert [f"http://localhost:{one.port}{one.health_path}" for one in started.services] == list(owned.readiness.http)
    assert (started.owns_lifecycle, owned.owns_lifecycle) == (False, True)


def _manifest(name: str) -> Manifest:
    return read_manifest(PACKAGE / name)
