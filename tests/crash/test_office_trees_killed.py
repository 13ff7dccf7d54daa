"""A tree in the office, whose worker and server are killed as it grows: in the end it is what its paths make it.

From the root go 4 children, from each of them 3, and from each of those 2. Each has a prompt of its own, so that what
its databases, their action logs and its reward must be follows from where it lies in the tree.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from support.agent_task import AGENT
from support.embedded import EmbeddedStack, Role, chance_of_this_run
from support.office_task import DOCUMENT, TURNS, prompt_of, reward_of, write_office_package
from support.scored import assert_nothing_is_left, submit_job
from support.worlds import on_local

from benchflow.paths import RolloutPaths
from benchflow.trajectories.growth import get_branch_path

pytestmark = pytest.mark.usefixtures("demo_agent", "no_images_left")

VICTIMS: list[tuple[Role, ...]] = [("worker",), ("server",), ("worker", "server")]
CHILDREN = (4, 3, 2)
LEAVES = [*itertools.product(*map(range, CHILDREN))]
BRANCH = {
    "policy": {"kind": "after_steps", "steps": [0, 1, 2], "n": CHILDREN},
    "children": [{"prompt": prompt_of(number)} for number in range(max(CHILDREN))],
    "max_depth": len(CHILDREN),
    "concurrency": 2,
    "min_session_rung": "load",
}

Choices = tuple[int, ...]


def node_of(choices: Choices) -> str:
    """The node to which these lead."""
    steps = [f"n{done}.{choice}" for done, choice in enumerate(choices)]
    return "/".join([*steps, f"n{len(choices)}"])


def value_of(choices: Choices) -> float:
    """What a state is worth: the mean of what may come of it."""
    returns = [reward_of(leaf) for leaf in LEAVES if leaf[: len(choices)] == choices]
    return sum(returns) / len(returns)


@on_local
@pytest.mark.parametrize("kills", [pytest.param(5, marks=pytest.mark.long), pytest.param(20, marks=pytest.mark.soak)])
async def test_a_tree_in_the_office_grows_as_if_nothing_had_happened(
    stack: EmbeddedStack, tmp_path: Path, kills: int
) -> None:
    chance = chance_of_this_run()
    package = write_office_package(tmp_path / "office", max(CHILDREN))
    number = 0
    while kills > 0:
        job = await submit_job(
            stack,
            [package],
            tmp_path / "jobs",
            f"office-{number}",
            branch=BRANCH,
            agents=[AGENT],
            retry={"max_retries": 0},
        )
        number += 1
        ended = asyncio.create_task(job.wait())
        while kills > 0 and not ended.done():
            # Not a wait for anything: the moment of the crash is what is random.
            await asyncio.wait({ended}, timeout=chance.uniform(0.5, 8))
            if not ended.done() and stack.kill(*chance.choice(VICTIMS)):
                kills -= 1
        await ended
        (result,) = job.results()
        assert result.error is None, result.error
        assert (result.reward, result.reward_kind) == (pytest.approx(value_of(())), "value")
        paths = RolloutPaths(Path(str(result.directory)))
        assert_is_the_tree(json.loads(paths.tree.read_bytes()))
        assert_each_did_its_own_once(paths)
    await assert_nothing_is_left(stack)


def assert_is_the_tree(tree: dict[str, Any]) -> None:
    nodes = {node["id"]: node for node in tree["nodes"]}
    inner = [choices for depth in range(TURNS) for choices in itertools.product(*map(range, CHILDREN[:depth]))]
    assert set(nodes) == {node_of(choices) for choices in (*inner, *LEAVES)}
    for choices in inner:
        node = nodes[node_of(choices)]
        assert (node["value"], node["n"], node["failed"]) == (
            pytest.approx(value_of(choices)),
            CHILDREN[len(choices)],
            {},
        )
    assert {node_of(leaf): nodes[node_of(leaf)]["returns"] for leaf in LEAVES} == {
        node_of(leaf): reward_of(leaf) for leaf in LEAVES
    }


def assert_each_did_its_own_once(paths: RolloutPaths) -> None:
    """In the databases of each leaf, and in their action logs, is what its path did, once, and nothing of another's."""
    mails: dict[Choices, list[str]] = {}
    for leaf in LEAVES:
        diff = json.loads((paths.child(get_branch_path(node_of(leaf))).state(None) / "diff.json").read_bytes())
        tables = {
            (database["path"], table["name"]): table for database in diff["databases"] for table in database["tables"]
        }
        chosen = [f"choice {choice}" for choice in leaf]
        sent = sorted(tables["/data/mail.db", "messages"]["added"], key=lambda row: row["id"])
        assert [row["subject"] for row in sent] == chosen
        mails[leaf] = [row["body"] for row in sent]
        (document,) = tables["/data/documents.db", "documents"]["changed"]
        assert (document["after"]["id"], document["after"]["body"]) == (DOCUMENT, "\n".join(["Chosen:", *chosen]))
        revisions = tables["/data/documents.db", "revisions"]["added"]
        assert len(revisions) == TURNS
        for database, operation, key, wanted in (
            ("mail", "send_mail", "subject", chosen),
            ("documents", "edit_document", "append", chosen),
        ):
            done = tables[f"/data/{database}.db", "actions"]["added"]
            assert [(row["n"], row["operation"]) for row in done] == [(n, operation) for n in range(1, TURNS + 1)]
            assert [json.loads(row["arguments"])[key] for row in done] == wanted
    # What two leaves share is what was done before they parted.
    for one, other in itertools.combinations(LEAVES, 2):
        parted = next(at for at in range(TURNS) if one[at] != other[at])
        shared = [mine == others for mine, others in zip(mails[one], mails[other], strict=True)]
        assert shared == [at < parted for at in range(TURNS)]
