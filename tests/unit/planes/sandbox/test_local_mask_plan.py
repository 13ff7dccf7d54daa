"""What sandboxes on this machine see of it: the mask as data, and when what was made over a host holds no longer."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.small_host import PUBLIC, SECRET, SECRETS, WITH_PASSWORDS, put, small_host

from benchflow.errors import ConfigError, SandboxUnavailableError
from benchflow.planes.sandbox.local.fingerprint import compute_host_fingerprint
from benchflow.planes.sandbox.local.mask import mask_plan
from benchflow.planes.sandbox.local.mask.mask_plan import Mask, make_host_mask, make_run_mask
from benchflow.planes.sandbox.local.mask.submounts import Submounts


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return small_host(tmp_path / "host")


@pytest.fixture(scope="module")
def mask(tmp_path_factory: pytest.TempPathFactory) -> Mask:
    """The mask over such a host, for those that change nothing of it."""
    return make_host_mask(small_host(tmp_path_factory.mktemp("small") / "host"))


def kinds(mask: Mask | None) -> dict[str, str]:
    return {entry.path: entry.kind for entry in mask.entries} if mask else {}


def generated(mask: Mask, path: str) -> str:
    return next(entry.content.decode() for entry in mask.entries if entry.path == path)


# --- the host's mask as data ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", SECRETS)
def test_a_secret_of_the_host_is_covered(mask: Mask, path: str) -> None:
    assert mask.covers(path)


@pytest.mark.parametrize("path", PUBLIC)
def test_what_programs_need_is_not_covered(mask: Mask, path: str) -> None:
    assert not mask.covers(path)


@pytest.mark.parametrize("path", ["etc/app", "opt/app", "usr/local/etc"])
def test_a_file_that_others_may_not_read_is_hidden_wherever_it_lies(mask: Mask, path: str) -> None:
    assert kinds(mask)[f"{path}/closed.conf"] == "whiteout"


@pytest.mark.parametrize("path", ["etc/closed", "opt/closed"])
def test_a_directory_that_others_may_not_list_or_enter_is_hidden(mask: Mask, path: str) -> None:
    assert kinds(mask)[path] == "whiteout"


@pytest.mark.parametrize("path", list(WITH_PASSWORDS))
def test_configuration_is_hidden_when_it_has_a_password(mask: Mask, path: str) -> None:
    assert kinds(mask)[path] == "whiteout"


def test_an_unknown_name_at_the_top_is_hidden_and_links_between_known_ones_are_kept(host: Path) -> None:
    found = kinds(make_host_mask(host))
    assert found["projects"] == found["data"] == found["snap"] == "whiteout"
    assert "bin" not in found and "var/run" not in found
    assert found["var/lock"] == "opaque"


def test_names_that_hold_secrets_are_hidden_before_they_exist(host: Path) -> None:
    found = kinds(make_host_mask(host))
    assert found["etc/containerd"] == found["var/lib/containerd"] == "whiteout"


@pytest.mark.parametrize(
    "name", ["etc/app", "etc/apt/sources.list", "opt/app/bin/run", "usr/local/bin/tool", "var/lock"]
)
def test_a_name_that_goes_while_it_is_looked_at_does_no_harm(
    host: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def list_and_remove(directory: str) -> list[os.DirEntry[str]]:
        found = names_of(directory)
        if directory == str((host / name).parent):
            removed = host / name
            shutil.rmtree(removed) if removed.is_dir() else removed.unlink()
        return found

    names_of = mask_plan.list_names
    monkeypatch.setattr(mask_plan, "list_names", list_and_remove)
    found = make_host_mask(host)
    assert not (host / name).exists()
    assert name not in kinds(found) and found.covers("etc/shadow-")


def test_merged_directories_keep_the_hosts_mode(host: Path) -> None:
    modes = {entry.path: entry.mode for entry in make_host_mask(host).entries}
    assert modes["etc/apt"] == 0o755
    assert (modes["tmp"], modes["var/tmp"], modes["root"]) == (0o1777, 0o1777, 0o700)


def test_a_persons_home_is_hidden_but_not_a_directory_of_programs_that_is_called_one(host: Path) -> None:
    found = kinds(make_host_mask(host))
    assert found["opt/jane"] == "whiteout"
    assert "usr/bin" not in found


def test_accounts_of_people_are_left_out_and_all_are_locked(host: Path) -> None:
    mask = make_host_mask(host)
    passwd = generated(mask, "etc/passwd").splitlines()
    assert [line.split(":")[0] for line in passwd] == ["root", "daemon", "_apt", "nobody"]
    assert passwd[0] == "root:x:0:0:root:/root:/bin/sh"
    assert generated(mask, "etc/group") == "root:x:0:\nshadow:x:42:\nsudo:x:27:daemon\nnogroup:x:65534:\n"
    assert {line.split(":")[1] for line in generated(mask, "etc/shadow").splitlines()} == {"*"}
    assert {line.split(":")[1] for line in generated(mask, "etc/gshadow").splitlines()} == {"*"}


def test_dpkg_is_not_given_overrides_for_accounts_that_are_left_out(host: Path) -> None:
    kept = generated(make_host_mask(host), "var/lib/dpkg/statoverride")
    assert kept == "root shadow 2755 /usr/bin/chage\n#7 #8 0755 /usr/bin/y\n"


def test_names_and_resolvers_are_the_sandboxs_own(host: Path) -> None:
    mask = make_host_mask(host, nameservers=["192.0.2.1", "192.0.2.2"])
    assert generated(mask, "etc/resolv.conf") == "nameserver 192.0.2.1\nnameserver 192.0.2.2\n"
    assert "1.2.3.4" not in generated(mask, "etc/hosts")
    assert generated(mask, "etc/environment") == generated(mask, "etc/subuid") == ""
    assert generated(mask, "etc/machine-id") != "0123456789abcdef\n"


def test_the_key_changes_with_what_the_mask_contains_and_only_with_that(host: Path) -> None:
    before = make_host_mask(host).key
    put(host / "usr/bin/other", "program")
    assert make_host_mask(host).key == before
    put(host / "etc/new.conf", SECRET).chmod(0o600)
    assert make_host_mask(host).key != before


def test_a_host_whose_etc_is_a_link_is_refused(host: Path) -> None:
    (host / "etc").rename(host / "usr/etc")
    (host / "etc").symlink_to("usr/etc")
    with pytest.raises(SandboxUnavailableError, match="symbolic link"):
        make_host_mask(host)


def test_a_secret_behind_a_link_is_hidden_with_the_link(host: Path) -> None:
    put(host / "opt/wiring/containerd/config.toml", SECRET)
    (host / "etc/containerd").symlink_to("/opt/wiring/containerd")
    found = kinds(make_host_mask(host))
    assert found["etc/containerd"] == found["opt/wiring/containerd"] == "whiteout"


# --- a run's own paths ---------------------------------------------------------------------------------


def test_paths_that_the_host_mask_covers_need_no_layer(host: Path) -> None:
    hidden = [Path("/home/jane/task"), Path("/projects/task"), Path("/tmp"), Path("/data/jobs"), Path("/etc/docker/x")]
    assert make_run_mask(hidden, make_host_mask(host), host) is None


def test_a_path_is_hidden_whether_it_exists_or_not(host: Path) -> None:
    mask = make_run_mask(
        [Path("/opt/app/bin/run"), Path("/opt/app/jobs"), Path("/opt/new/deep/jobs")], make_host_mask(host), host
    )
    assert {path for path, kind in kinds(mask).items() if kind == "whiteout"} == {
        "opt/app/bin/run",
        "opt/app/jobs",
        "opt/new",
    }


def test_a_link_is_hidden_with_what_it_stands_for(host: Path) -> None:
    put(host / "opt/real/task", SECRET)
    (host / "opt/way").symlink_to("/opt/real")
    (host / "opt/app/link").symlink_to("../way/task")
    found = kinds(make_run_mask([Path("/opt/app/../app/link")], make_host_mask(host), host))
    assert found["opt/app/link"] == found["opt/real/task"] == "whiteout"
    assert "opt/way" not in found


def test_a_path_in_a_hidden_directory_adds_nothing(host: Path) -> None:
    found = kinds(make_run_mask([Path("/opt/app/jobs/one"), Path("/opt/app")], make_host_mask(host), host))
    assert found == {"": "directory", "opt": "directory", "opt/app": "whiteout"}


def test_a_path_below_a_file_hides_nothing(host: Path) -> None:
    assert make_run_mask([Path("/opt/app/bin/run/jobs")], make_host_mask(host), host) is None


@pytest.mark.parametrize(
    "path", ["/", "/usr", "/etc", "/var", "/bin", "/usr/bin", "/opt", "/var/lib", "/usr/local", "/etc/ssl"]
)
def test_hiding_what_every_sandbox_needs_is_refused(host: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="remedy"):
        make_run_mask([Path(path)], make_host_mask(host), host)


def test_a_link_to_what_every_sandbox_needs_is_refused(host: Path) -> None:
    (host / "opt/all").symlink_to("/usr")
    with pytest.raises(ConfigError):
        make_run_mask([Path("/opt/all")], make_host_mask(host), host)


def test_a_relative_path_is_refused(host: Path) -> None:
    with pytest.raises(ConfigError, match="not absolute"):
        make_run_mask([Path("jobs")], make_host_mask(host), host)


# --- mounts --------------------------------------------------------------------------------------------

TABLE = """\
20 1 254:1 / / rw - ext4 /dev/vda1 rw
21 20 254:1 /usr /usr ro - ext4 /dev/vda1 rw
22 20 0:30 / /opt/disk rw - tmpfs tmpfs rw
23 20 254:1 /opt/real\\040tasks /home/jane/tasks rw - ext4 /dev/vda1 rw
"""


def test_mounts_that_show_something_else_than_the_root_filesystem_has_are_told(tmp_path: Path) -> None:
    mounts = Submounts(Path("/"), put(tmp_path / "table", TABLE))
    assert mounts.foreign() == ["opt/disk", "home/jane/tasks"]


def test_the_source_of_a_bind_mount_is_told(tmp_path: Path) -> None:
    mounts = Submounts(Path("/"), put(tmp_path / "table", TABLE))
    assert mounts.behind("home/jane/tasks/one") == "opt/real tasks/one"
    assert mounts.behind("opt/disk/x") is None
    assert mounts.behind("usr/bin") is None


# --- the fingerprint -----------------------------------------------------------------------------------


def test_the_fingerprint_is_stable_under_what_changes_daily(host: Path) -> None:
    before = compute_host_fingerprint(host)
    for name in ("etc/new", "var/log/new", "tmp/new", "root/new", "opt/app/new.pid", "var/cache/apt/new"):
        put(host / name, "x")
    assert compute_host_fingerprint(host) == before


@pytest.mark.parametrize("path", ["usr/bin/new", "usr/local/bin/new", "opt/new/x", "opt/app/bin/new"])
def test_the_fingerprint_changes_with_a_new_program(host: Path, path: str) -> None:
    before = compute_host_fingerprint(host)
    put(host / path, "x")
    assert compute_host_fingerprint(host) != before


@pytest.mark.parametrize("path", ["var/lib/dpkg/status", "usr/local/bin/tool", "usr/lib/os-release"])
def test_the_fingerprint_changes_when_a_package_or_program_is_replaced_in_place(host: Path, path: str) -> None:
    before = compute_host_fingerprint(host)
    put(host / path, "another, longer content")
    assert compute_host_fingerprint(host) != before


def test_the_fingerprint_of_this_machine_stays_the_same() -> None:
    assert len({compute_host_fingerprint() for _ in range(10)}) == 1
