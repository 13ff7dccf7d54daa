"""Building for the local sandbox: what is carried out, what is found again, and what is left when it goes wrong.

The order of things is tested in a workshop of plain directories, where commands are real but see the host; what comes
out of real Dockerfiles is tested in sandboxes, also against what Docker makes of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import docker
import pytest
from support.paths import BENCHMARKS

from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import ExecChunk, SandboxExecResult, SandboxSpec
from benchflow.errors import ImageBuildError, SandboxLostError, UnsupportedFeatureError
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.local.build.builder import Builder
from benchflow.planes.sandbox.local.build.recipe import LayerConfig
from benchflow.planes.sandbox.local.local_driver import LocalDriver
from benchflow.planes.sandbox.local.machine import Machine
from benchflow.testing.waiting import until

QUICKSTART = BENCHMARKS / "quickstart" / "tasks"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to root")


class PlainSandbox:
    """A directory whose commands are processes of the host, in a group of their own each."""

    def __init__(self, workshop: PlainWorkshop, name: str) -> None:
        self.root = workshop.rooms / name
        self.groups: list[int] = []
        self._workshop = workshop

    async def exec_stream(
        self, cmd: Sequence[str], *, env: dict[str, str], cwd: str, user: str | None
    ) -> AsyncIterator[ExecChunk]:
        self._workshop.users.append(user)
        process = await asyncio.create_subprocess_exec(
            *cmd,
            cwd=self.root / cwd.lstrip("/"),
            env={"PATH": os.environ["PATH"], "ROOT": str(self.root)} | env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self.groups.append(process.pid)
        assert process.stdout is not None
        try:
            while data := await process.stdout.read(1024):
                yield ExecChunk(stream="stdout", data=data)
            yield ExecChunk(stream="exit", return_code=await process.wait())
        finally:
            # Of a build that was given up; otherwise it is found open when its event loop is long gone.
            process._transport.close()  # type: ignore[attr-defined]

    async def control(self, script: str, *args: str, timeout: float) -> SandboxExecResult:
        inside = [f"{self.root}{arg}" if arg.startswith("/") else arg for arg in args]
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", script, "sh", *inside, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        said = out.decode().replace(str(self.root), "")
        return SandboxExecResult(return_code=process.returncode or 0, stdout=said, stderr=err.decode())

    async def upload(self, source: Path, target: str) -> None:
        shutil.copy(source, self.root / target.lstrip("/"))

    async def read_bytes(self, path: str) -> bytes:
        return (self.root / path.lstrip("/")).read_bytes()

    async def kill_processes(self, *, keep: str) -> int:
        assert keep == "nothing"
        for group in self.groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        return len(self.groups)

    async def stop(self) -> None:
        await self.kill_processes(keep="nothing")
        shutil.rmtree(self.root)


class PlainWorkshop:
    """Layers as directories. may_open: cleared, to hold a build at the opening of its sandbox."""

    def __init__(self, place: Path) -> None:
        self.layers, self.rooms = place / "layers", place / "rooms"
        self.layers.mkdir(parents=True)
        self.rooms.mkdir()
        self.host = "host"
        self.is_ready = ImageRef(reference="none")
        self.opened: list[str | None] = []
        self.hidden: list[tuple[str, ...]] = []
        self.users: list[str | None] = []
        self.may_open = asyncio.Event()
        self.may_open.set()

    def fingerprint(self) -> str:
        return self.host

    async def find(self, key: str) -> ImageRef | None:
        record = self.layers / f"{key}.json"
        if not record.exists():
            return None
        config = LayerConfig.model_validate_json(record.read_text())
        return ImageRef(reference=key, workdir=config.workdir, built=True, warnings=config.warnings)

    async def ready(self, config: ImageConfig, log: Path | None) -> ImageRef:
        return self.is_ready

    async def describe(self, reference: str) -> LayerConfig | None:
        record = self.layers / f"{reference}.json"
        return LayerConfig.model_validate_json(record.read_text()) if record.exists() else None

    async def open(self, base: str | None, name: str, hidden: tuple[str, ...]) -> PlainSandbox:
        self.opened.append(base)
        self.hidden.append(hidden)
        sandbox = PlainSandbox(self, name)
        if base is None:
            sandbox.root.mkdir()
        else:
            shutil.copytree(self.layers / base, sandbox.root, symlinks=True)
        await self.may_open.wait()
        return sandbox

    async def keep(self, sandbox: PlainSandbox, key: str, config: LayerConfig) -> ImageRef:
        shutil.copytree(sandbox.root, self.layers / key, symlinks=True)
        (self.layers / f"{key}.json").write_text(config.model_dump_json())
        image = await self.find(key)
        assert image is not None
        return image

    @property
    def kept(self) -> int:
        return len(list(self.layers.glob("*.json")))

    def config(self, image: ImageRef) -> LayerConfig:
        return LayerConfig.model_validate_json((self.layers / f"{image.reference}.json").read_text())


@pytest.fixture
async def workshop(state: Path, tmp_path: Path) -> PlainWorkshop:
    return PlainWorkshop(tmp_path / "workshop")


@pytest.fixture
def builder(workshop: PlainWorkshop) -> Builder:
    return Builder(workshop)


class Task:
    """A build context whose Dockerfile the test writes."""

    def __init__(self, place: Path) -> None:
        self.root = place / "environment"
        self.root.mkdir(parents=True)

    def __call__(self, *lines: str, **fields: Any) -> ImageConfig:
        (self.root / "Dockerfile").write_text("\n".join(["FROM base", *lines]) + "\n")
        return ImageConfig(context=str(self.root), **fields)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(tmp_path / "one")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


def said(notes: Path) -> list[str]:
    return notes.read_text().split() if notes.exists() else []


def files_of(workshop: PlainWorkshop, image: ImageRef) -> set[str]:
    root = workshop.layers / image.reference
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


# --- what is carried out -----------------------------------------------------------------------------


@needs_root
async def test_files_are_added_to_a_ready_image_and_the_host_does_not_count(builder, workshop, task):
    ready = await builder.build(task("RUN echo ready >made"))
    workshop.is_ready = ready
    assert await builder.build(ImageConfig(image="debian")) == ready
    (task.root / "data").write_text("data")
    config = ImageConfig(image="debian", context=str(task.root), exclude=("Dockerfile",), digest="0" * 32)
    first = await builder.build(config)
    assert files_of(workshop, first) == {"made", "data"}
    workshop.host = "another host"
    assert await builder.build(config) == first
    elsewhere = await builder.build(config.model_copy(update={"files_target": "/other"}))
    assert files_of(workshop, elsewhere) == {"made", "other", "other/data"}


@needs_root
async def test_a_dockerfile_becomes_an_image(builder, workshop, task, tmp_path):
    (task.root / "data").write_text("data")
    log = tmp_path / "deep" / "build.log"
    config = task(
        "ENV GREETING=hello", "WORKDIR /app", "COPY data .", "USER app", 'RUN echo "$GREETING" >made', "EXPOSE 80"
    )
    image = await builder.build(config.model_copy(update={"hidden": ("/secret",)}), log=log)
    root = workshop.layers / image.reference
    assert ((root / "app/made").read_text(), (root / "app/data").read_text()) == ("hello\n", "data")
    assert image.workdir == "/app" and "stands for base" in image.warnings[0]
    kept = workshop.config(image)
    assert (kept.env, kept.user, kept.ports) == ({"GREETING": "hello"}, "app", ("80/tcp",))
    assert (workshop.opened, workshop.hidden, workshop.users) == ([None], [("/secret",)], ["app"])
    assert list(workshop.rooms.iterdir()) == []
    assert [line for line in log.read_text().splitlines() if line.startswith("Step")][4] == ("Step 5/7 : USER app")


async def test_output_is_in_the_log_as_it_comes(builder, task, notes, tmp_path):
    log = tmp_path / "log"
    config = task(f"RUN echo early; while [ ! -e {notes} ]; do sleep 0.01; done; printf 'h\\303\\251'")
    building = asyncio.create_task(builder.build(config, log=log))
    await until(lambda: log.exists() and "\nearly\n" in log.read_text())
    notes.touch()
    await building
    assert "hé" in log.read_text()


async def test_what_a_command_leaves_running_is_killed_before_the_layer_is_kept(builder, task, notes):
    await builder.build(task(f"RUN sh -c 'trap \"\" TERM; sleep 300' >/dev/null 2>&1 & echo $! >{notes}"))
    await until(lambda: gone(int(notes.read_text())))


async def test_the_engines_proxies_reach_commands_and_no_layer_depends_on_them(builder, task, notes, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:3128")
    await builder.build(task(f'RUN echo "$HTTP_PROXY$https_proxy" >>{notes}'))
    monkeypatch.delenv("HTTP_PROXY")
    await builder.build(task(f'RUN echo "$HTTP_PROXY$https_proxy" >>{notes}', "LABEL a=1"))
    assert said(notes) == ["http://proxy.example:3128"]


async def test_what_is_refused_is_refused_before_anything_runs(builder, workshop, task, notes):
    with pytest.raises(UnsupportedFeatureError, match="line 3"):
        await builder.build(task(f"RUN echo >>{notes}", "CMD x"))
    assert workshop.opened == [] and not notes.exists()


# --- what is found again -----------------------------------------------------------------------------


async def test_an_unchanged_dockerfile_starts_no_sandbox_and_says_nothing(builder, workshop, task, tmp_path):
    log = tmp_path / "log"
    first = await builder.build(task("RUN true", "LABEL a=1"), log=log)
    before = log.read_text()
    assert await builder.build(task("RUN true", "LABEL a=1"), log=log) == first
    assert (len(workshop.opened), log.read_text()) == (1, before)


async def test_only_what_follows_a_change_is_carried_out(builder, workshop, task, notes, tmp_path):
    steps = [f"RUN echo {n} >>{notes}" for n in range(3)]
    await builder.build(task(*steps))
    log = tmp_path / "log"
    await builder.build(task(*steps[:2], f"RUN echo other >>{notes}"), log=log)
    assert said(notes) == ["0", "1", "2", "other"]
    assert len(workshop.opened) == 2 and workshop.opened[1] is not None
    assert log.read_text().count(" ---> Using cache") == 2


async def test_descriptions_make_no_layer_but_are_in_the_image(builder, workshop, task, notes):
    await builder.build(task(f"RUN echo >>{notes}"))
    before = workshop.kept
    image = await builder.build(task(f"RUN echo >>{notes}", "ENV A=1", "LABEL b=2", "USER c", "EXPOSE 1"))
    assert workshop.kept == before + 1 and workshop.config(image).labels == {"b": "2"}


@pytest.mark.parametrize(
    "line",
    ["ENV A=1", "ARG A=1", "USER somebody", 'SHELL ["/bin/sh", "-ec"]', pytest.param("WORKDIR /w", marks=needs_root)],
)
async def test_a_command_runs_again_when_what_it_runs_in_has_changed(builder, task, notes, line):
    await builder.build(task(f"RUN echo x >>{notes}"))
    await builder.build(task(line, f"RUN echo x >>{notes}"))
    assert said(notes) == ["x", "x"]


async def test_a_description_that_no_command_sees_runs_nothing_again(builder, task, notes):
    await builder.build(task(f"RUN echo x >>{notes}"))
    await builder.build(task("LABEL a=1", "EXPOSE 80", "MAINTAINER me", f"RUN echo x >>{notes}", "ENV A=1"))
    assert said(notes) == ["x"]


@needs_root
async def test_copied_content_decides_and_nothing_else_of_the_context(builder, task, notes):
    (task.root / "data").write_text("one")
    steps = ("COPY data /", f"RUN cat data >>{notes}; echo >>{notes}")
    await builder.build(task(*steps))
    (task.root / "unrelated").write_text("x")
    await builder.build(task(*steps))
    assert said(notes) == ["one"]
    (task.root / "data").write_text("two")
    await builder.build(task(*steps))
    assert said(notes) == ["one", "two"]


async def test_another_host_shares_nothing(builder, workshop, task, notes):
    await builder.build(task(f"RUN echo x >>{notes}"))
    workshop.host = "changed"
    await builder.build(task(f"RUN echo x >>{notes}"))
    assert said(notes) == ["x", "x"]


async def test_a_given_digest_decides(builder, workshop, task):
    image = await builder.build(task("RUN true", digest="sha256:" + "a" * 64))
    assert await builder.build(task("RUN false", digest="a" * 64)) == image


async def test_the_newest_layer_is_enough(builder, workshop, task, notes):
    steps = [f"RUN echo {n} >>{notes}" for n in range(3)]
    await builder.build(task(*steps))
    kept = sorted(workshop.layers.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    for record in kept[:2]:
        record.unlink()
    await builder.build(task(*steps, "LABEL a=1"))
    assert said(notes) == ["0", "1", "2"]


# --- built anew because somebody asks for it ---------------------------------------------------------


async def test_a_rebuild_carries_all_steps_out_again_and_once(builder, workshop, task, notes):
    steps = [f"RUN echo {n} >>{notes}" for n in range(2)]
    before = await builder.build(task(*steps))
    one, two = task(*steps, rebuild="job-1"), task(*steps, rebuild="job-2")
    of_one = await asyncio.gather(builder.build(one), builder.build(one))
    assert said(notes) == ["0", "1"] * 2
    of_two = await builder.build(two)
    assert len({image.reference for image in (before, *of_one, of_two)}) == 3
    assert await builder.build(one) == of_one[0] == of_one[1]
    assert said(notes) == ["0", "1"] * 3
    assert await builder.build(task(*steps)) == of_two


async def test_later_builds_begin_with_the_steps_of_a_rebuild(builder, workshop, task, notes):
    step = f"RUN echo x >>{notes}"
    await builder.build(task(step))
    before = {file.stem for file in workshop.layers.glob("*.json")}
    await builder.build(task(step, rebuild="job-1"))
    await builder.build(task(step, "RUN true"))
    assert said(notes) == ["x", "x"]
    assert workshop.opened[-1] in {file.stem for file in workshop.layers.glob("*.json")} - before


async def test_a_rebuild_that_was_cut_off_goes_on_where_it_was(builder, task, notes, tmp_path):
    mended = tmp_path / "mended"
    steps = (f"RUN echo one >>{notes}", f"RUN test -e {mended} && echo two >>{notes}")
    with pytest.raises(ImageBuildError):
        await builder.build(task(*steps, rebuild="job-1"))
    mended.touch()
    await builder.build(task(*steps, rebuild="job-1"))
    assert said(notes) == ["one", "two"]


# --- at the same moment ------------------------------------------------------------------------------


def held_step(notes: Path) -> str:
    """A step that leaves a line, and then runs until it is let go."""
    return f"RUN echo x >>{notes}; while [ ! -e {notes}.go ]; do sleep 0.01; done"


async def let_go(builds, notes):
    """End the step once it runs, and return the images of all builds: none has ended before."""
    await until(lambda: said(notes))
    assert not any(build.done() for build in builds)
    Path(f"{notes}.go").touch()
    return await asyncio.gather(*builds)


async def test_callers_at_the_same_moment_share_one_build(workshop, task, notes):
    config = task(held_step(notes))
    builds = [asyncio.create_task(Builder(workshop).build(config)) for _ in range(4)]
    images = await let_go(builds, notes)
    assert len({image.reference for image in images}) == 1
    assert said(notes) == ["x"]


async def test_different_builds_share_the_first_step_while_it_runs(workshop, tmp_path, notes):
    tasks = [Task(tmp_path / f"task{n}") for n in range(3)]
    configs = [task(held_step(notes), f"RUN echo {n}") for n, task in enumerate(tasks)]
    images = await let_go([asyncio.create_task(Builder(workshop).build(config)) for config in configs], notes)
    assert len({image.reference for image in images}) == 3
    assert said(notes) == ["x"] and list(workshop.rooms.iterdir()) == []


async def test_who_waits_for_a_step_that_is_given_up_carries_it_out(workshop, tmp_path, notes):
    first, second = (
        task(held_step(notes), f"RUN echo {n}") for n, task in enumerate([Task(tmp_path / "a"), Task(tmp_path / "b")])
    )
    given_up = asyncio.create_task(Builder(workshop).build(first))
    await until(lambda: said(notes))
    waiting = asyncio.create_task(Builder(workshop).build(second))
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    await until(lambda: len(said(notes)) == 2)
    notes.with_name("notes.go").touch()
    await waiting
    assert len(said(notes)) == 2


# --- what goes wrong ---------------------------------------------------------------------------------


async def test_a_failing_step_shows_its_file_its_line_and_the_tail_of_the_log(builder, workshop, task, notes, tmp_path):
    log = tmp_path / "log"
    good = f"RUN echo good >>{notes}"
    with pytest.raises(ImageBuildError, match=r"^environment/Dockerfile: RUN: line 4: RUN .* exit status 3") as caught:
        await builder.build(task(good, "", "RUN seq 100; echo oh no >&2; exit 3"), log=log)
    assert "oh no" in caught.value.log_tail and "\n99\n" in caught.value.log_tail
    assert len(caught.value.log_tail.splitlines()) <= 30 and caught.value.remedy
    assert "\n5\n" in log.read_text()
    assert list(workshop.rooms.iterdir()) == []
    await builder.build(task(good))
    assert said(notes) == ["good"]


async def test_a_build_that_takes_too_long_is_stopped(builder, workshop, task, notes):
    # On a busy machine it may be stopped before it has begun.
    for limit in (0.2, 5.0, 60.0):
        with pytest.raises(ImageBuildError, match=f"longer than {limit:g} s") as caught:
            await builder.build(task(f"RUN echo $$ >{notes}; echo waiting; sleep 300", timeout_sec=limit))
        assert "build_timeout_sec" in caught.value.remedy
        assert list(workshop.rooms.iterdir()) == []
        if "waiting" in (lines := (caught.value.log_tail or "").splitlines()):
            break
    assert "line 2: " in caught.value.message and "waiting" in lines
    await until(lambda: gone(int(notes.read_text())))


async def test_a_cancelled_build_leaves_no_sandbox(builder, workshop, task, notes):
    building = asyncio.create_task(builder.build(task(f"RUN echo x >{notes}; sleep 300")))
    await until(lambda: said(notes))
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert list(workshop.rooms.iterdir()) == []


async def test_nor_does_one_that_is_cancelled_while_its_sandbox_starts(builder, workshop, task):
    workshop.may_open.clear()
    building = asyncio.create_task(builder.build(task("RUN true")))
    await until(lambda: list(workshop.rooms.iterdir()))
    building.cancel()
    await asyncio.sleep(0)
    workshop.may_open.set()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert list(workshop.rooms.iterdir()) == []


async def test_a_lost_sandbox_is_not_taken_for_a_mistake_of_the_dockerfile(builder, task, monkeypatch):
    async def lost(self: PlainSandbox, *, keep: str) -> int:
        raise SandboxLostError("gone")

    monkeypatch.setattr(PlainSandbox, "kill_processes", lost)
    monkeypatch.setattr(PlainSandbox, "stop", lambda self: asyncio.sleep(0))
    with pytest.raises(SandboxLostError):
        await builder.build(task("RUN true"))


@needs_root
async def test_an_owner_that_the_image_lacks_is_named(builder, task):
    (task.root / "data").touch()
    with pytest.raises(ImageBuildError, match=r"line 2: .*nobody_known is not in /etc/passwd") as caught:
        await builder.build(task("COPY --chown=nobody_known data /data"))
    assert caught.value.key == "COPY"


# --- real Dockerfiles in real sandboxes --------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of all tests below: what one has built the next one finds."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture
async def local(shared_state: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DrivenProvider]:
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(shared_state))
    provider = DrivenProvider(LocalDriver())
    yield provider
    for owned in await provider.owned("build-tests"):
        await provider.remove(owned.name)
    await provider.sweep("build-tests")
    await provider.close()


async def look(provider: Any, image: ImageRef, *cmd: str) -> str:
    """What a command says in a sandbox of an image."""
    spec = SandboxSpec(
        name=f"benchflow-build-{os.getpid()}",
        image=image,
        labels={"benchflow.stack": "build-tests"},
        network_mode="no-network",
    )
    sandbox = await provider.start(spec, host_id="host", queue="queue")
    try:
        result = await sandbox.exec(cmd, cwd="/")
    finally:
        await provider.remove(spec.name)
    assert result.return_code == 0, result.stderr
    return result.stdout


@pytest.mark.local
@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("cut-a-release", ["/app/"]),
        # Built in the same way, most of them with packages installed, which takes long.
        pytest.param("flatten-orders", ["/app/export", "/app/out/"], marks=pytest.mark.long),
        pytest.param("log-report", ["/app/access.log"], marks=pytest.mark.long),
        pytest.param("lost-commit", ["/app/repo/.git/"], marks=pytest.mark.long),
        pytest.param("pack-telemetry", ["/app/sample.csv", "/usr/bin/sqlite3"], marks=pytest.mark.long),
        pytest.param("redact-stream", ["/app/sample.txt"], marks=pytest.mark.long),
        pytest.param("revenue-sql", ["/app/shop.db"], marks=pytest.mark.long),
        pytest.param("ticket-desk", ["/srv/desk/seed.py", "/var/lib/desk/"], marks=pytest.mark.long),
        pytest.param("ttl-cache", ["/app/ttlcache.py", "/app/test_ttlcache.py"], marks=pytest.mark.long),
    ],
)
async def test_the_quickstart_images_are_built_and_found_again(local, tmp_path, name, made):
    log = tmp_path / "log"
    config = ImageConfig(context=str(QUICKSTART / name / "environment"), digest=f"test-{name}")
    image = await local.build(config, log=log)
    assert await local.build(config, log=tmp_path / "second") == image
    assert not (tmp_path / "second").exists()
    await look(local, image, "ls", "-d", *made)
    assert "Step 1/" in log.read_text() and "debian:bookworm-slim" in image.warnings[0]


SAME_AS_DOCKER = r"""
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG WHERE=/made
ENV A=1 B="x y" PATH=/opt/own:$PATH
RUN mkdir -m 1777 -p $WHERE/there/s && chown -R 5:5 $WHERE/there && ln -s there $WHERE/link \
 # a remark
 && echo old >$WHERE/old && ln -s old $WHERE/to_old

COPY d $WHERE/there
COPY d $WHERE/new
COPY file $WHERE/link
COPY file $WHERE/to_old
COPY --chown=5:60 file $WHERE/up/and/down
COPY --chown=games:games d link_to_file $WHERE/own/
COPY *.txt $WHERE/texts/
COPY ["sp ace", "/made/sp ace"]
ADD file link_to_dir ${WHERE}/added/
WORKDIR $WHERE/work
WORKDIR "in here"
RUN chmod 777 . && pwd >where
COPY file .
USER games
SHELL ["/bin/bash", "-c"]
ARG LATE='it is $A'
RUN id >id; [[ $A = 1 ]] && echo "$HOME:$A:$B:$WHERE:$LATE:$PATH" >env
RUN ["/bin/sh", "-c", "echo $A >exec; umask >>exec"]
USER 7:8
RUN id -u >id7; id -g >>id7; echo $HOME >>id7
"""

LISTING = (
    r"cd /made; find . -printf '%P %M %U:%G %l\n' | sort; "
    'find . -type f | sort | while read -r f; do echo "$f"; cat "$f"; done'
)


@pytest.mark.local
@pytest.mark.docker
@pytest.mark.long
async def test_a_dockerfile_makes_here_what_it_makes_in_docker(local, tmp_path, base_image):
    root = tmp_path / "environment"
    for name in ("file", "d/one", "d/s/two", "a.txt", "b.txt", "sp ace"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{name}\n")
    (root / "file").chmod(0o640)
    (root / "d").chmod(0o700)
    (root / "d" / "s").chmod(0o750)
    (root / "d" / "inner").symlink_to("one")
    (root / "link_to_file").symlink_to("file")
    (root / "link_to_dir").symlink_to("d")
    (root / "Dockerfile").write_text(SAME_AS_DOCKER.replace("debian:bookworm-slim", base_image))
    config = ImageConfig(context=str(root))
    daemon = DrivenProvider(DockerDriver())
    theirs = await daemon.build(config)
    try:
        expected = await look(daemon, theirs, "sh", "-c", LISTING)
    finally:
        await asyncio.to_thread(remove_image, theirs.reference)
        await daemon.close()
    assert "up/and/down -rw-r----- 5:60" in expected and "it is $A" in expected
    ours = await local.build(config)
    assert (await look(local, ours, "sh", "-c", LISTING)).splitlines() == expected.splitlines()
    assert ours.workdir == theirs.workdir


def remove_image(reference: str) -> None:
    client = docker.from_env()
    client.images.remove(reference, force=True)
    client.close()


@pytest.mark.local
@pytest.mark.parametrize(
    ("left", "step", "message"),
    [
        ("mkfifo /etc/passwd", "WORKDIR /made/by/this", "/etc/passwd of the image .*not a regular file"),
        ("truncate -s 1T /etc/group", "COPY data /made/", "/etc/group of the image is larger than"),
    ],
    ids=["a pipe", "holes"],
)
async def test_accounts_that_are_no_file_end_a_build_at_once(local, tmp_path, left, step, message):
    task = Task(tmp_path / "task")
    (task.root / "data").touch()
    with pytest.raises(ImageBuildError, match=message):
        await local.build(task(f"RUN rm -f {left.rpartition(' ')[2]} && {left}", step, timeout_sec=20))
    assert list(Machine().all()) == []


@pytest.mark.local
@pytest.mark.long
async def test_a_failed_build_leaves_no_sandbox_behind(local, tmp_path):
    task = Task(tmp_path / "task")
    with pytest.raises(ImageBuildError, match="exit status 7") as caught:
        await local.build(task("RUN echo said before; exit 7"))
    assert "said before" in caught.value.log_tail
    assert list(Machine().all()) == []
