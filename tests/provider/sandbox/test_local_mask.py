"""What sandboxes on this machine see of it: the mask as data, and the mask under a real overlay."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import benchflow
from benchflow.errors import ConfigError, SandboxUnavailableError
from benchflow.planes.sandbox.local.fingerprint import host_fingerprint
from benchflow.planes.sandbox.local.mask import plan
from benchflow.planes.sandbox.local.mask.mounts import Submounts
from benchflow.planes.sandbox.local.mask.plan import Mask, host_mask, run_mask

SECRET = "the answer is 42"

PUBLIC = {
    "usr/bin/tool": "program",
    "usr/lib/os-release": "ID=debian\n",
    "usr/share/ca-certificates/ca.crt": "ca",
    "usr/local/bin/tool": "program",
    "usr/local/share/ca-certificates/own.crt": "ca",
    "opt/app/bin/run": "program",
    "etc/ssl/certs/ca-certificates.crt": "ca",
    "etc/ssl/certs/public.key": "ca",
    "etc/apt/sources.list": "deb https://deb.example.org/debian bookworm main\n",
    "etc/apt/keyrings/vendor.key": "public",
    "etc/pip.conf": "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n",
    "etc/default/useradd": "# PASSWORD=x\nSHELL=/bin/sh\n",
    "etc/nsswitch.conf": "passwd: files\n",
    "var/lib/dpkg/status": "Package: tool\n",
    "var/lib/apt/extended_states": "x",
    "var/lib/ucf/hashfile": "x",
    "var/cache/apt/pkgcache.bin": "x",
}

SECRETS = (
    *("home/jane/.ssh/id_ed25519", "root/.aws/credentials", "srv/data", "mnt/disk/data", "media/stick/data"),
    *("boot/config", "run/docker.sock.d/x", "tmp/x", "var/tmp/x", "projects/task/solution/solve.sh", "snap/x"),
    *("var/log/syslog", "var/spool/mail/jane", "var/backups/shadow.bak", "var/mail/jane", "var/www/html/index.php"),
    *("var/lib/docker/volumes/x", "var/lib/postgresql/15/data", "var/lib/private/x", "var/cache/private/x"),
    *("var/cache/debconf/passwords.dat", "var/local/x", "var/opt/x"),
    *(
        "etc/ssh/ssh_host_ed25519_key",
        "etc/ssl/private/site.pem",
        "etc/letsencrypt/live/key.pem",
        "etc/docker/key.json",
    ),
    *("etc/kubernetes/admin.conf", "etc/cloud/cloud.cfg", "etc/sudoers", "etc/sudoers.d/jane", "etc/shadow-"),
    *("etc/NetworkManager/system-connections/home.nmconnection", "etc/wireguard/wg0.conf", "etc/krb5.keytab"),
    *("etc/fstab", "etc/crypttab", "etc/cron.d/backup", "etc/cron.daily/backup", "etc/systemd/system/app.service"),
    *("etc/app/credentials.json", "etc/app/tls.key", "etc/app/.env", "etc/apt/auth.conf.d/private.conf"),
    *("opt/app/.env", "usr/local/share/app/.ssh/id_rsa", "opt/jane/notes"),
)

WITH_PASSWORDS = {
    "etc/npmrc": "//registry.example.org/:_authToken=abc\n",
    "etc/apt/sources.list.d/private.list": "deb https://jane:pw@deb.example.org/ x main\n",
    "etc/profile.d/keys.sh": "export MODEL_API_KEY='sk-1'\n",
    "etc/default/app": "  DB_PASSWORD = hunter2\n",
}

PASSWD = """\
root:x:0:0:Jane Doe:/root:/usr/bin/fish
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
_apt:x:42:65534::/nonexistent:/usr/sbin/nologin
jane:x:1000:1000:Jane Doe:/opt/jane:/bin/bash
guest:x:1001:1001::/usr/bin:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
+nisuser::::::
"""
GROUP = "root:x:0:\nshadow:x:42:\nsudo:x:27:jane,daemon\njane:x:1000:\nnogroup:x:65534:\n"
OVERRIDES = "root jane 4750 /usr/bin/x\nroot shadow 2755 /usr/bin/chage\n#7 #8 0755 /usr/bin/y\n"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A small host with something of each kind that sandboxes must see, or must not."""
    root = tmp_path / "host"
    for name, text in (PUBLIC | WITH_PASSWORDS | dict.fromkeys(SECRETS, SECRET)).items():
        put(root / name, text)
    for name, text in {
        "passwd": PASSWD,
        "group": GROUP,
        "shadow": "root:$y$hash:1::::::\n",
        "hosts": "1.2.3.4 db\n",
    }.items():
        put(root / "etc" / name, text)
    for name, text in {
        "environment": f"KEY={SECRET}\n",
        "machine-id": "0123456789abcdef\n",
        "subuid": "jane:1:2\n",
    }.items():
        put(root / "etc" / name, text)
    put(root / "var/lib/dpkg/statoverride", OVERRIDES)
    for name in ("etc/app/closed.conf", "opt/app/closed.conf", "usr/local/etc/closed.conf"):
        put(root / name, SECRET).chmod(0o640)
    put(root / "etc/closed/inside", SECRET).parent.chmod(0o751)
    put(root / "opt/closed/inside", SECRET).parent.chmod(0o754)
    (root / "etc/apt").chmod(0o750 | 0o005)
    (root / "bin").symlink_to("usr/bin")
    (root / "data").symlink_to("srv")
    (root / "var/run").symlink_to("/run")
    (root / "var/lock").mkdir()
    return root


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Runs Python statements in a mount namespace of their own, with a tmpfs of its own at `store`."""

    def begin(body: str, **values: object) -> str:
        (tmp_path / "store").mkdir(exist_ok=True)
        head = """
            import json, os, subprocess, sys
            from pathlib import Path
            from benchflow.planes.sandbox.local.mask.plan import host_mask, run_mask
            def mount(*args): subprocess.run(["mount", *map(str, args)], check=True)
            def overlay(root, *masks):
                names = []
                for number, mask in enumerate(masks):
                    names.append(store / f"mask{number}")
                    names[-1].mkdir()
                    mask.write(names[-1])
                for name in ("u", "w", "merged"): (store / name).mkdir()
                lower = ":".join(map(str, [*names, root]))
                options = f"lowerdir={lower},upperdir={store}/u,workdir={store}/w"
                mount("-t", "overlay", "-o", options, "overlay", store / "merged")
                return store / "merged"
            mount("-t", "tmpfs", "tmpfs", store)
        """
        given = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        script = f"from pathlib import Path, PosixPath\nstore = {tmp_path / 'store'!r}\n{given}"
        script += textwrap.dedent(head) + textwrap.dedent(body)
        done = subprocess.run(
            ["unshare", "-m", sys.executable, "-c", script],
            env=os.environ | {"PYTHONPATH": str(Path(benchflow.__file__).parent.parent)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return begin


@pytest.fixture
def inside(run: Callable[..., str]) -> Callable[[str], str]:
    """Runs a shell script as root on this machine's own root under its mask."""

    def begin(script: str) -> str:
        return run(
            """
            root = overlay("/", host_mask(nameservers=["192.0.2.1"]))
            mount("-t", "proc", "proc", root / "proc")
            mount("--rbind", "/dev", root / "dev")
            clean = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
            done = subprocess.run(["chroot", root, "/bin/sh", "-euc", script], env=clean, stderr=2, cwd="/")
            sys.exit(done.returncode)
            """,
            script=script,
        )

    return begin


def put(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def kinds(mask: Mask | None) -> dict[str, str]:
    return {entry.path: entry.kind for entry in mask.entries} if mask else {}


def generated(mask: Mask, path: str) -> str:
    return next(entry.content.decode() for entry in mask.entries if entry.path == path)


# --- the host's mask as data ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", SECRETS)
def test_a_secret_of_the_host_is_covered(host: Path, path: str) -> None:
    assert host_mask(host).covers(path)


@pytest.mark.parametrize("path", PUBLIC)
def test_what_programs_need_is_not_covered(host: Path, path: str) -> None:
    assert not host_mask(host).covers(path)


@pytest.mark.parametrize("path", ["etc/app", "opt/app", "usr/local/etc"])
def test_a_file_that_others_may_not_read_is_hidden_wherever_it_lies(host: Path, path: str) -> None:
    assert kinds(host_mask(host))[f"{path}/closed.conf"] == "whiteout"


@pytest.mark.parametrize("path", ["etc/closed", "opt/closed"])
def test_a_directory_that_others_may_not_list_or_enter_is_hidden(host: Path, path: str) -> None:
    assert kinds(host_mask(host))[path] == "whiteout"


@pytest.mark.parametrize("path", list(WITH_PASSWORDS))
def test_configuration_is_hidden_when_it_has_a_password(host: Path, path: str) -> None:
    assert kinds(host_mask(host))[path] == "whiteout"


def test_an_unknown_name_at_the_top_is_hidden_and_links_between_known_ones_are_kept(host: Path) -> None:
    found = kinds(host_mask(host))
    assert found["projects"] == found["data"] == found["snap"] == "whiteout"
    assert "bin" not in found and "var/run" not in found
    assert found["var/lock"] == "opaque"


def test_names_that_hold_secrets_are_hidden_before_they_exist(host: Path) -> None:
    found = kinds(host_mask(host))
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
            subprocess.run(["rm", "-r", host / name], check=True)
        return found

    names_of = plan.names_of
    monkeypatch.setattr(plan, "names_of", list_and_remove)
    found = host_mask(host)
    assert not (host / name).exists()
    assert name not in kinds(found) and found.covers("etc/shadow-")


def test_merged_directories_keep_the_hosts_mode(host: Path) -> None:
    modes = {entry.path: entry.mode for entry in host_mask(host).entries}
    assert modes["etc/apt"] == 0o755
    assert (modes["tmp"], modes["var/tmp"], modes["root"]) == (0o1777, 0o1777, 0o700)


def test_a_persons_home_is_hidden_but_not_a_directory_of_programs_that_is_called_one(host: Path) -> None:
    found = kinds(host_mask(host))
    assert found["opt/jane"] == "whiteout"
    assert "usr/bin" not in found


def test_accounts_of_people_are_left_out_and_all_are_locked(host: Path) -> None:
    mask = host_mask(host)
    passwd = generated(mask, "etc/passwd").splitlines()
    assert [line.split(":")[0] for line in passwd] == ["root", "daemon", "_apt", "nobody"]
    assert passwd[0] == "root:x:0:0:root:/root:/bin/sh"
    assert generated(mask, "etc/group") == "root:x:0:\nshadow:x:42:\nsudo:x:27:daemon\nnogroup:x:65534:\n"
    assert {line.split(":")[1] for line in generated(mask, "etc/shadow").splitlines()} == {"*"}
    assert {line.split(":")[1] for line in generated(mask, "etc/gshadow").splitlines()} == {"*"}


def test_dpkg_is_not_given_overrides_for_accounts_that_are_left_out(host: Path) -> None:
    kept = generated(host_mask(host), "var/lib/dpkg/statoverride")
    assert kept == "root shadow 2755 /usr/bin/chage\n#7 #8 0755 /usr/bin/y\n"


def test_names_and_resolvers_are_the_sandboxs_own(host: Path) -> None:
    mask = host_mask(host, nameservers=["192.0.2.1", "192.0.2.2"])
    assert generated(mask, "etc/resolv.conf") == "nameserver 192.0.2.1\nnameserver 192.0.2.2\n"
    assert "1.2.3.4" not in generated(mask, "etc/hosts")
    assert generated(mask, "etc/environment") == generated(mask, "etc/subuid") == ""
    assert generated(mask, "etc/machine-id") != "0123456789abcdef\n"


def test_the_key_changes_with_what_the_mask_contains_and_only_with_that(host: Path) -> None:
    before = host_mask(host).key
    put(host / "usr/bin/other", "program")
    assert host_mask(host).key == before
    put(host / "etc/new.conf", SECRET).chmod(0o600)
    assert host_mask(host).key != before


def test_a_host_whose_etc_is_a_link_is_refused(host: Path) -> None:
    (host / "etc").rename(host / "usr/etc")
    (host / "etc").symlink_to("usr/etc")
    with pytest.raises(SandboxUnavailableError, match="symbolic link"):
        host_mask(host)


def test_a_secret_behind_a_link_is_hidden_with_the_link(host: Path) -> None:
    put(host / "opt/wiring/containerd/config.toml", SECRET)
    (host / "etc/containerd").symlink_to("/opt/wiring/containerd")
    found = kinds(host_mask(host))
    assert found["etc/containerd"] == found["opt/wiring/containerd"] == "whiteout"


# --- a run's own paths ---------------------------------------------------------------------------------


def test_paths_that_the_host_mask_covers_need_no_layer(host: Path) -> None:
    hidden = [Path("/home/jane/task"), Path("/projects/task"), Path("/tmp"), Path("/data/jobs"), Path("/etc/docker/x")]
    assert run_mask(hidden, host_mask(host), host) is None


def test_a_path_is_hidden_whether_it_exists_or_not(host: Path) -> None:
    mask = run_mask(
        [Path("/opt/app/bin/run"), Path("/opt/app/jobs"), Path("/opt/new/deep/jobs")], host_mask(host), host
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
    found = kinds(run_mask([Path("/opt/app/../app/link")], host_mask(host), host))
    assert found["opt/app/link"] == found["opt/real/task"] == "whiteout"
    assert "opt/way" not in found


def test_a_path_in_a_hidden_directory_adds_nothing(host: Path) -> None:
    found = kinds(run_mask([Path("/opt/app/jobs/one"), Path("/opt/app")], host_mask(host), host))
    assert found == {"": "directory", "opt": "directory", "opt/app": "whiteout"}


def test_a_path_below_a_file_hides_nothing(host: Path) -> None:
    assert run_mask([Path("/opt/app/bin/run/jobs")], host_mask(host), host) is None


@pytest.mark.parametrize(
    "path", ["/", "/usr", "/etc", "/var", "/bin", "/usr/bin", "/opt", "/var/lib", "/usr/local", "/etc/ssl"]
)
def test_hiding_what_every_sandbox_needs_is_refused(host: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="remedy"):
        run_mask([Path(path)], host_mask(host), host)


def test_a_link_to_what_every_sandbox_needs_is_refused(host: Path) -> None:
    (host / "opt/all").symlink_to("/usr")
    with pytest.raises(ConfigError):
        run_mask([Path("/opt/all")], host_mask(host), host)


def test_a_relative_path_is_refused(host: Path) -> None:
    with pytest.raises(ConfigError, match="not absolute"):
        run_mask([Path("jobs")], host_mask(host), host)


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


@pytest.mark.local
def test_a_usr_on_a_filesystem_of_its_own_is_refused(run: Callable[..., str], host: Path) -> None:
    out = run(
        """
        mount("-t", "tmpfs", "tmpfs", host / "usr")
        try: host_mask(host)
        except Exception as error: print(type(error).__name__, error)
        """,
        host=host,
    )
    assert "SandboxUnavailableError /usr is a filesystem of its own" in out


@pytest.mark.local
def test_what_lies_below_a_mount_point_and_at_its_source_is_not_seen(run: Callable[..., str], host: Path) -> None:
    put(host / "opt/app/disk/old", SECRET)
    put(host / "opt/tasks/answer", SECRET)
    out = run(
        """
        mount("-t", "tmpfs", "tmpfs", host / "opt/app/disk")
        mount("--bind", host / "opt/tasks", host / "home/jane")
        mask = host_mask(host)
        own = run_mask([Path("/home/jane/answer")], mask, host)
        root = overlay(host, own, mask)
        print(os.listdir(root / "opt/app/disk"), os.listdir(root / "opt/tasks"), os.listdir(root / "home"))
        """,
        host=host,
    )
    assert out == "[] [] []\n"


# --- under a real overlay ------------------------------------------------------------------------------


@pytest.mark.local
def test_no_secret_of_a_host_is_seen_through_the_overlay(run: Callable[..., str], host: Path) -> None:
    put(host / "opt/app/task/solution/solve.sh", SECRET)
    out = run(
        """
        mask = host_mask(host)
        root = overlay(host, run_mask([Path("/opt/app/task")], mask, host), mask)
        seen = {}
        for directory, _, files in os.walk(root):
            for file in files:
                path = Path(directory, file)
                seen[str(path.relative_to(root))] = path.read_text() if path.is_file() else ""
        print(json.dumps(seen))
        """,
        host=host,
    )
    seen = json.loads(out)
    assert not [path for path, text in seen.items() if SECRET in text]
    assert "Jane" not in "".join(seen.values())
    assert {path: seen[path] for path in PUBLIC} == PUBLIC


@pytest.mark.local
def test_a_masked_directory_stays_empty_when_it_is_made_again(inside: Callable[[str], str]) -> None:
    out = inside(
        "for name in home srv root tmp var/log; do rmdir /$name; mkdir /$name; ls -A /$name; done;"
        "for name in work data etc/docker var/lib/docker; do rm -rf /$name; mkdir /$name; ls -A /$name; done"
    )
    assert out == ""


@pytest.mark.local
def test_programs_of_this_machine_run_and_find_their_accounts(inside: Callable[[str], str]) -> None:
    out = inside("python3 -c 'import ssl, sqlite3; print(1 + 1)'; id; getent passwd root nobody; cat /etc/hostname")
    assert out.startswith("2\nuid=0(root) gid=0(root)")
    assert "root:x:0:0:root:/root:" in out and out.endswith("sandbox\n")


@pytest.mark.local
@pytest.mark.skipif(not Path("/usr/bin/dpkg-deb").exists(), reason="this host has other packages than Debian's")
def test_packages_accounts_and_certificates_can_be_added(inside: Callable[[str], str]) -> None:
    out = inside(
        """
        apt-get --version | head -1 | cut -d' ' -f1; dpkg -l dpkg | tail -1 | cut -c1-8; dpkg --audit
        mkdir -p /root/p/DEBIAN && cd /root
        cat > p/DEBIAN/control <<-END
\t\tPackage: p
\t\tVersion: 1
\t\tArchitecture: all
\t\tMaintainer: x <x@example.org>
\t\tDescription: p
\t\tEND
        printf '#!/bin/sh\\nset -e\\nuseradd --system pkg\\necho configured\\n' > p/DEBIAN/postinst
        chmod 755 p/DEBIAN/postinst
        dpkg-deb --build p /tmp/p.deb > /dev/null
        DEBIAN_FRONTEND=noninteractive apt-get install -y /tmp/p.deb | grep configured
        useradd -m jane && su jane -c 'id -un; ls -A /root 2>/dev/null || echo closed'
        update-ca-certificates --fresh > /dev/null && test -s /etc/ssl/certs/ca-certificates.crt && echo certified
        """
    )
    assert out.split() == ["apt", "ii", "dpkg", "configured", "jane", "closed", "certified"]


@pytest.mark.local
def test_root_inside_sees_none_of_this_machines_private_places(inside: Callable[[str], str]) -> None:
    allowed = {"bin", "sbin", "usr", "etc", "var", "opt", "proc", "sys", "dev", "tmp", "run", "root", "home"}
    allowed |= {"srv", "mnt", "media", "boot", "lib", "lib32", "lib64", "libx32"}
    # Another process of the same test run may just be making private places, to see that they are hidden.
    assert set(inside("ls -A / | grep -v -e usr-is-merged -e bfguard").split()) <= allowed
    empty = "/tmp /var/tmp /run /root /home /srv /mnt /media /boot /var/log /var/spool /var/backups /sys"
    assert inside(f"find {empty} -mindepth 1") == ""
    closed = "( -type f ! -perm -o=r -o -type d ! -perm -o=rx )"
    quoted = closed.replace("(", r"\(").replace(")", r"\)")
    look = f"find /etc /opt /usr/local -ignore_readdir_race -maxdepth 4 {quoted}"
    found = [path for path in inside(look).split() if "/usr/local/bfguard" not in path]
    assert set(found) <= {"/etc/shadow", "/etc/gshadow", "/etc/ssl/private", "/etc/pki/tls/private"}
    assert inside("find /etc -name 'ssh_host_*' -o -name '*.keytab' -o -name 'shadow-'") == ""
    assert inside("ls -d /var/lib/docker /var/lib/containerd /etc/docker /etc/sudoers 2>/dev/null || true") == ""


@pytest.mark.local
def test_the_hosts_accounts_and_identity_are_not_to_be_read(inside: Callable[[str], str]) -> None:
    seen = inside("cat /etc/machine-id /etc/shadow /etc/hosts /etc/resolv.conf")
    assert Path("/etc/machine-id").read_text().strip() not in seen
    assert "$" not in seen
    assert seen.endswith("nameserver 192.0.2.1\n")


@pytest.mark.local
def test_modes_and_owners_of_merged_directories_are_the_hosts(inside: Callable[[str], str]) -> None:
    places = ["/", "/etc", "/usr", "/usr/bin", "/etc/apt", "/var", "/var/lib", "/var/lib/dpkg", "/opt", "/usr/local"]
    existing = [place for place in places if Path(place).is_dir()]
    ask = ["stat", "-c", "%a %u %g %n", *existing]
    own = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.splitlines()
    # The root itself is the sandbox's own layer's.
    assert inside(shlex.join(ask)).splitlines()[1:] == own[1:]


# --- the fingerprint -----------------------------------------------------------------------------------


def test_the_fingerprint_is_stable_under_what_changes_daily(host: Path) -> None:
    before = host_fingerprint(host)
    for name in ("etc/new", "var/log/new", "tmp/new", "root/new", "opt/app/new.pid", "var/cache/apt/new"):
        put(host / name, "x")
    assert host_fingerprint(host) == before


@pytest.mark.parametrize("path", ["usr/bin/new", "usr/local/bin/new", "opt/new/x", "opt/app/bin/new"])
def test_the_fingerprint_changes_with_a_new_program(host: Path, path: str) -> None:
    before = host_fingerprint(host)
    put(host / path, "x")
    assert host_fingerprint(host) != before


@pytest.mark.parametrize("path", ["var/lib/dpkg/status", "usr/local/bin/tool", "usr/lib/os-release"])
def test_the_fingerprint_changes_when_a_package_or_program_is_replaced_in_place(host: Path, path: str) -> None:
    before = host_fingerprint(host)
    put(host / path, "another, longer content")
    assert host_fingerprint(host) != before


def test_the_fingerprint_of_this_machine_stays_the_same() -> None:
    assert len({host_fingerprint() for _ in range(10)}) == 1
