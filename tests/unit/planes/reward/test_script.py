"""What a verifier may leave behind, and what becomes of it."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchflow.contracts.reward import AggregatePolicy, VerifyResult
from benchflow.errors import RewardFileError, RewardMissingError
from benchflow.planes.reward import parse_rewards

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def read(directory: Path, **options: Any) -> VerifyResult:
    return parse_rewards(directory, **{"exit_code": 0, "now": NOW, **options})


def text(directory: Path, content: str) -> Path:
    (directory / "reward.txt").write_text(content)
    return directory


def document(directory: Path, content: object) -> Path:
    raw = content if isinstance(content, str) else json.dumps(content)
    (directory / "reward.json").write_text(raw)
    return directory


# --- a number in a text file ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reward"),
    [("1", 1.0), ("0.25\n", 0.25), (" .5 ", 0.5), ("1e-1", 0.1), ("+1.", 1.0), ("-0", 0.0)],
)
def test_a_number_in_reward_txt_is_the_reward(tmp_path: Path, content: str, reward: float) -> None:
    result = read(text(tmp_path, content))
    assert result.reward == reward
    assert result.rewards == {"reward": reward}
    [event] = result.events
    assert (event.value, event.source, event.ts) == (reward, "reward.txt", NOW)


@pytest.mark.parametrize(
    "content", ["nan", "NaN", "inf", "-Infinity", "1e999", "True", "pass", "1_0", "0,5", "1 1", "٣"]
)
def test_text_that_is_no_finite_number_is_quoted_in_the_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(RewardFileError) as caught:
        read(text(tmp_path, content))
    assert caught.value.file == "/logs/verifier/reward.txt"
    assert caught.value.remedy
    assert content in str(caught.value) or "inf" in str(caught.value)


@pytest.mark.parametrize("name", ["reward.txt", "reward.json"])
@pytest.mark.parametrize("content", ["", " \n"])
def test_an_empty_file_is_an_error(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(RewardFileError, match="is empty"):
        read(tmp_path)


@pytest.mark.parametrize("content", ["1.5", "-0.1"])
def test_a_reward_out_of_range_is_an_error_that_names_the_range(tmp_path: Path, content: str) -> None:
    with pytest.raises(RewardFileError, match=r"outside the reward range \[0, 1\]"):
        read(text(tmp_path, content))


def test_a_wider_range_lets_it_pass(tmp_path: Path) -> None:
    assert read(text(tmp_path, "-2"), reward_range=(-2.0, 3.0)).reward == -2.0


def test_rounding_beyond_the_range_is_forgiven(tmp_path: Path) -> None:
    assert read(document(tmp_path, {"reward": 1.0000000000000002})).reward == 1.0


# --- an object in a JSON file --------------------------------------------------------------------------


def test_reward_json_carries_metrics_events_and_metadata(tmp_path: Path) -> None:
    result = read(
        document(
            tmp_path,
            {
                "reward": 0.5,
                "size": 1200,
                "metrics": {"ratio": 3.5},
                "items": {"correct": 1},
                "events": [
                    {"value": 0.25, "type": "process", "step_index": 2, "tag": "parse", "meta": {"line": 7}},
                    {"value": 0.5, "source": "tests", "ts": "2026-01-02T00:00:00Z", "space": "action"},
                ],
                "space": "output",
                "granularity": "terminal",
                "metadata": {"note": "fine"},
            },
        )
    )
    assert result.rewards == {"reward": 0.5, "size": 1200.0, "ratio": 3.5, "correct": 1.0}
    assert result.metadata == {"note": "fine"}
    first, second = result.events
    assert (first.granularity, first.step, first.tag, first.meta, first.ts) == (
        "step",
        2,
        "parse",
        {"line": 7},
        NOW,
    )
    assert (second.space, second.source, second.ts) == ("action", "tests", datetime(2026, 1, 2, tzinfo=UTC))


def test_the_scalar_becomes_an_event_when_no_terminal_event_says_it(tmp_path: Path) -> None:
    result = read(document(tmp_path, {"reward": 1.0, "events": [{"value": 1.0, "granularity": "step"}]}))
    assert [(event.value, event.granularity) for event in result.events] == [(1.0, "step"), (1.0, "terminal")]


def test_space_and_granularity_of_the_file_are_those_of_its_reward(tmp_path: Path) -> None:
    result = read(document(tmp_path, {"reward": 1.0, "space": "memory", "granularity": "step"}))
    assert (result.space, result.granularity) == ("memory", "step")
    assert (result.events[0].space, result.events[0].granularity) == ("memory", "step")


def test_reward_json_wins_over_an_agreeing_reward_txt(tmp_path: Path) -> None:
    result = read(document(text(tmp_path, "0.3333333333"), {"reward": 1 / 3, "cases": 3}))
    assert result.rewards == {"reward": 1 / 3, "cases": 3.0}


def test_files_that_disagree_are_an_error_that_quotes_both(tmp_path: Path) -> None:
    with pytest.raises(RewardFileError, match=r"says 1\.0 while reward\.txt says 0\.5") as caught:
        read(document(text(tmp_path, "0.5"), {"reward": 1.0}))
    assert caught.value.key == "reward"


def test_a_broken_reward_txt_is_an_error_even_beside_a_good_reward_json(tmp_path: Path) -> None:
    with pytest.raises(RewardFileError, match=r"reward\.txt"):
        read(document(text(tmp_path, "maybe"), {"reward": 1.0}))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ('{"reward": NaN}', "NaN is not a number in JSON"),
        ('{"reward": 1, "m": Infinity}', "Infinity is not a number in JSON"),
        ('{"reward": -Infinity}', "-Infinity is not a number in JSON"),
        ('{"reward": 1e999}', '"1e999" is too large'),
        ('{"reward": 1, "metadata": {"x": 1e999}}', '"1e999" is too large'),
        ('{"reward": 1' + "0" * 400 + "}", "is too large"),
        ('{"reward": 1' + "0" * 5000 + "}", "is not JSON"),
        ('{"reward": true}', "true is not a number"),
        ('{"reward": "1.0"}', '"1.0" is not a number'),
        ('{"reward": null}', "null is not a number"),
        ('{"reward": [1]}', "[1] is not a number"),
        ('{"reward": 1, "ok": false}', "ok: false is not a number"),
        ('{"reward": 1, "why": "because"}', 'why: "because" is not a number'),
        ('{"reward": 1, "metrics": {"ok": true}}', "metrics.ok: true is not a number"),
        ('{"reward": 1, "metrics": [1]}', "metrics: [1] is not an object"),
        ('{"reward": 1, "items": 3}', "items: 3 is not an object"),
        ('{"reward": 1, "reward": 0}', "reward: the key is there twice, as 1 and 0"),
        ('{"reward": 1, "a": 1, "metrics": {"a": 2}}', "metrics.a: 2.0 contradicts 1.0"),
        ('{"reward": 1, "metrics": {"reward": 0}}', "metrics.reward: 0.0 contradicts 1"),
        ('{"metrics": {"reward": 1}}', "the reward is not a metric"),
        ('{"reward": 2}', "2.0 is outside the reward range [0, 1]"),
        ('{"reward": 1, "space": "outer"}', 'space: "outer" is not known'),
        ('{"reward": 1, "granularity": 3}', "granularity: 3 is not known"),
        ('{"reward": 1, "metadata": "x"}', 'metadata: "x" is not an object'),
        ('{"reward": 1, "events": {}}', "events: {} is not a list"),
        ('{"reward": 1, "events": [7]}', "events[0]: 7 is not an object"),
        ('{"reward": 1, "events": [{}]}', "events[0].value: null is not a number"),
        ('{"reward": 1, "events": [{"value": 3}]}', "events[0].value: 3.0 is outside"),
        ('{"reward": 1, "events": [{"value": 1, "score": 1}]}', '"score" is not a key of an event'),
        ('{"reward": 1, "events": [{"value": 1, "step": -1}]}', "events[0].step: -1 is not a step index"),
        ('{"reward": 1, "events": [{"value": 1, "step": true}]}', "events[0].step: true is not a step index"),
        ('{"reward": 1, "events": [{"value": 1, "type": "final"}]}', 'events[0].type: "final" is not known'),
        ('{"reward": 1, "events": [{"value": 1, "ts": "soon"}]}', 'events[0].ts: "soon" is not a time'),
        ('{"reward": 1, "events": [{"value": 1, "source": 4}]}', "events[0].source: 4 is not a text"),
        ('{"reward": 1, "metadata": {"x": "\\ud800"}}', "is not valid Unicode"),
        ("[1]", "[1] is not an object"),
        ("1.0", "1.0 is not an object"),
        ("{'reward': 1}", "is not JSON"),
        ('{"reward": 1', "is not JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_not_a_reward_is_quoted_in_the_error(tmp_path: Path, raw: str, said: str) -> None:
    with pytest.raises(RewardFileError) as caught:
        read(document(tmp_path, raw))
    assert said in str(caught.value)
    assert caught.value.file == "/logs/verifier/reward.json"
    assert caught.value.remedy


def test_a_metric_stated_twice_alike_is_one_metric(tmp_path: Path) -> None:
    result = read(document(tmp_path, {"reward": 1, "a": 2, "metrics": {"a": 2.0, "reward": 1}}))
    assert result.rewards == {"reward": 1.0, "a": 2.0}


def test_a_time_without_offset_is_taken_in_the_readers_zone(tmp_path: Path) -> None:
    result = read(document(tmp_path, {"reward": 1, "events": [{"value": 1, "ts": "2026-01-01T00:00:00"}]}))
    assert result.events[0].ts == datetime(2026, 1, 1, tzinfo=UTC)


# --- no scalar -----------------------------------------------------------------------------------------


def test_metrics_without_a_reward_are_an_error_without_an_aggregate_policy(tmp_path: Path) -> None:
    with pytest.raises(RewardFileError, match="there is no reward") as caught:
        read(document(tmp_path, {"speed": 0.5}))
    assert "aggregate_policy" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("policy", "reward"),
    [
        ({"method": "mean"}, 0.6),
        ({"method": "weighted_mean", "weights": {"a": 3, "b": 1}}, 0.8),
        ({"method": "weighted_mean", "weights": {"a": 2}}, 1.0),
        ({"method": "weighted_sum", "weights": {"a": 0.5, "b": 0.5}}, 0.6),
        ({"method": "all_pass", "threshold": 0.2}, 1.0),
        ({"method": "all_pass"}, 0.0),
        ({"method": "any_pass"}, 1.0),
        ({"method": "threshold", "threshold": 0.6}, 1.0),
        ({"method": "threshold"}, 0.0),
    ],
)
def test_an_aggregate_policy_makes_the_reward_of_the_metrics(
    tmp_path: Path, policy: dict[str, Any], reward: float
) -> None:
    result = read(document(tmp_path, {"a": 1.0, "b": 0.2}), aggregate=AggregatePolicy.model_validate(policy))
    assert result.reward == pytest.approx(reward)
    assert result.items == {"a": 1.0, "b": 0.2}
    assert result.events[-1].source == f"aggregate:{policy['method']}"


@pytest.mark.parametrize(
    ("content", "policy", "said"),
    [
        ({}, {}, "no metric to aggregate"),
        ({"a": 1}, {"weights": {"b": 1}}, "weighs b, which the verifier did not report"),
        ({"a": 1}, {"weights": {"a": 0}}, "weights of the aggregate policy sum to 0"),
        ({"a": 1}, {"method": "weighted_sum", "weights": {"a": 3}}, "weighted_sum: 3.0 is outside"),
        ({"a": 1e308, "b": 1e308}, {"method": "weighted_sum"}, "is not finite"),
    ],
)
def test_metrics_that_cannot_be_aggregated_are_an_error(
    tmp_path: Path, content: dict[str, float], policy: dict[str, Any], said: str
) -> None:
    with pytest.raises(RewardFileError) as caught:
        read(document(tmp_path, content), aggregate=AggregatePolicy.model_validate(policy))
    assert said in str(caught.value)


def test_a_scalar_wins_over_the_aggregate_policy(tmp_path: Path) -> None:
    assert read(document(tmp_path, {"reward": 0.1, "a": 1.0}), aggregate=AggregatePolicy()).reward == 0.1


# --- no file, and files that are not what they seem ----------------------------------------------------


def test_no_reward_at_all_is_missing_and_shows_what_the_verifier_said(tmp_path: Path) -> None:
    (tmp_path / "test-stdout.txt").write_text("\n".join(f"line {n}" for n in range(50)))
    with pytest.raises(RewardMissingError, match="exit status 3") as caught:
        read(tmp_path, exit_code=3)
    assert caught.value.remedy
    assert (caught.value.log_tail or "").splitlines()[-1] == "line 49"
    assert "line 5\n" not in (caught.value.log_tail or "")


def test_a_directory_that_was_never_made_is_missing_too(tmp_path: Path) -> None:
    with pytest.raises(RewardMissingError) as caught:
        read(tmp_path / "nowhere")
    assert caught.value.log_tail is None


def test_output_that_is_no_file_is_left_out_of_the_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "test-stdout.txt")
    with pytest.raises(RewardMissingError) as caught:
        read(tmp_path)
    assert caught.value.log_tail is None


def test_a_failed_script_with_a_reward_counts_and_warns(tmp_path: Path) -> None:
    result = read(text(tmp_path, "0"), exit_code=1)
    assert result.reward == 0.0
    assert result.warnings == ["the verifier ended with exit status 1; the reward it wrote counts"]


@pytest.mark.parametrize("name", ["reward.txt", "reward.json"])
def test_a_symbolic_link_is_refused(tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("1.0")
    (tmp_path / name).symlink_to(secret)
    with pytest.raises(RewardFileError, match="is a symbolic link"):
        read(tmp_path)


def test_a_dangling_link_is_refused_rather_than_missing(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(RewardFileError, match="is a symbolic link"):
        read(tmp_path)


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "reward.txt")
    with pytest.raises(RewardFileError, match="is a pipe"):
        read(tmp_path)


def test_a_directory_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "reward.json").mkdir()
    with pytest.raises(RewardFileError, match="is a directory"):
        read(tmp_path)


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "reward.json").open("wb") as stream:
        stream.truncate(1024 * 1024 + 1)
    with pytest.raises(RewardFileError, match="is larger than 1048576 bytes"):
        read(tmp_path)


def test_bytes_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_bytes(b"1.0\xff")
    with pytest.raises(RewardFileError, match="is not UTF-8"):
        read(tmp_path)
