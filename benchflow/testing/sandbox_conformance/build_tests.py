"""Images built from a Dockerfile, by providers that claim to build them."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from pathlib import Path

import pytest

from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import ConfigError, ImageBuildError, SandboxError, UnsupportedFeatureError
from benchflow.testing.sandbox_conformance import other_processes
from benchflow.testing.sandbox_conformance.lifecycle_tests import on_this_host
from benchflow.testing.sandbox_conformance.sandbox_fixtures import SandboxFixtures, Start, nap
from benchflow.testing.waiting import until


class BuildContext:
    """A build context with a nonce, so that no image of it exists. Its images are removed after the test."""

    def __init__(
        self,
        root: Path,
        base_image: str,
        provider: SandboxProvider,
        discard: list[ImageRef],
        *,
        entrypoint: bool = False,
    ) -> None:
        """Create the directory.

        Args:
            root: Path of the new directory.
            base_image: Image of the Dockerfile's FROM.
            provider: Builds the images.
            discard: Receives the images to remove.
            entrypoint: Whether sandboxes run the image's entrypoint.
        """
        self.root = root
        self._entrypoint = entrypoint
        self._from = f"FROM {base_image}"
        self._provider = provider
        self._discard = discard
        root.mkdir()
        (root / "nonce").write_text(uuid.uuid4().hex)

    def write(self, *steps: str) -> ImageConfig:
        """Write a Dockerfile (FROM the base image, the nonce, these steps) and return the configuration to build it."""
        lines = [self._from, "COPY nonce /nonce", *steps]
        (self.root / "Dockerfile").write_text("\n".join(lines) + "\n")
        return ImageConfig(context=str(self.root), timeout_sec=600, entrypoint=self._entrypoint)

    async def build(self, *steps: str, log: Path | None = None) -> ImageRef:
        """Write a Dockerfile of these steps and build it. log: receives the build's output."""
        return await self.build_config(self.write(*steps), log=log)

    async def build_config(self, config: ImageConfig, log: Path | None = None, *, to_keep: bool = False) -> ImageRef:
        """Build an image. to_keep: the caller removes it, instead of the end of the test."""
        image = await self._provider.build(config, log=log)
        if not to_keep:
            self._discard.append(image)
        return image


class BuildTests(SandboxFixtures):
    """Tests of `build` and `remove_image`."""

    @pytest.fixture
    def context(self, tmp_path: Path, provider: SandboxProvider, discard: list[ImageRef]) -> BuildContext:
        """Return a build context; skip the test if the provider builds no Dockerfile."""
        if not provider.capabilities().dockerfile:
            pytest.skip("this provider carries out no Dockerfile")
        return BuildContext(tmp_path / "environment", self.base_image, provider, discard)

    async def test_a_dockerfile_is_carried_out_step_by_step(
        self, context: BuildContext, start: Start, tmp_path: Path
    ) -> None:
        (context.root / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (context.root / "run.sh").chmod(0o755)
        (context.root / "tree" / "deep").mkdir(parents=True)
        (context.root / "tree" / "deep" / "file").write_text("x")
        (context.root / "tree" / "link").symlink_to("deep/file")
        log = tmp_path / "deep" / "build.log"
        image = await context.build(
            "ARG GREETING=hello",
            'ENV FIRST="one 1" SECOND=two',
            "COPY run.sh /usr/local/bin/run-me",
            "COPY tree /tree",
            "WORKDIR /place/deep",
            'RUN echo "$GREETING $FIRST" >made && useradd -m worker',
            "USER worker",
            "RUN id -un >/tmp/who",
            "ENV THIRD=image",
            log=log,
        )
        assert image.built and (image.workdir, image.user) == ("/place/deep", "worker")
        assert "useradd -m worker" in log.read_text()
        sandbox = await start(image=image, env={"THIRD": "sandbox"})
        assert sandbox.ref.workdir == "/place/deep"
        assert (await sandbox.exec(["cat", "made"])).stdout == "hello one 1\n"
        assert (await sandbox.exec(["run-me"])).stdout == "ran\n"
        assert await sandbox.read_bytes("/tree/link") == b"x"
        assert await sandbox.read_bytes("/tmp/who") == b"worker\n"
        # The engine's commands run as root whatever the image's USER is. Every command has the image's environment,
        # over which the sandbox's goes.
        said = await sandbox.exec(["sh", "-c", 'echo "$(id -un) $SECOND $GREETING $THIRD"'])
        assert said.stdout == "root two  sandbox\n"
        said = await sandbox.exec(["sh", "-c", 'echo "$FIRST"'], user="worker", env={"FIRST": "mine"})
        assert said.stdout == "mine\n"

    async def test_the_root_as_working_directory_counts_as_unset(self, context: BuildContext) -> None:
        assert (await context.build("WORKDIR /")).workdir is None

    async def test_root_as_user_counts_as_unset(self, context: BuildContext) -> None:
        built = [await context.build("USER 1234:0", *more) for more in ((), ("USER root",), ("USER 0:0",))]
        assert [image.user for image in built] == ["1234:0", None, None]

    async def test_an_equal_context_is_one_image_and_a_changed_one_another(self, context: BuildContext) -> None:
        first = await context.build("RUN true")
        assert await context.build("RUN true") == first
        (context.root / "nonce").write_text("changed")
        second = await context.build("RUN true")
        assert second.reference != first.reference
        assert (await context.build("RUN echo")).reference not in (first.reference, second.reference)

    async def test_a_given_digest_decides(self, context: BuildContext) -> None:
        config = context.write("RUN true").model_copy(update={"digest": uuid.uuid4().hex})
        image = await context.build_config(config)
        other = context.write("RUN false").model_copy(update={"digest": config.digest})
        assert await context.build_config(other) == image

    async def test_callers_and_processes_at_the_same_moment_share_one_build(
        self, context: BuildContext, start: Start
    ) -> None:
        config = context.write("RUN sleep 0.5; cat /proc/sys/kernel/random/uuid >/made")
        there = [other_processes.build(self.provider_path, config) for _ in range(2)]
        images = await asyncio.gather(*(context.build_config(config) for _ in range(2)))
        said = [await caller.answer() for caller in there]
        assert {image.reference for image in images} | {one["reference"] for one in said} == {images[0].reference}

    async def test_a_failing_build_shows_the_tail_of_its_log(self, context: BuildContext, tmp_path: Path) -> None:
        noise = "i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); done; echo oh no >&2; exit 3"
        with pytest.raises(ImageBuildError) as caught:
            await context.build(f"RUN {noise}", log=tmp_path / "log")
        assert caught.value.file == "environment/Dockerfile"
        assert caught.value.log_tail and "oh no" in caught.value.log_tail and "line 99" in caught.value.log_tail
        assert "line 5\n" not in caught.value.log_tail
        assert "line 5\n" in (tmp_path / "log").read_text()

    async def test_a_build_that_failed_may_be_mended(self, context: BuildContext, start: Start) -> None:
        with pytest.raises(ImageBuildError):
            await context.build("RUN echo one >/one", "RUN test -e /mended")
        image = await context.build("RUN echo one >/one", "RUN touch /mended", "RUN test -e /mended")
        assert await (await start(image=image)).read_bytes("/one") == b"one\n"

    async def test_a_dockerfile_that_is_none_is_a_build_error(self, context: BuildContext) -> None:
        with pytest.raises((ImageBuildError, UnsupportedFeatureError), match=r"(?i)unknown instruction"):
            await context.build("NO SUCH INSTRUCTION")

    async def test_a_file_that_is_not_in_the_context_is_named(self, context: BuildContext) -> None:
        with pytest.raises(ImageBuildError) as caught:
            await context.build("COPY no-such-file /x")
        assert "no-such-file" in f"{caught.value} {caught.value.log_tail}"

    async def test_a_build_that_takes_too_long_is_stopped(self, context: BuildContext) -> None:
        length = nap()
        config = context.write(f"RUN setsid sleep {length} & sleep {length}").model_copy(update={"timeout_sec": 2.0})
        with pytest.raises(ImageBuildError, match="longer than 2 s") as caught:
            await context.build_config(config)
        assert caught.value.remedy and "build_timeout_sec" in caught.value.remedy
        await until(lambda: not on_this_host([length]))

    async def test_ignored_and_excluded_files_and_a_dockerfile_from_elsewhere_are_not_sent(
        self, context: BuildContext, start: Start, tmp_path: Path
    ) -> None:
        (context.root / ".dockerignore").write_text("# comment\n*.log\n!keep.log\nsecret\n")
        for name in ("a.log", "keep.log", "secret", "plain"):
            (context.root / name).write_text(name)
        (context.root / "skills" / "deep").mkdir(parents=True)
        (context.root / "skills" / "deep" / "x").write_text("x")
        config = context.write("COPY . /all")
        outside = (context.root / "Dockerfile").rename(tmp_path / "Dockerfile.other")
        config = config.model_copy(update={"exclude": ("skills",), "dockerfile": str(outside)})
        sandbox = await start(image=await context.build_config(config))
        found = (await sandbox.exec(["find", "/all", "-type", "f", "-printf", "%f\\n"])).stdout.split()
        # .dockerignore itself may be sent or not.
        assert sorted(set(found) - {".dockerignore"}) == ["keep.log", "nonce", "plain"]

    async def test_no_step_sees_this_hosts_files(self, context: BuildContext, tmp_path: Path) -> None:
        (tmp_path / "hidden").mkdir()
        (tmp_path / "hidden" / "oracle").write_text("answer")
        config = context.write(f"RUN ! cat {tmp_path}/hidden/oracle && ! cat {context.root}/nonce")
        await context.build_config(config.model_copy(update={"hidden": (str(tmp_path / "hidden"),)}))

    async def test_a_removed_image_is_gone_and_removing_it_again_is_success(
        self, context: BuildContext, provider: SandboxProvider, start: Start
    ) -> None:
        image = await context.build("RUN touch /made")
        for _ in range(2):
            await provider.remove_image(image)
        again = await context.build("RUN touch /made")
        assert await (await start(image=again)).read_bytes("/made") == b""

    async def test_removing_an_image_in_use_is_refused_or_does_its_sandbox_no_harm(
        self, context: BuildContext, provider: SandboxProvider, start: Start
    ) -> None:
        image = await context.build("RUN echo x >/made")
        sandbox = await start(image=image)
        with contextlib.suppress(SandboxError):
            await provider.remove_image(image)
        assert (await sandbox.exec(["cat", "/made"])).stdout == "x\n"

    async def test_nothing_to_build_from_is_a_configuration_error(self, provider: SandboxProvider) -> None:
        with pytest.raises(ConfigError):
            await provider.build(ImageConfig())
