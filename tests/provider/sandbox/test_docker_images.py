"""Images: found, pulled, built once, and what is said when that fails."""

from __future__ import annotations

import asyncio
import sys
import tarfile
import uuid
from pathlib import Path

import pytest

from benchflow.contracts.sandbox import ImageConfig, ImageRef
from benchflow.errors import ImageBuildError, ImagePullError
from benchflow.planes.sandbox.context import read_context

pytestmark = pytest.mark.docker


@pytest.fixture
def context(tmp_path, base_image, daemon, provider, monkeypatch):
    """A build context whose Dockerfile the test writes; each is unlike any built before, and removed afterwards."""
    root = tmp_path / "environment"
    root.mkdir()
    (root / "nonce").write_text(uuid.uuid4().hex)
    build, made = provider.build, set()

    async def build_and_remember(config: ImageConfig, **options) -> ImageRef:
        image = await build(config, **options)
        made.add(image.reference)
        return image

    def write(*steps: str, name: str = "Dockerfile") -> ImageConfig:
        (root / name).write_text("\n".join([f"FROM {base_image}", "COPY nonce /nonce", *steps]) + "\n")
        return ImageConfig(context=str(root))

    monkeypatch.setattr(provider, "build", build_and_remember)
    write.root = root
    yield write
    for tag in made:
        daemon.images.remove(tag, force=True)


async def test_a_ready_image_is_itself_and_not_ours(provider, base_image):
    assert await provider.build(ImageConfig(image=base_image)) == ImageRef(reference=base_image, built=False)


async def test_an_image_that_cannot_be_had_is_a_pull_error_with_a_remedy(provider):
    with pytest.raises(ImagePullError, match="no-such/image") as caught:
        await provider.build(ImageConfig(image="localhost:1/no-such/image:1", timeout_sec=60))
    assert caught.value.remedy and caught.value.key == "docker_image"


async def test_an_equal_context_is_built_once_and_a_changed_one_again(provider, context, tmp_path):
    log = tmp_path / "log"
    first = await provider.build(context("RUN true"), log=log)
    said = log.read_text()
    assert await provider.build(context("RUN true"), log=log) == first
    assert log.read_text() == said
    (context.root / "nonce").chmod(0o755)
    assert await provider.build(context("RUN true"), log=log) != first


async def test_a_given_digest_decides(provider, context):
    config = context("RUN true").model_copy(update={"digest": "sha256:" + uuid.uuid4().hex * 2})
    image = await provider.build(config)
    assert image.reference == f"benchflow/task:{config.digest.removeprefix('sha256:')[:32]}"
    assert await provider.build(context("RUN false").model_copy(update={"digest": config.digest})) == image


async def test_callers_and_processes_at_the_same_moment_share_one_build(provider, context, tmp_path):
    config = context("RUN sleep 2")
    logs = [tmp_path / f"log{n}" for n in range(4)]
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from benchflow.contracts.sandbox import ImageConfig\n"
        "from benchflow.planes.sandbox.docker import DockerProvider\n"
        "config = ImageConfig.model_validate_json(sys.argv[1])\n"
        "asyncio.run(DockerProvider().build(config, log=Path(sys.argv[2])))\n"
    )
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", script, config.model_dump_json(), str(logs[3]))
    images = await asyncio.gather(*(provider.build(config, log=log) for log in logs[:3]))
    assert await other.wait() == 0
    assert len({image.reference for image in images}) == 1
    assert sum("Step" in log.read_text() for log in logs if log.exists()) == 1


async def test_a_failing_build_shows_its_file_and_the_tail_of_its_log(provider, context, tmp_path):
    config = context("RUN i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); done; echo oh no >&2; exit 3")
    with pytest.raises(ImageBuildError) as caught:
        await provider.build(config, log=tmp_path / "log")
    assert caught.value.file == "environment/Dockerfile"
    assert "oh no" in caught.value.log_tail and "line 99" in caught.value.log_tail
    assert "line 5\n" not in caught.value.log_tail
    assert len(caught.value.log_tail.splitlines()) <= 30
    assert "line 5\n" in (tmp_path / "log").read_text()


async def test_a_base_image_that_cannot_be_had_is_named(provider, context):
    config = context()
    (context.root / "Dockerfile").write_text("FROM localhost:1/no/base:7\n")
    with pytest.raises(ImagePullError, match="localhost:1/no/base:7") as caught:
        await provider.build(config)
    assert caught.value.remedy and caught.value.file == "environment/Dockerfile"


async def test_a_build_that_takes_too_long_is_stopped(provider, context, daemon):
    config = context("RUN echo waiting; sleep 4711").model_copy(update={"timeout_sec": 3.0})
    with pytest.raises(ImageBuildError, match="longer than 3 s") as caught:
        await provider.build(config)
    assert "build_timeout_sec" in caught.value.remedy
    while any("sleep 4711" in str(c.attrs["Config"]["Cmd"]) for c in daemon.containers.list(ignore_removed=True)):
        await asyncio.sleep(0.05)


async def test_a_cancelled_build_is_stopped_too(provider, context, daemon, tmp_path):
    log = tmp_path / "log"
    task = asyncio.create_task(provider.build(context("RUN sleep 4712"), log=log))
    while not any("sleep 4712" in str(c.attrs["Config"]["Cmd"]) for c in daemon.containers.list(ignore_removed=True)):
        await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while any("sleep 4712" in str(c.attrs["Config"]["Cmd"]) for c in daemon.containers.list(ignore_removed=True)):
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("step", "named"),
    [
        ("RUN --mount=type=cache,target=/c true", "RUN --mount"),
        ("RUN --network=none \\\n  --mount=type=tmpfs,target=/t true", "RUN --mount"),
        ("COPY --chmod=755 nonce /n", "COPY/ADD --chmod"),
        ("COPY --chown=0:0 --link nonce /n", "COPY/ADD --link"),
        ("RUN <<EOF\ntrue\nEOF", "a here-document"),
        ("COPY <<-'FILE' /n\nx\nFILE", "a here-document"),
    ],
)
def test_what_only_buildkit_can_do_is_recognised(context, step, named):
    assert named in read_context(context(step)).buildkit_features()


@pytest.mark.parametrize(
    "step",
    [
        "RUN cat <<< x",
        "# syntax=docker/dockerfile:1",
        "COPY --chown=0:0 nonce /n",
        "RUN echo --mount",
        "RUN echo $((1<<2))",
    ],
)
def test_what_every_builder_can_do_is_not_taken_for_it(context, step):
    assert read_context(context(step)).buildkit_features() == []


async def test_without_buildkit_its_features_are_refused_by_name(provider, context, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ImageBuildError, match="RUN --mount") as caught:
        await provider.build(context("RUN --mount=type=tmpfs,target=/t true"))
    assert "buildx" in caught.value.remedy


# Stands for a docker program with the buildx plugin: keeps what it was given, and makes the tag that was asked for.
PROGRAM = """#!{python}
import os, pathlib, sys
if sys.argv[1] == "buildx":
    sys.exit(0)
print("working on it")
here = pathlib.Path(__file__).parent
(here / "arguments").write_text("\\n".join(sys.argv[1:]))
(here / "stdin").write_bytes(sys.stdin.buffer.read())
if os.environ["DOCKER_BUILDKIT"] != "1" or (here / "fail").exists():
    sys.exit("step 3 went wrong")
import docker
docker.from_env().images.get({image!r}).tag(sys.argv[sys.argv.index("--tag") + 1])
"""


@pytest.fixture
def program(tmp_path, monkeypatch, base_image) -> Path:
    place = tmp_path / "bin"
    place.mkdir()
    (place / "docker").write_text(PROGRAM.format(python=sys.executable, image=base_image))
    (place / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(place), prepend=":")
    return place


async def test_with_buildkit_its_features_go_to_the_docker_program(provider, context, program, tmp_path):
    (context.root / "dropped").write_text("x")
    config = context("RUN --mount=type=tmpfs,target=/t true").model_copy(update={"exclude": ("dropped",)})
    image = await provider.build(config, log=tmp_path / "log")
    assert image.built and image.reference in (program / "arguments").read_text().splitlines()
    with tarfile.open(program / "stdin") as sent:
        assert sorted(sent.getnames()) == ["Dockerfile", "nonce"]
    assert (tmp_path / "log").read_text() == "working on it\n"


async def test_a_build_that_fails_there_shows_its_tail_too(provider, context, program):
    (program / "fail").touch()
    with pytest.raises(ImageBuildError) as caught:
        await provider.build(context("RUN --mount=type=tmpfs,target=/t true"))
    assert "step 3 went wrong" in caught.value.log_tail
