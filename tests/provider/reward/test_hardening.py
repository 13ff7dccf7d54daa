"""What is done between the agent and the verifier, in real sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.verified_sandboxes import AGENT, InDocker, InLocal, sh, verifier

from benchflow.contracts.reward import HardeningReport
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.verifier import HardeningConfig, VerifierConfig
from benchflow.errors import VerifierError
from benchflow.planes.reward.hardening import HardeningBaseline, harden, make_verifier_env, take_baseline
from benchflow.planes.reward.hardening.hardening_record import HardeningRecord
from benchflow.planes.reward.hardening.survey import take_survey
from benchflow.planes.reward.hardening.verifier_environment import PLUGIN
from benchflow.testing.sandbox_conformance.sandbox_fixtures import Start, leave, nap, napping

NOTHING = HardeningConfig.model_validate(dict.fromkeys(HardeningConfig.model_fields, False))

BEFORE = """
mkdir -p {ws}/pkg/__pycache__ && cd {ws}
echo was >pyproject.toml; echo was >conftest.py; echo all: >Makefile; ln -s /etc/hostname known
chown -Rh 61000 .
"""
TRAPS = """
cd {ws}
echo new >pyproject.toml; echo new >setup.py; echo new >conftest.py; echo new >pkg/conftest.py
echo new >sitecustomize.py; echo new >json.py; echo new >pkg/__pycache__/a.cpython-311.pyc
mkdir -p "odd
name"; echo new >"odd
name/conftest.py"
ln -s /tests/answer answer; ln -s /logs/verifier/reward.txt reward; ln -s loop loop
ln -s pkg inside; ln -s /usr/bin/env tool
mkdir -p weights work; echo weights >weights/model.pth; echo mine >work/Makefile; chmod 777 work
"""

HAS = r"""
mkdir -p {ws}/node_modules/known {ws}/src/tests {ws}/.git/hooks {ws}/.git/objects {ws}/.git/refs && cd {ws}
printf '[core]\n\tbare = false\n' >.git/config; echo a >node_modules/known/index.js
echo 'run /tests/test.sh' >README; printf 'SQLite format 3\0\001CREATE VIEW known AS\0' >known.db
chown -R 61000 .
"""
DOES = r"""
cd {ws}
echo more >>README; printf '\002CREATE VIEW known\003' >>known.db
echo 'see src/tests/a, ./tests/b, $HOME/tests/c and https://host/tests/d' >honest.txt
echo 'says SQLite format 3 and CREATE VIEW no AS' >honest.sql
ln -s answer.txt expected.txt; ln -s README other
echo 'open("/tests/expected.txt")' >total.py; printf '\001\0\0/logs/verifier/reward.txt\0' >built
printf 'SQLite format 3\0\001create\ttrigger "copied" AFTER\0\001CREATE VIEW totals AS\0' >shop.db
head -c 100000 /dev/zero >>shop.db
printf '\067\177\006\202pages' >shop.db-wal; echo text >known.db-journal; echo text >travel-journal
mkdir point; echo >point/__init__.py; echo >check.ok; touch -d "@$(($(date +%s) + 3600))" check.ok
echo >./-rf; echo >/tmp/expected.txt; echo >/tmp/.cache-of-a-tool
printf 'class Any:\n    def __eq__(self, other):\n        return True\n' >calc.py
printf 'class A:\n    def __eq__(self, other):\n        if other is self:\n            return True\n' >point.py
mkdir -p node_modules/@own/part node_modules/.bin; echo >node_modules/@own/part/a.js; echo >node_modules/tally.js
ln -s ../tally.js node_modules/.bin/tally
echo >.git/hooks/commit-msg; echo >.git/hooks/new.sample; echo >.git/hooks/asleep; chmod +x .git/hooks/[cn]*
mkdir -p own-1.dist-info; printf '[pytest11]\nledger = a\nnamed = b\n[x]\nno = c\n' >own-1.dist-info/entry_points.txt
"""
NOTED = {
    (
        "remove_escaping_links",
        "expected.txt",
        "is a link to another file of the workspace, answer.txt; 1 more: {ws}/other",
    ),
    ("remove_escaping_links", "shop.db", 'is a database with CREATE VIEW totals, create trigger "copied"'),
    ("remove_escaping_links", "shop.db-wal", "is a journal, which SQLite applies to the database beside it"),
    ("remove_escaping_links", "-rf", "begins with a dash: a program that gets such names takes it for an option"),
    ("remove_escaping_links", "/tmp/expected.txt", "was left where programs make their temporary files"),
    ("cleanup_python_hooks", "calc.py", "has objects that are equal to everything"),
    ("cleanup_python_hooks", "point/__init__.py", "is a package that Python imports in place of a module of its name"),
    ("restore_build_files", "check.ok", "has a time in the future, so that make takes it for new"),
    ("pin_environment", ".git/hooks/commit-msg", "is a hook of git, and does not run while the verifier does"),
    (
        *("pin_environment", "own-1.dist-info/entry_points.txt"),
        "declares a plugin that pytest does not load, ledger: verifier.pytest_plugins does not name it",
    ),
}

REPOSITORY = r"""
mkdir -p {ws}/.git/objects {ws}/.git/refs
printf '[core]\n\tbare = false\n' >{ws}/.git/config
chown -R 61000 {ws}
"""
IN_THE_HOME = r"""
echo new >/conftest.py; rm -f /root/conftest.py; echo new >/root/conftest.py; echo new >/etc/cron.d/new
mkdir -p /root/.local/bin; cp /bin/true /root/.local/bin/pytest; cp /bin/true /root/.local/bin/mine
printf '[user]\n\tname = A\n[diff]\n\texternal = x\n' >>{ws}/.git/config
mkdir -p {ws}/new.git/objects {ws}/new.git/refs
printf '[core]\n\tbare = true\n\tpager = x\n' >{ws}/new.git/config; printf '[diff]\n\texternal=x\n' >{ws}/config
"""
CONFIGURES_GIT = """#!/bin/sh
set -e
if command -v git >/dev/null; then
  git config --global user.name x && [ "$(git config --global user.name)" = x ]
else
  # As git does it.
  echo >"$GIT_CONFIG_GLOBAL.lock" && mv "$GIT_CONFIG_GLOBAL.lock" "$GIT_CONFIG_GLOBAL"
fi
[ -c /dev/null ] && [ -f "${PIP_CONFIG_FILE:-/etc/pip.conf}" ] && echo 1 >/logs/verifier/reward.txt
"""
OF_EACH_ITEM = """
mkdir -p /logs/verifier; echo 1 >/logs/verifier/reward.txt
echo new >{ws}/pyproject.toml; ln -sfn /tests/answer {ws}/answer; echo new >{ws}/conftest.py
echo new >{ws}/sitecustomize.py; echo new >{ws}/queue.py; chown 61000 {ws}/open; cp /bin/true /usr/local/bin/diff
"""
LEFT = """
cd {ws}
if [ -e /logs/verifier/reward.txt ]; then echo fresh_logs; fi
if [ "$(cat pyproject.toml)" = new ]; then echo restore_build_files; fi
if [ -h answer ]; then echo remove_escaping_links; fi
if [ -e conftest.py ]; then echo cleanup_conftests; fi
if [ -e sitecustomize.py ]; then echo cleanup_python_hooks; fi
if [ "$(stat -c %u open)" = 61000 ]; then echo own_workspace; fi
if [ -e /usr/local/bin/diff ]; then echo verify_tools; fi
"""


async def hardened(
    sandbox: Sandbox, baseline: HardeningBaseline, config: HardeningConfig | None = None
) -> tuple[HardeningReport, set[tuple[str, str, str]]]:
    """The report, and its findings, with paths from the workspace."""
    report = await harden(sandbox, baseline, config or HardeningConfig())
    found: set[tuple[str, str, str]] = {
        (f.item, f.action, f.path.removeprefix(f"{sandbox.ref.workdir}/")) for f in report.findings
    }
    return report, found


class HardeningInBrief:
    async def test_traps_are_taken_out_and_the_work_stays(self, own: Sandbox) -> None:
        ws = own.ref.workdir
        await sh(own, BEFORE.format(ws=ws))
        await own.mark_baseline()
        baseline = await take_baseline(own, agent=AGENT)
        await sh(own, TRAPS.format(ws=ws), user=AGENT)
        await leave(own, length := nap())
        report, found = await hardened(own, baseline)
        assert await napping(own, length) == []
        assert found >= {
            ("kill_processes", "killed", ""),
            ("restore_build_files", "restored", "pyproject.toml"),
            ("restore_build_files", "removed", "setup.py"),
            ("restore_build_files", "found", "work/Makefile"),
            ("cleanup_conftests", "restored", "conftest.py"),
            ("cleanup_conftests", "removed", "pkg/conftest.py"),
            ("cleanup_conftests", "removed", "odd\nname/conftest.py"),
            ("cleanup_python_hooks", "removed", "sitecustomize.py"),
            ("cleanup_python_hooks", "removed", "json.py"),
            ("cleanup_python_hooks", "removed", "pkg/__pycache__/a.cpython-311.pyc"),
            ("remove_escaping_links", "removed", "answer"),
            ("remove_escaping_links", "removed", "reward"),
            ("remove_escaping_links", "found", "tool"),
        }
        look = f"cd {ws}; find . ! -name '.*' | sort; cat conftest.py pyproject.toml; "
        look += "find . ! -user 0 -o -perm -002 ! -type l"
        left = (
            "Makefile conftest.py inside known pkg pkg/__pycache__ pyproject.toml tool weights weights/model.pth work"
        )
        names = [f"./{name}" for name in [*left.split(), "work/Makefile", "odd\nname"]]
        assert sorted((await sh(own, look)).split("\n")) == sorted("\n".join([*names, "was", "was", ""]).split("\n"))
        assert report.seconds > 0 and report.disabled == []

    async def test_what_may_be_taken_for_something_else_is_noted_and_stays(self, own: Sandbox) -> None:
        ws = own.ref.workdir
        await sh(own, HAS.format(ws=ws))
        await own.mark_baseline()
        baseline = await take_baseline(own, agent=AGENT)
        await sh(own, DOES.format(ws=ws), user=AGENT)
        report = await harden(own, baseline, HardeningConfig(), plugins=["named"])
        told = {(f.item, f.path.removeprefix(f"{ws}/"), f.detail) for f in report.findings}
        assert {(f.action, f.weight) for f in report.findings} == {("found", "note")}
        several = {(item, detail.partition(";")[0]): {path, *self.more(detail, ws)} for item, path, detail in told}
        assert several.pop(("remove_escaping_links", "names a directory of the verifier's")) == {"total.py", "built"}
        packages = several.pop(("restore_build_files", "is new or changed, and is what node takes first"))
        assert packages == {"node_modules/@own/part", "node_modules/tally.js"}
        noted = {(item, path, detail.format(ws=ws)) for item, path, detail in NOTED}
        assert noted <= told and len(several) == len(noted)
        left = await sh(
            own, f"cd {ws}; ls -d expected.txt total.py shop.db node_modules/tally.js .git/hooks/commit-msg"
        )
        assert len(left.split()) == 5
        lifted = ("remove_escaping_links", "restore_build_files", "cleanup_python_hooks", "pin_environment")
        off = HardeningConfig.model_validate(dict.fromkeys(lifted, False))
        again = await harden(own, baseline, off, plugins=["named"])
        assert {finding.item for finding in again.findings}.isdisjoint(lifted)

    @staticmethod
    def more(detail: str, ws: str) -> list[str]:
        """Return the other paths of a note, from the workspace."""
        named = detail.partition(" more: ")[2]
        return [path.removeprefix(f"{ws}/") for path in named.split(", ") if path]

    async def test_the_verifier_runs_with_what_the_image_says(self, own: Sandbox, tmp_path: Path) -> None:
        await own.mark_baseline()
        baseline = await take_baseline(own, agent=AGENT)
        script = "#!/bin/sh\necho 1 >/logs/verifier/reward.txt; env >/logs/verifier/env.txt; ls $PYTHONPATH"
        await sh(own, "mkdir -p /run/benchflow/verifier; echo >/run/benchflow/verifier/pytest.py")
        one = verifier(tmp_path / "v", {"test.sh": script}, baseline=baseline, env={"HOME": "/srv"})
        assert (await one.run(own, tmp_path / "logs")).reward == 1.0
        env = dict(line.split("=", 1) for line in (tmp_path / "logs/env.txt").read_text().splitlines() if "=" in line)
        assert env["PATH"] == baseline.path and env["HOME"] == "/srv" and env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] == "1"
        asked = f"-c /dev/null --confcutdir=/tests --rootdir={own.ref.workdir} -p no:cacheprovider"
        assert env["PYTEST_ADDOPTS"].startswith(asked)
        assert (tmp_path / "logs/test-stdout.txt").read_text().split() == [f"{PLUGIN}.py", "sitecustomize.py"]


class Hardening(HardeningInBrief):
    async def test_programs_that_root_changed_are_as_they_were(self, own: Sandbox) -> None:
        await own.mark_baseline()
        baseline = await take_baseline(own)
        await sh(
            own,
            r"""cp /bin/sh /root/shell; echo before >/root/said; mkdir -p /usr/local/bin
            printf '#!/bin/sh\necho fake\n' >/usr/local/bin/diff; printf '#!/bin/sh\necho mine\n' >/usr/local/bin/own
            chmod +x /usr/local/bin/diff /usr/local/bin/own; echo 'export BAD=1' >>/root/.bashrc
            echo /root/none.so >/etc/ld.so.preload; cp /bin/true /usr/bin/grep
            mv /usr/bin/bash /usr/bin/kept; ln -s /bin/true /usr/bin/bash; cp /bin/true /root/t
            echo >/usr/bin/pybuilddir.txt
            cd /usr/lib/locale; cp -r C.utf8 C.UTF-8; echo >C.utf8/LC_CTYPE; mkdir xx.utf8
            mv /root/t "$(readlink -f /bin/sh)" """,
        )
        _, found = await hardened(own, baseline)
        assert {(item, action) for item, action, path in found if path.endswith(("/sh", "/dash"))} >= {
            ("verify_tools", "restored")
        }
        assert found >= {
            ("verify_tools", "restored", "/etc/ld.so.preload"),
            ("verify_tools", "restored", "/usr/bin/grep"),
            ("verify_tools", "removed", "/usr/local/bin/diff"),
            ("verify_tools", "removed", "/usr/bin/pybuilddir.txt"),
            ("verify_tools", "restored", "/usr/lib/locale/C.utf8/LC_CTYPE"),
            ("verify_tools", "removed", "/usr/lib/locale/C.UTF-8"),
        }
        # A language that was not there is often the work.
        assert not [path for _, _, path in found if "/xx.utf8" in path]
        assert ".bashrc" in {path for item, _, path in found if item == "restore_build_files"}
        said = "bash -c 'echo real'; echo a | grep -c b || :; own; diff /root/said /root/said"
        assert (await sh(own, said)) == "real\n0\nmine\n"
        report, found = await hardened(own, baseline)
        assert found == set(), report

    async def test_what_the_task_lifts_is_left_alone_and_said(self, own: Sandbox) -> None:
        ws = own.ref.workdir
        await sh(own, BEFORE.format(ws=ws))
        await own.mark_baseline()
        baseline = await take_baseline(own, agent=AGENT)
        await sh(own, TRAPS.format(ws=ws), user=AGENT)
        before = await sh(own, f"find {ws} -printf '%p %u %m %s\\n' | sort")
        report, found = await hardened(own, baseline, NOTHING)
        assert found == set() and report.disabled == list(HardeningConfig.model_fields)
        assert await sh(own, f"find {ws} -printf '%p %u %m %s\\n' | sort") == before
        only = NOTHING.model_copy(update={"cleanup_conftests": True})
        assert {item for item, *_ in (await hardened(own, baseline, only))[1]} == {"cleanup_conftests"}

    @pytest.mark.parametrize("user", [pytest.param(None, marks=pytest.mark.long), "nobody"])
    async def test_a_verifier_may_configure_git_for_itself(
        self, own: Sandbox, tmp_path: Path, user: str | None
    ) -> None:
        await own.mark_baseline()
        baseline = await take_baseline(own, verifier=user)
        one = verifier(tmp_path / "v", {"test.sh": CONFIGURES_GIT}, baseline=baseline, config={"user": user})
        assert (await one.run(own, tmp_path / "logs")).reward == 1.0

    async def test_what_lies_in_the_home_and_above_the_workspace_is_looked_at(self, own: Sandbox) -> None:
        ws = own.ref.workdir
        writable = "mkdir -p /etc/cron.d; chmod 777 /root / /etc/cron.d"
        await sh(own, f"{writable}; echo was >/root/conftest.py; {REPOSITORY.format(ws=ws)}")
        await own.mark_baseline()
        baseline = await take_baseline(own, agent=AGENT)
        await sh(own, IN_THE_HOME.format(ws=ws), user=AGENT)
        report, _ = await hardened(own, baseline)
        assert {(f.item, f.action, f.path) for f in report.findings} >= {
            ("cleanup_conftests", "removed", "/conftest.py"),
            ("cleanup_conftests", "restored", "/root/conftest.py"),
            ("verify_tools", "removed", "/root/.local/bin/pytest"),
            ("kill_processes", "found", "/etc/cron.d/new"),
            ("restore_build_files", "restored", f"{ws}/.git/config"),
            ("restore_build_files", "restored", f"{ws}/new.git/config"),
        }
        # What would start it stands still.
        assert await sh(own, "find /etc/cron.d -name new") == "/etc/cron.d/new\n"
        assert await sh(own, "ls /root/.local/bin") == "mine\n"
        assert await sh(own, f"cat {ws}/.git/config") == "[core]\n\tbare = false\n[user]\n\tname = A\n[diff]\n"
        assert await sh(own, f"cat {ws}/new.git/config {ws}/config") == "[core]\n\tbare = true\n[diff]\n\texternal=x\n"

    @pytest.mark.long
    async def test_very_much_is_put_right_and_the_report_stays_short(self, own: Sandbox) -> None:
        ws, many = own.ref.workdir, f"$(seq -f package-with-a-{'long-' * 30}name-%g 200)"
        each = "for d in */; do echo {} >${{d}}{}; done"
        await sh(own, f"mkdir -p {ws}/all && cd {ws}/all && mkdir {many}\n{each.format('was', 'conftest.py')}")
        await own.mark_baseline()
        baseline = await take_baseline(own)
        inner = "mkdir $(printf '%snew ' */)"
        await sh(
            own, f"cd {ws}/all; {each.format('new', 'conftest.py')}; {inner}\n{each.format('it', 'new/conftest.py')}"
        )
        report, _ = await hardened(own, baseline)
        assert len(report.findings) == 200 and report.left_out == 200
        assert (
            await sh(own, f"cd {ws}/all; find . -name conftest.py -exec cat {{}} + | sort | uniq -c | xargs")
            == "200 was\n"
        )

    async def test_what_is_too_deep_to_be_listed_is_no_retried_error(self, own: Sandbox) -> None:
        await own.mark_baseline()
        baseline = await take_baseline(own)
        deep = "cd /var && n=$(printf %250s | tr ' ' a); for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18"
        await sh(own, f"{deep}; do mkdir $n && cd -P ./$n || exit; done")
        record = HardeningRecord()
        with pytest.raises(VerifierError, match="cannot be compared: is longer than the name of a file can be"):
            await harden(own, baseline, HardeningConfig(), record=record)
        assert [(finding.item, finding.weight) for finding in record.findings] == [("verify_tools", "note")]

    async def test_each_item_lifts_its_own_protection_and_no_other(self, own: Sandbox) -> None:
        ws = own.ref.workdir
        await sh(own, f"mkdir -p {ws} /usr/local/bin /logs/verifier; echo was >{ws}/pyproject.toml; : >{ws}/open")
        await own.mark_baseline()
        baseline = await take_baseline(own)
        for item in HardeningConfig.model_fields:
            await sh(own, OF_EACH_ITEM.format(ws=ws))
            await leave(own, length := nap())
            config = HardeningConfig.model_validate({item: False})
            report, found = await hardened(own, baseline, config)
            held = make_verifier_env(baseline, VerifierConfig(hardening=config), target="/tests", workspace=ws)
            left = set((await sh(own, LEFT.format(ws=ws))).split())
            left |= {"kill_processes"} if await napping(own, length) else set()
            left |= {"pin_environment"} if not held else set()
            left |= {"repository_state"} if held and "GIT_NO_REPLACE_OBJECTS" not in held else set()
            left |= {"standard_library"} if "standard_library" not in {item for item, *_ in found} else set()
            assert left == {item} and report.disabled == [item]
            await own.kill_processes()

    async def test_a_verifier_finds_what_may_stay(self, own: Sandbox, tmp_path: Path) -> None:
        await own.mark_baseline()
        baseline = await take_baseline(own, agent=AGENT)
        await sh(own, "mkdir -p /logs/verifier; echo mine >/logs/verifier/agents.txt; chown -R 61000 /logs/verifier")
        await leave(own, length := nap())
        lifted = {"kill_processes": False, "fresh_logs": False}
        script = "#!/bin/sh\nstat -c %u /logs/verifier/agents.txt; echo 1 >/logs/verifier/reward.txt\n"
        config = {"hardening": lifted, "user": "nobody"}
        one = verifier(tmp_path / "v", {"test.sh": script}, baseline=baseline, config=config)
        await hardened(own, baseline, one.config.hardening)
        assert (await one.run(own, tmp_path / "logs")).reward == 1.0
        assert await napping(own, length) != []
        assert (tmp_path / "logs/agents.txt").read_text() == "mine\n"
        assert (tmp_path / "logs/test-stdout.txt").read_text() == "61000\n"

    async def test_a_file_system_below_the_workspace_is_looked_through(self, start: Start) -> None:
        own = await start(workdir="/dev")
        await sh(own, "mkdir /dev/shm/pkg; echo >/dev/shm/pkg/conftest.py; ln -s /tests/answer /dev/shm/answer")
        survey = await take_survey(own, home="/root", path="/usr/bin:/bin")
        assert "/dev/shm/pkg/conftest.py" in survey.found
        assert survey.links["/dev/shm/answer"] == "/tests/answer"

    async def test_a_planted_log_directory_is_made_anew(self, own: Sandbox) -> None:
        await own.mark_baseline()
        baseline = await take_baseline(own)
        await sh(own, "rm -rf /logs; mkdir -p /tmp/l/verifier; ln -s /tmp/l /logs; echo 1 >/logs/verifier/reward.txt")
        _, found = await hardened(own, baseline)
        assert ("fresh_logs", "removed", "/logs/verifier/reward.txt") in found
        assert await sh(own, "stat -c '%F %u %a' /logs /logs/verifier; ls /logs/verifier") == "directory 0 755\n" * 2


@pytest.mark.docker
class TestHardeningInDocker(HardeningInBrief, InDocker):
    pass


@pytest.mark.docker
@pytest.mark.long
class TestMoreOfHardeningInDocker(Hardening, InDocker):
    pass


@pytest.mark.local
class TestHardening(Hardening, InLocal):
    pass
