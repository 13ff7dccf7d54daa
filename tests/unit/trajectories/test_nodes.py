"""Nodes put together from trees, trajectories and stored results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.stored_rollouts import called, said, store_rollout

from benchflow.contracts.environment import DatabaseState, StateDiff, WorldState
from benchflow.contracts.reward import Evidence
from benchflow.contracts.rollout_records import Node, RolloutTree
from benchflow.errors import ResultFileError, VerifierError
from benchflow.trajectories.nodes import build_nodes, find_last_node, load_rollout

TREE = RolloutTree(
    rollout="r",
    root="n0",
    nodes=[
        Node(id="n0"),
        Node(id="n1", parent="n0", step=0, role="agent"),
        Node(id="left", parent="n1", step=1, role="agent", rewards={"reward": 1.0}),
        Node(id="right", parent="n1", step=1, role="agent", rewards={"reward": 0.0}),
        Node(id="leaf", parent="right", step=2, role="critic", value=0.5),
    ],
)


def line(node: str, text: str) -> dict[str, object]:
    return {"node": node, **said(text)}


EVENTS = [line("n1", "a"), line("left", "b"), line("right", "c"), line("n1", "d"), line("leaf", "e")]


# --- trees ----------------------------------------------------------------------------------------------


def test_a_node_has_its_own_events_and_its_path_has_those_before() -> None:
    nodes = build_nodes(TREE, EVENTS, Evidence())
    assert [event["text"] for event in nodes["n1"].events] == ["a", "d"]
    assert [event["text"] for event in nodes["leaf"].trajectory] == ["a", "d", "c", "e"]
    assert nodes["leaf"].answer == "adce"


def test_a_branch_has_its_children_in_order_and_siblings_share_no_events() -> None:
    nodes = build_nodes(TREE, EVENTS, Evidence())
    assert [node.id for node in nodes["n0"].subtree] == ["n0", "n1", "left", "right", "leaf"]
    assert [node.id for node in nodes["leaf"].path] == ["n0", "n1", "right", "leaf"]
    assert [child.id for child in nodes["n1"].children] == ["left", "right"]
    assert [event["text"] for event in nodes["left"].trajectory] == ["a", "d", "b"]


def test_rewards_values_steps_and_roles_are_the_trees() -> None:
    nodes = build_nodes(TREE, EVENTS, Evidence(task="t"))
    assert nodes["left"].rewards == {"reward": 1.0}
    assert (nodes["leaf"].value, nodes["leaf"].step, nodes["leaf"].role) == (0.5, 2, "critic")
    assert {node.rollout.task for node in nodes.values()} == {"t"}


def test_a_rollout_ends_where_the_first_children_lead() -> None:
    assert find_last_node(build_nodes(TREE, EVENTS, Evidence())).id == "left"


def test_lines_of_a_step_that_was_not_finished_belong_to_no_node() -> None:
    nodes = build_nodes(TREE, [*EVENTS, line("n9", "x")], Evidence())
    assert [event["text"] for node in nodes.values() for event in node.events] == ["a", "d", "b", "c", "e"]


@pytest.mark.parametrize("event", [{}, {"node": "n1"}, {"type": "agent_message"}, {"node": 1, "type": "x"}])
def test_a_line_without_a_node_and_a_type_is_no_event(event: dict[str, object]) -> None:
    with pytest.raises(ResultFileError, match="no event"):
        build_nodes(TREE, [event], Evidence())


@pytest.mark.parametrize(
    "nodes",
    [
        [],
        [Node(id="n0", parent="n0")],
        [Node(id="x")],
        [Node(id="n0"), Node(id="n0")],
        [Node(id="n0"), Node(id="n1")],
        [Node(id="n0"), Node(id="n2", parent="n1"), Node(id="n1", parent="n0")],
    ],
)
def test_a_tree_that_is_none_is_refused(nodes: list[Node]) -> None:
    with pytest.raises(ResultFileError):
        build_nodes(RolloutTree(rollout="r", root="n0", nodes=nodes), [], Evidence())


# --- stored rollouts ------------------------------------------------------------------------------------


def test_a_stored_rollout_is_read_with_all_that_scorers_ask_for(tmp_path: Path) -> None:
    directory = store_rollout(tmp_path / "small__1", [[called("ls"), said("done")]])
    nodes = load_rollout(directory)
    assert list(nodes) == ["n0", "n1"]
    last = find_last_node(nodes)
    assert (last.answer, last.rewards, last.step) == ("done", {"reward": 1.0}, 0)
    rollout = last.rollout
    assert (rollout.task, rollout.instruction, rollout.workspace) == ("small-task", "Do None.", "/work")
    assert (rollout.directory, rollout.evidence) == (directory, directory / "evidence")
    assert (last.state, last.diff, rollout.workbench, rollout.judge) == (None, None, None, None)


def write_state(directory: Path, label: str, digest: str) -> None:
    place = directory / "environment" / "state" / label
    place.mkdir(parents=True)
    state = WorldState(databases=(DatabaseState(path="/data/a.db", present=True),), digest=digest)
    (place / "state.json").write_text(state.model_dump_json())
    (place / "diff.json").write_text(StateDiff().model_dump_json())


def test_the_state_of_the_world_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    directory = store_rollout(tmp_path / "small__1", [[said("done")]])
    nodes = load_rollout(directory)
    write_state(directory, "final", "f")
    assert nodes["n0"].state is None
    state, diff = nodes["n1"].state, nodes["n1"].diff
    assert state is not None and state.digest == "f"
    assert diff is not None and diff.is_empty


def test_each_step_has_its_own_state_prompt_and_evidence(tmp_path: Path) -> None:
    directory = store_rollout(tmp_path / "small__1", [[said("a")], [said("b")]], names=["draft", "polish"])
    write_state(directory, "step-draft", "d")
    write_state(directory, "step-polish", "p")
    nodes = load_rollout(directory)
    states = [nodes[name].state for name in ("n1", "n2")]
    assert [state.digest for state in states if state is not None] == ["d", "p"]
    assert [nodes[name].rollout.instruction for name in ("n1", "n2")] == ["Do draft.", "Do polish."]
    assert nodes["n1"].rollout.evidence == directory / "steps" / "draft" / "evidence"


def test_what_is_no_rollout_says_what_is_missing_and_what_could_be_meant(tmp_path: Path) -> None:
    store_rollout(tmp_path / "job" / "small__1", [[said("done")]])
    with pytest.raises(ResultFileError, match=r"no tree\.json and no result\.json") as caught:
        load_rollout(tmp_path / "job")
    assert caught.value.file == str(tmp_path / "job")
    assert "small__1" in (caught.value.remedy or "")
    with pytest.raises(ResultFileError, match="no rollout's directory"):
        load_rollout(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["tree.json", "result.json", "prompts.json", "trajectory/acp_trajectory.jsonl"])
def test_a_file_that_was_changed_is_named(tmp_path: Path, name: str) -> None:
    directory = store_rollout(tmp_path / "small__1", [[said("done")]])
    (directory / name).write_text("{]\n")
    with pytest.raises(ResultFileError) as caught:
        load_rollout(directory)
    assert caught.value.file == str(directory / name)


def test_a_spoilt_state_is_an_error_when_it_is_asked_for(tmp_path: Path) -> None:
    directory = store_rollout(tmp_path / "small__1", [[said("done")]])
    write_state(directory, "final", "f")
    (directory / "environment" / "state" / "final" / "state.json").write_text(json.dumps({"digest": 3}))
    node = find_last_node(load_rollout(directory))
    with pytest.raises(ResultFileError, match="not what BenchFlow wrote"):
        assert node.state


def test_a_rollout_of_which_no_step_was_finished_has_no_end(tmp_path: Path) -> None:
    directory = store_rollout(tmp_path / "small__1", [], names=[])
    with pytest.raises(VerifierError, match="no step of this rollout was finished"):
        find_last_node(load_rollout(directory))


def test_a_rollout_that_ended_within_a_step_is_not_scored_as_if_it_had_not(tmp_path: Path) -> None:
    directory = store_rollout(tmp_path / "small__1", [[said("a")], [said("b")]], names=["draft"])
    assert find_last_node(load_rollout(directory)).id == "n1"
    with pytest.raises(VerifierError, match="ended within a step: the last 1 lines"):
        load_rollout(directory, whole=True)


@pytest.mark.parametrize("parent", ["n2", "n1"])
def test_a_node_that_is_its_own_ancestor_is_a_typed_error(parent: str) -> None:
    nodes = [Node(id="n0"), Node(id="n1", parent="n2"), Node(id="n2", parent=parent)]
    with pytest.raises(ResultFileError, match="its own ancestor"):
        RolloutTree(rollout="theirs", root="n0", nodes=nodes).path("n2")
