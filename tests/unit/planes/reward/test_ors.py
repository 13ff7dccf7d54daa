"""What an ORS episode left on record, and what becomes of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchflow.confined import ConfinedPath
from benchflow.contracts.reward import VerifyResult
from benchflow.errors import RewardFileError, RewardMissingError
from benchflow.planes.reward.ors import read_episode

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def output(reward: Any = None, finished: bool = False) -> dict[str, Any]:
    return {"ok": True, "output": {"blocks": [], "metadata": {}, "reward": reward, "finished": finished}}


@pytest.fixture
def episode(tmp_path: Path) -> Any:
    """Reads the records of one file, or what several files say, as text."""

    def read(*contents: Any, form: Any = "auto", reward_range: tuple[float, float] = (0.0, 1.0)) -> VerifyResult:
        inputs = {}
        for index, content in enumerate(contents):
            name = f"episode-{index}"
            text = content if isinstance(content, str) else "\n".join(json.dumps(record) for record in content)
            (tmp_path / name).write_text(text)
            inputs[name] = ConfinedPath(tmp_path, name)
        return read_episode(inputs, form, reward_range=reward_range, now=NOW)

    return read


def test_the_reward_of_the_output_that_ends_the_episode_is_the_scalar(episode: Any) -> None:
    result = episode([output(), output(0.25), output(1, finished=True)])
    assert result.rewards == {"reward": 1.0}
    assert [(event.value, event.granularity, event.meta) for event in result.events] == [
        (0.25, "step", {"output": 1, "at": "episode-0:2"}),
        (1.0, "terminal", {"output": 2, "at": "episode-0:3"}),
    ]
    assert result.metadata == {"outputs": 3, "failed_calls": 0}


def test_an_output_without_its_envelope_counts_alike(episode: Any) -> None:
    assert episode([{"blocks": [], "reward": 0.5, "finished": True}]).reward == 0.5


def test_calls_that_failed_have_no_reward_and_are_counted(episode: Any) -> None:
    result = episode([{"ok": False, "error": "no such tool"}, output(0, finished=True)])
    assert (result.reward, result.metadata["failed_calls"]) == (0.0, 1)


def test_a_reward_payload_brings_metrics_events_and_its_space(episode: Any) -> None:
    metadata = {
        "items": {"parts": 3},
        "events": [{"value": 0.5, "type": "process", "step_index": 2, "tag": "half"}],
        "error": None,
        "space": "memory",
        "granularity": "terminal",
        "seed": 7,
    }
    result = episode([{"reward": 0.75, "is_valid": True, "metadata": metadata}])
    assert (result.rewards, result.space) == ({"reward": 0.75, "parts": 3.0}, "memory")
    assert [(event.value, event.step, event.space) for event in result.events] == [
        (0.5, 2, "memory"),
        (0.75, None, "memory"),
    ]
    assert result.metadata["seed"] == 7


def test_an_error_beside_a_valid_reward_is_a_warning(episode: Any) -> None:
    result = episode([{"reward": 0, "is_valid": True, "metadata": {"error": "two tests timed out"}}])
    assert result.reward == 0.0
    assert result.warnings == ['episode-0:1: the reward came with an error: "two tests timed out"']


def test_lines_of_a_rewards_file_count_by_their_type_and_space(episode: Any) -> None:
    rows = [
        {"type": "process", "value": 0.5, "step_index": 1, "source": "a", "space": "output", "tag": None},
        {"type": "terminal", "value": 0, "source": "b", "space": "action", "ts": "2026-01-01T00:00:00Z"},
        {"type": "terminal", "value": 1, "source": "c", "space": "output", "granularity": "terminal", "meta": {}},
    ]
    result = episode(rows)
    assert result.reward == 1.0
    assert [(event.source, event.space, event.granularity) for event in result.events] == [
        ("a", "output", "step"),
        ("b", "action", "terminal"),
        ("c", "output", "terminal"),
    ]


@pytest.mark.parametrize("form", ["json", "auto"])
def test_a_json_list_is_its_elements(episode: Any, form: str) -> None:
    text = json.dumps([output(0.5), output(1.0, finished=True)], indent=1)
    result = episode(text, form=form)
    assert result.reward == 1.0
    line = text.splitlines().index(" {", 2) + 1
    assert [event.meta["at"] for event in result.events] == ["episode-0:2", f"episode-0:{line}"]


def test_several_files_that_agree_are_one_episode(episode: Any) -> None:
    assert episode([output(1 / 3, finished=True)], '{"reward": 0.33333333333}').reward == 1 / 3


def test_rewards_that_disagree_are_an_error_that_names_both(episode: Any) -> None:
    with pytest.raises(RewardFileError, match=r"says 0\.0 while episode-0:1 says 1\.0") as caught:
        episode([output(1, finished=True)], [{}, output(0, finished=True)][1:])
    assert caught.value.file == "episode-1:1"


def test_metrics_that_disagree_are_an_error(episode: Any) -> None:
    payloads = [{"reward": 1, "metadata": {"items": {"n": number}}} for number in (1, 2)]
    with pytest.raises(RewardFileError, match=r"episode-0:2: metadata\.items\.n: 2\.0 contradicts 1\.0"):
        episode(payloads)


@pytest.mark.parametrize("records", [[output(0.5)], [output(None, finished=True)], [{"ok": False, "error": "x"}]])
def test_an_episode_in_which_nothing_states_the_reward_is_missing_one(episode: Any, records: Any) -> None:
    with pytest.raises(RewardMissingError, match="no record states the episode's reward") as caught:
        episode(records)
    assert caught.value.file == "episode-0" and caught.value.remedy


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (output(True, finished=True), "output.reward: true is not a number"),
        (output("1", finished=True), 'output.reward: "1" is not a number'),
        (output(2, finished=True), "output.reward: 2.0 is outside the reward range [0, 1]"),
        (output(-0.5), "output.reward: -0.5 is outside"),
        ('{"reward": NaN}', "NaN is not a number in JSON"),
        ('{"reward": 1e999}', '"1e999" is too large'),
        (
            {"reward": 1, "is_valid": False, "metadata": {"error": "judge down"}},
            '1 is said not to be valid: "judge down"',
        ),
        ({"reward": None, "is_valid": True}, "reward: null is not a number"),
        ({"is_valid": True}, "there is no reward"),
        ({"reward": 1, "is_valid": "yes"}, 'is_valid: "yes" is neither true nor false'),
        ({"reward": 1, "score": 0}, '"score" is not a key of a reward payload'),
        ({"reward": 1, "metadata": 3}, "metadata: 3 is not an object"),
        ({"reward": 1, "metadata": {"items": {"n": "1"}}}, 'items.n: "1" is not a number'),
        ({"reward": 1, "metadata": {"space": "outer"}}, 'space: "outer" is not known'),
        ({"ok": True, "reward": 1}, "reward: the reward is not part of the output"),
        ({"ok": True}, "output: null is not an object"),
        ({"ok": 1, "output": {}}, "ok: 1 is neither true nor false"),
        ({"ok": False, "output": {"reward": 1, "finished": True}}, "a call that failed has the output"),
        ({"reward": 1, "finished": 1}, "finished: 1 is neither true nor false"),
        ({"value": 1, "type": "final"}, 'type: "final" is not known'),
        ({"value": True, "type": "terminal"}, "value: true is not a number"),
        ({"type": "agent_message", "text": "1.0"}, "is no record of an episode"),
        ("7", "7 is not an object"),
        ("", "is empty"),
        ("{'reward': 1}", "is not JSON"),
    ],
)
def test_what_is_no_reward_is_quoted_with_its_file_and_line(episode: Any, record: Any, said: str) -> None:
    with pytest.raises(RewardFileError) as caught:
        episode(record if isinstance(record, str) else [record])
    assert said in str(caught.value)
    assert (caught.value.file or "").startswith("episode-0")
    assert caught.value.remedy


def test_the_line_of_a_broken_record_is_named(episode: Any) -> None:
    good = json.dumps(output(0.5))
    with pytest.raises(RewardFileError, match="episode-0:3: "):
        episode(f"{good}\n\n{{\n{good}")


def test_a_symbolic_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_text('{"reward": 1}')
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(RewardFileError, match="is a symbolic link"):
        read_episode({"link": ConfinedPath(tmp_path, "link")}, "json", reward_range=(0.0, 1.0), now=NOW)
