"""What Docker alone shows of entrypoints: the first process itself, where secrets are not, and ports of the host."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

import docker
import pytest

from benchflow.contracts.images import ImageConfig
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.errors import ConfigError, SandboxLostError, SandboxStartError, UnsupportedFeatureError
from benchflow.testing.waiting import until

pytestmark = pytest.mark.docker

CANARY = "canary-8c1f"


def once_it_runs(command: str, look: str) -> str:
    """A look at the first process when it is this command: a moment before it is what starts it, or nothing."""
    runs = f"tr '\\0' ' ' </proc/1/cmdline | grep -qx '{command} '"
    # It looks in the end, whatever there is: what never runs is seen, and not waited for.
    return f"for n in $(seq 600); do {runs} && break; sleep 0.05; done; {look}"


@pytest.fixture(scope="module")
def built():
    """The images of all tests here, by their steps; removed in the end."""
    images = {}
    yield images
    client = docker.from_env()
    for image in images.values():
        client.images.remove(image.reference, force=True)
    client.close()


@pytest.fixture
def world(tmp_path, base_image, provider, built):
    """Builds an image whose entrypoint the test writes, or takes the one that another test has built of the same."""

    async def build(*steps: str):
        if steps not in built:
            root = tmp_path / uuid.uuid4().hex
            root.mkdir()
            nonce = f"ENV NONCE={root.name}"
            (root / "Dockerfile").write_text("\n".join([f"FROM {base_image}", nonce, *steps]) + "\n")
            built[steps] = await provider.build(ImageConfig(context=str(root), entrypoint=True))
        return built[steps]

    return build


@pytest.fixture
def begin(provider, start, stack):
    async def begin(image, secrets=None, **wanted):
        name = f"benchflow-test-{uuid.uuid4().hex[:12]}"
        fields = {"name": name, "image": image, "labels": {"benchflow.stack": stack}, "network_mode": "no-network"}
        spec = SandboxSpec(**(fields | {"entrypoint": "first"} | wanted))
        return await provider.start(spec, host_id="host", queue="queue", secrets=secrets)

    return begin


TOLD = pytest.mark.parametrize("secrets", [pytest.param(None, marks=pytest.mark.long), {"SECRET": CANARY}])
"""A container waits for its secrets before it becomes its entrypoint; one without any has it from the start."""


@pytest.mark.long
@TOLD
async def test_the_entrypoint_is_the_first_process_itself(world, begin, daemon, secrets):
    steps = ("RUN useradd -u 77 keeper", "USER keeper", "WORKDIR /srv", 'ENTRYPOINT ["sleep"]', 'CMD ["99"]')
    image = await world(*steps)
    sandbox = await begin(image, secrets)
    look = "tr '\\0' ' ' </proc/1/cmdline; grep -E 'Uid|NoNewPrivs|CapBnd|CapEff' /proc/1/status"
    said = await sandbox.control(once_it_runs("sleep 99", look))
    first, *rest = said.stdout.splitlines()
    shown = dict(line.split(":\t", 1) for line in [first.removeprefix("sleep 99 "), *rest])
    assert first.startswith("sleep 99 ") and shown["Uid"].split()[0] == "77" and shown["NoNewPrivs"] == "1"
    assert int(shown["CapEff"], 16) == 0
    plain = (await begin(image, entrypoint="below")).ref.handle
    mine, other = (daemon.containers.get(one).attrs for one in (sandbox.ref.handle, plain))
    for key in ("CapAdd", "CapDrop", "SecurityOpt", "PidsLimit", "Memory", "NetworkMode"):
        assert mine["HostConfig"][key] == other["HostConfig"][key], key
    # The engine's own first process has nothing to do before it ends.
    assert (mine["Config"]["StopSignal"], other["Config"]["StopSignal"]) == ("SIGTERM", "SIGKILL")
    assert mine["HostConfig"]["Init"] is False


async def test_secrets_are_in_the_entrypoints_environment_and_nowhere_else(world, begin, daemon, state: Path):
    image = await world("CMD exec sleep 1000")
    sandbox = await begin(image, {"SECRET": CANARY})
    look = "tr '\\0' '\\n' </proc/1/environ; grep -E 'NoNewPrivs' /proc/1/status"
    said = await sandbox.control(once_it_runs("sleep 1000", look))
    assert {f"SECRET={CANARY}", "NoNewPrivs:\t1"} <= set(said.stdout.splitlines())
    container = daemon.containers.get(sandbox.ref.handle)
    assert CANARY not in str(container.attrs) and CANARY not in str(container.image.attrs)
    assert CANARY not in container.logs().decode() and CANARY not in str(container.top())
    said = await sandbox.control(
        f"grep -rlE --devices=skip --exclude-dir=proc --exclude-dir=sys '[{CANARY[0]}]{CANARY[1:]}' /; "
        f"find / -xdev -name '*{CANARY}*'; "
        "for p in /proc/[0-9]*; do [ $p = /proc/1 ] || tr '\\0' '\\n' <$p/environ; done; cat /proc/*/cmdline"
    )
    assert said.return_code == 0 and CANARY not in said.stdout
    for form in ("first", "below"):
        await begin(image, {"SECRET": CANARY}, entrypoint=form)
    records = [file for file in state.rglob("*") if file.is_file()]
    assert records and not [file for file in records if CANARY.encode() in file.read_bytes()]


async def test_a_secret_whose_name_no_shell_can_have_is_refused_by_name(world, begin):
    with pytest.raises(ConfigError, match="'NOT-A-NAME'"):
        await begin(await world("CMD exec sleep 1000"), {"NOT-A-NAME": "x"})


async def test_a_container_that_ended_with_its_entrypoint_is_lost_but_for_its_last_words(world, begin, provider):
    sandbox = await begin(await world("CMD echo last words; while [ ! -e /stop ]; do sleep 0.05; done; exit 3"))
    with contextlib.suppress(SandboxLostError):
        await sandbox.write_file("/stop", "")

    async def ended():
        state = await provider.entrypoint_state(sandbox.ref.name)
        return None if state.running else state

    state = await until(ended)
    assert (state.exit_code, state.log) == (3, "last words\n")
    with pytest.raises(SandboxLostError):
        await sandbox.exec(["true"])
    with pytest.raises(SandboxLostError):
        await provider.attach(sandbox.ref)
    with pytest.raises(SandboxLostError):
        await provider.entrypoint_state("benchflow-test-that-never-was")


@TOLD
@pytest.mark.parametrize(
    ("command", "status"),
    [("CMD echo why >&2; exit 4", 4), pytest.param('CMD ["no-such-program"]', 127, marks=pytest.mark.long)],
)
async def test_an_entrypoint_that_ends_at_once_or_is_not_there_is_a_start_error(
    world, begin, provider, stack, secrets, command, status
):
    image = await world(command)

    async def refused():
        try:
            sandbox = await begin(image, secrets)
        except SandboxStartError as error:
            assert str(status) in error.message or "no-such-program" in error.message
            assert error.remedy and (status != 4 or (error.log_tail == "why" and "foreground" in error.remedy))
            return True
        # It ended just after its start was seen.

        async def ended():
            state = await provider.entrypoint_state(sandbox.ref.name)
            return None if state.running else state

        state = await until(ended)
        assert state.exit_code == status and state.log
        await provider.remove(sandbox.ref.name)
        return False

    # One that was told its secrets has begun by then, and may always end later.
    if not await refused() and secrets is None:
        await until(refused)
    assert await provider.owned(stack) == []


@TOLD
@pytest.mark.parametrize("form", ["first", pytest.param("below", marks=pytest.mark.long)])
async def test_an_image_without_a_shell_is_refused_with_the_remedy(world, begin, provider, stack, form, secrets):
    image = await world("RUN cp /bin/sleep /nap && rm /bin/sh", 'ENTRYPOINT ["/nap", "99"]')
    with pytest.raises(SandboxStartError) as caught:
        await begin(image, secrets, entrypoint=form)
    assert "/bin/sh" in caught.value.remedy
    assert await provider.owned(stack) == []


async def test_an_entrypoint_that_is_the_first_process_cannot_be_ended_alone(world, begin, provider):
    sandbox = await begin(await world("CMD exec sleep 1000"))
    with pytest.raises(UnsupportedFeatureError) as caught:
        await provider.end_entrypoint(sandbox.ref.name)
    assert caught.value.remedy


@pytest.mark.long
async def test_stages_and_copies_from_images_are_pointed_to_them_too(world, provider, start, daemon, tmp_path):
    base = await world("RUN echo base >/base")
    root = tmp_path / "upper"
    root.mkdir()
    (root / "Dockerfile").write_text(
        "FROM --platform=linux world AS one\nRUN cat /base >/one\nFROM one AS two\n"
        f"FROM {base.reference}\nCOPY --from=two /one /two\nCOPY --from=world:latest /base /three\nCOPY . /all\n"
    )
    image = await provider.build(ImageConfig(context=str(root), bases={"world": base.reference}))
    try:
        sandbox = await start(image=image)
        assert (await sandbox.exec(["cat", "/two", "/three"])).stdout == "base\nbase\n"
        assert await sandbox.read_bytes("/all/Dockerfile")
        await sandbox.stop()
    finally:
        daemon.images.remove(image.reference, force=True)


async def test_a_published_port_is_one_of_this_host_alone(start, daemon):
    sandbox = await start(network_mode="public", ports=(8123,))
    host, port = await sandbox.expose_port(8123)
    bound = daemon.containers.get(sandbox.ref.handle).attrs["NetworkSettings"]["Ports"]["8123/tcp"]
    assert (host, bound) == ("127.0.0.1", [{"HostIp": "127.0.0.1", "HostPort": str(port)}])
    assert (await sandbox.expose_port(8124))[1] == 8124
