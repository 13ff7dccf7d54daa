"""Images that were built from others: found again while these are what they were, built anew once they are others."""

from __future__ import annotations

import asyncio
import io
import tarfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.errors import ImagePullError, UnsupportedFeatureError
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.image_facts import read_image_fact
from benchflow.testing.waiting import until

pytestmark = pytest.mark.docker

Move = Callable[[str], str]


@pytest.fixture
def tag(daemon: docker.DockerClient) -> Iterator[str]:
    """A name for an image that the test moves."""
    name = f"benchflow-test/moved-{uuid.uuid4().hex[:12]}"
    yield f"{name}:1"
    for image in daemon.images.list(name):
        daemon.images.remove(image.id, force=True)


@pytest.fixture
def move(daemon: docker.DockerClient, tag: str, base_image: str) -> Move:
    """Point the tag at another image, in which /which has this text and which begins in /start."""

    def made(text: str) -> str:
        container = daemon.containers.create(base_image, ["sh", "-c", 'printf %s "$0" >/which', text])
        container.start()
        container.wait()
        name, _, version = tag.partition(":")
        image = container.commit(name, version, changes="WORKDIR /start")
        container.remove()
        return str(image.id)

    return made


@pytest.fixture
def context(tmp_path: Path) -> Path:
    root = tmp_path / "task" / "environment"
    root.mkdir(parents=True)
    (root / "nonce").write_text(uuid.uuid4().hex)
    return root


@pytest.fixture
def discard(daemon: docker.DockerClient) -> Iterator[list[ImageRef]]:
    found: list[ImageRef] = []
    yield found
    for reference in {image.reference for image in found}:
        daemon.images.remove(reference, force=True)


def archive_of(daemon: docker.DockerClient, image: ImageRef, path: str) -> tarfile.TarFile:
    container = daemon.containers.create(image.reference, ["true"])
    try:
        pieces, _ = container.get_archive(path)
        return tarfile.open(fileobj=io.BytesIO(b"".join(pieces)))
    finally:
        container.remove()


def read(daemon: docker.DockerClient, image: ImageRef, file: str) -> str:
    content = archive_of(daemon, image, file).extractfile(Path(file).name)
    assert content is not None
    return content.read().decode()


@pytest.mark.parametrize(
    "dockerfile",
    [
        "FROM {tag}\nCOPY nonce /nonce\n",
        "ARG NAME={tag}\nFROM ${{NAME}} AS one\nFROM one\nCOPY nonce /nonce\n",
        "FROM {base}\nCOPY nonce /nonce\nCOPY --from={tag} /which /which\n",
    ],
    ids=["from", "argument", "copy"],
)
async def test_an_image_is_built_anew_once_what_it_is_built_from_is_another(
    provider: DrivenProvider,
    context: Path,
    daemon: docker.DockerClient,
    tag: str,
    move: Move,
    base_image: str,
    discard: list[ImageRef],
    dockerfile: str,
) -> None:
    (context / "Dockerfile").write_text(dockerfile.format(tag=tag, base=base_image))
    config = ImageConfig(context=str(context), digest="a" * 32)
    move("one")
    first = await provider.build(config)
    discard.append(first)
    assert await provider.build(config) == first
    move("two")
    second = await provider.build(config)
    discard.append(second)
    assert read(daemon, second, "/which") == "two"
    assert second.reference != first.reference and second.id != first.id


async def test_an_image_that_moves_during_a_build_is_taken_as_it_is_then(
    provider: DrivenProvider,
    context: Path,
    daemon: docker.DockerClient,
    tag: str,
    move: Move,
    discard: list[ImageRef],
    tmp_path: Path,
) -> None:
    """Else the image that was built from the old one would be found by the identity of the new one, or the reverse."""
    (context / "Dockerfile").write_text(f"FROM {tag}\nCOPY nonce /nonce\nRUN sleep 3\n")
    config = ImageConfig(context=str(context))
    move("one")
    log = tmp_path / "log"
    building = asyncio.create_task(provider.build(config, log=log))
    await until(lambda: log.exists() and "sleep 3" in log.read_text())
    await asyncio.to_thread(move, "two")
    image = await building
    discard.append(image)
    assert read(daemon, image, "/which") == "two"
    assert not [name for name in daemon.images.get(image.id).tags if "unfinished" in name]


async def test_a_base_image_that_is_gone_and_cannot_be_pulled_is_no_old_image(
    provider: DrivenProvider, context: Path, daemon: docker.DockerClient, tag: str, move: Move, discard: list[ImageRef]
) -> None:
    (context / "Dockerfile").write_text(f"FROM {tag}\nCOPY nonce /nonce\n")
    move("one")
    discard.append(await provider.build(ImageConfig(context=str(context))))
    daemon.images.remove(tag, force=True)
    with pytest.raises(ImagePullError, match=tag) as caught:
        await provider.build(ImageConfig(context=str(context)))
    assert (caught.value.key, caught.value.file) == ("FROM", "environment/Dockerfile")


async def test_a_name_that_no_image_can_have_is_an_error_of_the_dockerfile(
    provider: DrivenProvider, context: Path
) -> None:
    (context / "Dockerfile").write_text("FROM Not:A:Name\n")
    with pytest.raises(ImagePullError, match="Not:A:Name") as caught:
        await provider.build(ImageConfig(context=str(context)))
    assert caught.value.file == "environment/Dockerfile"


async def test_a_ready_image_that_moved_is_known_by_its_id(provider: DrivenProvider, tag: str, move: Move) -> None:
    ids = [move("one"), move("two")]
    image = await provider.build(ImageConfig(image=tag))
    assert (image.reference, image.id) == (tag, ids[1])


async def test_what_an_image_was_asked_is_asked_again_once_its_name_is_another_images(
    provider: DrivenProvider, tag: str, move: Move, tmp_path: Path
) -> None:
    async def ask() -> str:
        image = await provider.build(ImageConfig(image=tag))
        labels = {"benchflow.stack": uuid.uuid4().hex}
        return await read_image_fact(
            provider,
            image,
            "cat /which",
            file=tmp_path / "which.json",
            read=lambda result: result.stdout,
            labels=labels,
        )

    move("one")
    assert await ask() == "one"
    move("two")
    assert await ask() == "two"


# --- built anew because somebody asks for it ---------------------------------------------------------------


async def test_a_rebuild_is_one_build_for_all_that_ask_for_it_and_for_those_that_come_later(
    provider: DrivenProvider, context: Path, base_image: str, daemon: docker.DockerClient, discard: list[ImageRef]
) -> None:
    (context / "Dockerfile").write_text(
        f"FROM {base_image}\nCOPY nonce /nonce\nRUN cat /proc/sys/kernel/random/uuid >/made\n"
    )
    config = ImageConfig(context=str(context))
    before = await provider.build(config)
    one, two = (config.model_copy(update={"rebuild": name}) for name in ("job-1", "job-2"))
    of_one = await asyncio.gather(provider.build(one), provider.build(one))
    of_two = await provider.build(two)
    discard += [before, *of_one, of_two]
    made = [read(daemon, image, "/made") for image in (before, of_one[0], of_two)]
    assert len(set(made)) == 3
    assert of_one[0] == of_one[1] == await provider.build(one)
    assert await provider.build(config) == await DrivenProvider(DockerDriver()).build(config) == of_two


# --- a ready image with files of the task -----------------------------------------------------------------


def files_of(daemon: docker.DockerClient, image: ImageRef, directory: str) -> list[tuple[str, int, int, int, str]]:
    """Name, mode, user, group and target of each file."""
    _, *members = sorted(archive_of(daemon, image, directory).getmembers(), key=lambda member: member.name)
    return [(one.name.partition("/")[2], one.mode & 0o777, one.uid, one.gid, one.linkname) for one in members]


@pytest.fixture
def filled(context: Path) -> Path:
    (context / "nonce").unlink()
    (context / "data").write_text(uuid.uuid4().hex)
    (context / "data").chmod(0o640)
    (context / ".dockerignore").write_text("data\n")
    (context.parent / ".dockerignore").write_text("environment\n")
    (context / "tools").mkdir()
    (context / "tools").chmod(0o755)
    (context / "tools" / "run.sh").write_text("x")
    (context / "tools" / "run.sh").chmod(0o755)
    (context / "link").symlink_to("tools/run.sh")
    (context / "skills").mkdir()
    (context / "skills" / "SKILL.md").write_text("x")
    return context


FILES = [
    (".dockerignore", 0o644, 0, 0, ""),
    ("data", 0o640, 0, 0, ""),
    ("link", 0o777, 0, 0, "tools/run.sh"),
    ("tools", 0o755, 0, 0, ""),
    ("tools/run.sh", 0o755, 0, 0, ""),
]


@pytest.mark.parametrize(
    ("target", "place"), [(None, "/start"), ("/a b/$x'y", "/a b/$x'y")], ids=["working directory", "told"]
)
async def test_all_files_of_a_directory_lie_in_the_place_that_is_meant(
    provider: DrivenProvider,
    filled: Path,
    daemon: docker.DockerClient,
    tag: str,
    move: Move,
    discard: list[ImageRef],
    target: str | None,
    place: str,
) -> None:
    move("one")
    config = ImageConfig(image=tag, context=str(filled), exclude=("skills",), files_target=target)
    image = await provider.build(config)
    discard.append(image)
    assert files_of(daemon, image, place) == FILES
    assert (image.workdir, read(daemon, image, "/which")) == ("/start", "one")


async def test_without_a_working_directory_files_go_to_the_place_for_that_case(
    provider: DrivenProvider, filled: Path, daemon: docker.DockerClient, base_image: str, discard: list[ImageRef]
) -> None:
    config = ImageConfig(image=base_image, context=str(filled), exclude=("skills",))
    root = await provider.build(config)
    app = await provider.build(config.model_copy(update={"files_fallback": "/app"}))
    discard += [root, app]
    assert files_of(daemon, app, "/app") == FILES
    assert read(daemon, root, "/data") == (filled / "data").read_text()


async def test_files_over_a_ready_image_that_moved_are_over_the_new_one(
    provider: DrivenProvider, filled: Path, daemon: docker.DockerClient, tag: str, move: Move, discard: list[ImageRef]
) -> None:
    config = ImageConfig(image=tag, context=str(filled), digest="b" * 32)
    move("one")
    first = await provider.build(config)
    move("two")
    second = await provider.build(config)
    discard += [first, second]
    assert [read(daemon, image, "/which") for image in (first, second)] == ["one", "two"]


async def test_an_image_whose_own_build_steps_would_run_first_is_refused(
    provider: DrivenProvider, filled: Path, daemon: docker.DockerClient, tag: str, base_image: str
) -> None:
    container = daemon.containers.create(base_image)
    name, _, version = tag.partition(":")
    container.commit(name, version, changes="ONBUILD RUN touch /surprise")
    container.remove()
    with pytest.raises(UnsupportedFeatureError, match="ONBUILD") as caught:
        await provider.build(ImageConfig(image=tag, context=str(filled)))
    assert caught.value.key == "docker_image"
