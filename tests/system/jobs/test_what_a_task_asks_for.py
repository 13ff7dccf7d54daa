"""What a task's configuration asks of its sandbox is what the agent and the verifier find there.

Each task's verifier looks for itself and reports every finding as a metric, 1 for as it should be.
"""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest
from support.system_job import Results, SystemTasks
from support.task_writer import BASE_IMAGE, write_script, write_step, write_task

from benchflow.contracts.rollout_records import RolloutResult

ON_BASE = f"FROM {BASE_IMAGE}\n"

FINDINGS = dedent("""\
    metrics=
    finds() { name=$1; shift; if "$@" >/dev/null 2>&1; then v=1; else v=0; echo "not so: $name: $*"; fi
      metrics="$metrics${metrics:+, }\\"$name\\": $v"; }
    lacks() { name=$1; shift; if "$@" >/dev/null 2>&1; then finds "$name" false; else finds "$name" true; fi; }
    report() { echo "{\\"reward\\": 1, \\"metrics\\": {$metrics}}" > /logs/verifier/reward.json; }
    pid1() { tr '\\\\0' '\\\\n' < /proc/1/environ | grep -qx "$1"; }
    """)


def looks(root: Path, name: str, checks: str, **options: str) -> Path:
    """A task whose verifier makes these checks."""
    return write_task(root, name, test=f"{FINDINGS}{dedent(checks)}report\n", **options)


def agents_account(root: Path) -> Path:
    task = looks(
        root,
        "account",
        """\
        finds in_passwd sh -c 'grep "^agent:" /etc/passwd | grep -v ":0:"'
        finds own_home sh -c '[ "$(stat -c %U:%a /home/agent)" = agent:700 ]'
        finds own_config sh -c '[ "$(stat -c %U /home/agent/.config)" = agent ]'
        finds own_workspace sh -c '[ "$(stat -c %U /app /app/data/deep/file | sort -u)" = agent ]'
        finds link_target_kept sh -c '[ "$(stat -c %U /etc/hostname)" = root ]'
        finds tools_kept sh -c '[ "$(stat -c %U /usr/bin/env /opt/tool | sort -u)" = root ]'
        finds writes_logs sh -c '[ "$(stat -c %U /logs/agent)" = agent ]'
        finds small sh -c '[ "$(du -sk /home/agent | cut -f1)" -lt 100 ]'
        finds instruction grep -q "Make the answer" /instruction.md
        """,
        # It would be the verifier's by now, and what the agent was given could not be seen any more.
        config="[verifier.hardening]\nown_workspace = false\n",
        dockerfile=f"FROM {BASE_IMAGE}\nCOPY data /app/data\nWORKDIR /app\n"
        "RUN touch /opt/tool && ln -s /etc/hostname /app/link\n",
    )
    deep = task / "environment" / "data" / "deep"
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    return task


def leftover_processes(root: Path) -> Path:
    """What ran before the agent belongs to the world and stays. The agent's own cannot be had from `nop`."""
    return looks(
        root,
        "service",
        "finds alive sh -c 'kill -0 $(cat /run/service.pid)'\n",
        config="[[environment.setup_commands]]\n"
        'command = "setsid sleep 600 >/dev/null 2>&1 & echo $! > /run/service.pid"\n'
        f'[environment]\ndocker_image = "{BASE_IMAGE}"\n',
    )


def verifiers_own(root: Path) -> Path:
    return looks(
        root,
        "verifier",
        """\
        finds is_nobody sh -c '[ "$(id -un)" = nobody ]'
        finds env_wins sh -c '[ "$MODE" = strict ]'
        finds where_it_lies sh -c '[ "$PWD" = / ] && [ -e /tests/helper.sh ]'
        """,
        config='[verifier]\nuser = "nobody"\nenv = { MODE = "strict" }\n',
        environment='env = { MODE = "lax" }',
    )


def untouched(root: Path) -> list[Path]:
    """Tasks on which the agent does nothing."""
    tasks = [
        agents_account(root),
        verifiers_own(root),
        looks(
            root,
            "limits",
            """\
            limit() { cat /sys/fs/cgroup/$1 /sys/fs/cgroup/$2 2>/dev/null | head -n 1; }
            finds memory [ "$(limit memory/memory.limit_in_bytes memory.max)" = 201326592 ]
            finds cpus [ "$(limit cpu/cpu.cfs_quota_us cpu.max | cut -d" " -f1)" = 50000 ]
            finds pids [ "$(limit pids/pids.max pids.max)" = 4096 ]
            """,
            environment="cpus = 0.5\nmemory_mb = 192\nstorage_mb = 500",
        ),
    ]
    write_script(tasks[1] / "tests" / "helper.sh", "true\n")
    return tasks


def seldom_untouched(root: Path) -> list[Path]:
    """Write more such tasks. What they show of a sandbox, every provider's conformance shows, too."""
    return [
        leftover_processes(root),
        looks(
            root,
            "offline",
            """\
            lacks an_interface grep -q "^ *eth" /proc/net/dev
            finds no_route sh -c '[ "$(wc -l < /proc/net/route)" -le 1 ]'
            """,
            environment='network_mode = "no-network"',
        ),
        looks(root, "online", 'finds an_interface grep -q "^ *eth" /proc/net/dev\n'),
    ]


def solved(root: Path) -> list[Path]:
    """Tasks that the oracle works on."""
    return [
        looks(
            root,
            "image-workdir",
            "finds there [ -e /data/made ]\n",
            solve="touch made\n",
            dockerfile=f"FROM {BASE_IMAGE}\nWORKDIR /data\n",
        ),
        looks(
            root,
            "app",
            "finds there [ -e /made ]\n",
            solve="touch made\n",
            dockerfile=f"FROM {BASE_IMAGE}\nRUN mkdir /app\n",
        ),
        looks(root, "nowhere", "finds there [ -e /made ]\n", solve="touch made\n", dockerfile=ON_BASE),
        looks(
            root,
            "prepared",
            """\
            finds ran_first [ "$(cat /srv/prepared)" = "/srv nobody two" ]
            finds before_agent [ "$(cat /root/seen)" = "/srv nobody two" ]
            """,
            solve="cat /srv/prepared > /root/seen\n",
            dockerfile=ON_BASE,
            config=dedent("""\
                [environment]
                [[environment.setup_commands]]
                command = "chmod 777 /srv"
                [[environment.setup_commands]]
                command = 'echo "$PWD $(id -un) $PART" > prepared'
                cwd = "/srv"
                user = "nobody"
                env = { PART = "two" }
                """),
        ),
        looks(
            root,
            "artifacts",
            "true\n",
            # What an artifact's source is relative to.
            solve="cd /root; mkdir -p out/cache /logs/artifacts; echo 1 > out/kept; echo 2 > out/cache/x; "
            "echo 3 > out/a.tmp; echo 4 > /srv/single; echo 5 > /logs/artifacts/free\n",
            config='artifacts = ["/srv/single", "/srv/absent", '
            '{source = "out", destination = "result", exclude = ["cache", "*.tmp"]}]\n',
            dockerfile=ON_BASE,
        ),
        looks(
            root,
            "healthy-late",
            "finds after_readiness [ -e /srv/up ]\n",
            dockerfile=ON_BASE,
            config=dedent("""\
                [environment]
                [[environment.setup_commands]]
                command = "(sleep 0.6; touch /srv/up) >/dev/null 2>&1 &"
                [environment.healthcheck]
                command = "test -e /srv/up"
                interval_sec = 0.2
                retries = 300
                """),
            solve="test -e /srv/up\n",
        ),
    ]


def assert_all_found(result: RolloutResult) -> None:
    assert result.rewards is not None, result.error or result.verifier_error
    output = (Path(str(result.directory)) / "verifier" / "test-stdout.txt").read_text()
    assert len(result.rewards) > 1 and set(result.rewards.values()) == {1}, output


@pytest.mark.docker
@pytest.mark.parametrize(
    "name",
    [
        *("account", "verifier", "limits"),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("service", "offline", "online")),
    ],
)
def test_a_world_that_nobody_touched_is_as_its_task_says(idle_results: Results, name: str) -> None:
    assert_all_found(idle_results[name])


@pytest.mark.local
@pytest.mark.parametrize("name", ["image-workdir", "app", "nowhere", "prepared", "healthy-late"])
def test_the_agent_works_where_its_task_says(local_results: Results, name: str) -> None:
    assert_all_found(local_results[name])
    assert local_results[name].error is None


@pytest.mark.docker
def test_a_directory_that_is_not_in_the_image_is_made(docker_results: Results) -> None:
    assert_all_found(docker_results["workdir"])
    assert docker_results["workdir"].error is None


@pytest.mark.docker
def test_a_limit_that_cannot_be_enforced_is_a_recorded_warning(idle_results: Results) -> None:
    assert any("storage_mb = 500 is not enforced" in warning for warning in idle_results["limits"].warnings)
    assert idle_results["account"].warnings == []


@pytest.mark.local
def test_declared_artifacts_are_kept_without_what_is_excluded(local_results: Results) -> None:
    root = Path(str(local_results["artifacts"].directory)) / "artifacts"
    files = {str(file.relative_to(root)): file.read_text().strip() for file in root.rglob("*") if file.is_file()}
    assert files == {"srv/single": "4", "result/kept": "1", "free": "5"}
    assert local_results["artifacts"].warnings[-1] == "artifact /srv/absent does not exist"


# --- steps ---------------------------------------------------------------------------------------------


def stepped(root: Path, name: str, rewards: list[str], config: str) -> Path:
    """A task whose steps earn these rewards, one after another, in one sandbox."""
    task = write_task(root, name, config=config, dockerfile=ON_BASE)
    for number, reward in enumerate(rewards):
        write_step(
            task,
            f"s{number}",
            solve=f"echo s{number} >> /root/log; echo made > /root/made-{number}\n",
            test=f"cat /root/log; echo {reward} > /logs/verifier/reward.txt\n",
        )
    return task


def steps_of_users(root: Path) -> Path:
    """Return a task whose oracle is another user in each step."""
    users = "".join(f'[[steps]]\nname = "s{number}"\nagent.user = {user}\n' for number, user in enumerate(USERS))
    task = write_task(root, "users", config=users, dockerfile=f"{ON_BASE}RUN touch /srv/log && chmod 666 /srv/log\n")
    for number in range(len(USERS)):
        test = "cat /srv/log; echo 1 > /logs/verifier/reward.txt\n"
        write_step(task, f"s{number}", solve='echo "s$(id -u)"; id -u >> /srv/log\n', test=test)
    return task


USERS = ('"root"', '"nobody"', "1234", '"root"')


def steps_table(*extra: str) -> str:
    return "".join(f'[[steps]]\nname = "s{number}"\n{lines}\n' for number, lines in enumerate(extra))


def of_steps(root: Path) -> list[Path]:
    artifact = 'artifacts = ["/root/made-1"]'
    return [
        stepped(root, "mean", ["1", "0.5", "0"], steps_table("", artifact, "")),
        stepped(root, "final", ["0.2", "1"], 'multi_step_reward_strategy = "final"\n' + steps_table("", "")),
        stepped(root, "stops", ["1", "0.25", "1"], steps_table("min_reward = 0.5", "min_reward = 0.5", "")),
        stepped(root, "breaks", ["1", "NaN", "1"], steps_table("", "", "")),
        steps_of_users(root),
    ]


def system_tasks(root: Path) -> SystemTasks:
    workdir = looks(
        root,
        "workdir",
        "finds there [ -e /srv/work/made ]\n",
        solve="pwd > made; id -u > /root/uid\n",
        environment='workdir = "/srv/work"',
    )
    return {"idle": untouched(root), "docker": [workdir], "local": [*solved(root), *of_steps(root)]}


def long_system_tasks(root: Path) -> SystemTasks:
    return {"idle": seldom_untouched(root)}


@pytest.mark.local
def test_the_reward_of_steps_is_their_mean_or_the_last(local_results: Results) -> None:
    assert local_results["mean"].rewards == {"reward": 0.5}
    assert local_results["final"].rewards == {"reward": 1.0}


@pytest.mark.local
def test_steps_run_in_order_in_one_sandbox_and_are_each_scored(local_results: Results) -> None:
    result = local_results["mean"]
    root = Path(str(result.directory))
    assert (root / "steps" / "s2" / "verifier" / "test-stdout.txt").read_text() == "s0\ns1\ns2\n"
    assert [outcome.step.name for outcome in result.steps] == ["s0", "s1", "s2"]
    assert result.n_prompts == 3
    lines = [json.loads(line) for line in (root / "rewards.jsonl").read_text().splitlines()]
    assert [(line["step_index"], line["value"]) for line in lines] == [(0, 1.0), (1, 0.5), (2, 0.0)]
    prompts = json.loads((root / "prompts.json").read_text())
    assert [prompt["text"] for prompt in prompts] == ["Do s0.", "Do s1.", "Do s2."]
    tree = json.loads((root / "tree.json").read_text())
    assert [(node["parent"], node["rewards"]) for node in tree["nodes"]] == [
        (None, None), ("n0", {"reward": 1.0}), ("n1", {"reward": 0.5}), ("n2", {"reward": 0.0})
    ]  # fmt: skip
    assert (root / "steps" / "s1" / "artifacts" / "root" / "made-1").read_text() == "made\n"


@pytest.mark.local
def test_the_oracle_is_in_each_step_who_its_agent_is(local_results: Results) -> None:
    result = local_results["users"]
    assert (result.rewards, result.error) == ({"reward": 1.0}, None)
    root = Path(str(result.directory))
    assert (root / "steps" / "s3" / "verifier" / "test-stdout.txt").read_text().split() == ["0", "65534", "1234", "0"]
    said = [json.loads(line) for line in (root / "trajectory/acp_trajectory.jsonl").read_text().splitlines()]
    assert [line["stdout"] for line in said if line["type"] == "oracle"] == ["s0\n", "s65534\n", "s1234\n", "s0\n"]


@pytest.mark.local
def test_a_step_below_its_min_reward_is_the_last(local_results: Results) -> None:
    result = local_results["stops"]
    assert [outcome.step.name for outcome in result.steps] == ["s0", "s1"]
    assert result.rewards == {"reward": 0.625}
    assert result.status == "failed"


@pytest.mark.local
def test_a_step_that_cannot_be_scored_leaves_no_reward(local_results: Results) -> None:
    result = local_results["breaks"]
    assert (result.status, result.rewards) == ("errored", None)
    assert len(result.steps) == 2
    assert result.verifier_error is not None and result.verifier_error.type == "RewardFileError"
