"""Images: found, pulled, built once, and what is said when that fails."""

from __future__ import annotations

import asyncio
import sys
import tarfile
import uuid
from pathlib import Path

import pytest

from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.errors import ImageBuildError, ImagePullError
from benchflow.testing.waiting import until

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
    write.root, write.base = root, base_image
    yield write
    for tag in made:
        daemon.images.remove(tag, force=True)


async def test_a_ready_image_is_itself_and_not_ours(provider, base_image):
    image = await provider.build(ImageConfig(image=base_image))
    assert image == ImageRef(reference=base_image, built=False, id=image.id)


async def test_an_image_that_cannot_be_had_is_a_pull_error_with_a_remedy(provider):
    with pytest.raises(ImagePullError, match="no-such/image") as caught:
        await provider.build(ImageConfig(image="localhost:1/no-such/image:1", timeout_sec=60))
    assert caught.value.remedy and caught.value.key == "docker_image"


async def test_a_base_image_that_cannot_be_had_is_named(provider, context):
    config = context()
    (context.root / "Dockerfile").write_text("FROM localhost:1/no/base:7\n")
    with pytest.raises(ImagePullError, match="localhost:1/no/base:7") as caught:
        await provider.build(config)
    assert caught.value.remedy and caught.value.file == "environment/Dockerfile"


async def test_a_cancelled_build_is_stopped_too(provider, context, daemon, tmp_path):
    log = tmp_path / "log"
    task = asyncio.create_task(provider.build(context("RUN sleep 4712"), log=log))

    def runs():
        return any("sleep 4712" in str(c.attrs["Config"]["Cmd"]) for c in daemon.containers.list(ignore_removed=True))

    await until(runs)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not runs())


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
    # The name is given once the image is known to be made from what it goes by.
    assert image.built and f"{image.reference}-unfinished" in (program / "arguments").read_text().splitlines()
    with tarfile.open(program / "stdin") as sent:
        assert sorted(sent.getnames()) == ["Dockerfile", "nonce"]
    assert (tmp_path / "log").read_text() == "working on it\n"


async def test_there_too_an_image_goes_by_the_images_that_it_takes_files_from(provider, context, program, daemon):
    name = f"benchflow-test/mounted-{uuid.uuid4().hex[:12]}"
    config = context(f"RUN --mount=type=bind,from={name},target=/t true")
    references = []
    for change in ("ENV A=1", "ENV A=2"):
        container = daemon.containers.create(context.base)
        container.commit(name, "latest", changes=change)
        container.remove()
        references.append((await provider.build(config)).reference)
        assert "--no-cache" not in (program / "arguments").read_text()
    assert references[0] != references[1]
    again = await provider.build(config.model_copy(update={"rebuild": "job"}))
    assert again.reference not in references and "--no-cache" in (program / "arguments").read_text().splitlines()
    daemon.images.remove(name, force=True)


async def test_a_build_that_fails_there_shows_its_tail_too(provider, context, program):
    (program / "fail").touch()
    with pytest.raises(ImageBuildError) as caught:
        await provider.build(context("RUN --mount=type=tmpfs,target=/t true"))
    assert "step 3 went wrong" in caught.value.log_tail
