"""What sandboxes on this machine see of it: the mask under a real overlay."""

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
from support.small_host import PUBLIC, SECRET, put, small_host

import benchflow

pytestmark = pytest.mark.local


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return small_host(tmp_path / "host")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Runs Python statements in a mount namespace of their own, with a tmpfs of its own at `store`."""

    def begin(body: str, **values: object) -> str:
        (tmp_path / "store").mkdir(exist_ok=True)
        head = """
            import json, os, subprocess, sys
            from pathlib import Path
            from benchflow.planes.sandbox.local.mask.mask_plan import make_host_mask, make_run_mask
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
            root = overlay("/", make_host_mask(nameservers=["192.0.2.1"]))
            mount("-t", "proc", "proc", root / "proc")
            mount("--rbind", "/dev", root / "dev")
            clean = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
            done = subprocess.run(["chroot", root, "/bin/sh", "-euc", script], env=clean, stderr=2, cwd="/")
            sys.exit(done.returncode)
            """,
            script=script,
        )

    return begin


def test_a_usr_on_a_filesystem_of_its_own_is_refused(run: Callable[..., str], host: Path) -> None:
    out = run(
        """
        mount("-t", "tmpfs", "tmpfs", host / "usr")
        try: make_host_mask(host)
        except Exception as error: print(type(error).__name__, error)
        """,
        host=host,
    )
    assert "SandboxUnavailableError /usr is a filesystem of its own" in out


def test_what_lies_below_a_mount_point_and_at_its_source_is_not_seen(run: Callable[..., str], host: Path) -> None:
    put(host / "opt/app/disk/old", SECRET)
    put(host / "opt/tasks/answer", SECRET)
    out = run(
        """
        mount("-t", "tmpfs", "tmpfs", host / "opt/app/disk")
        mount("--bind", host / "opt/tasks", host / "home/jane")
        mask = make_host_mask(host)
        own = make_run_mask([Path("/home/jane/answer")], mask, host)
        root = overlay(host, own, mask)
        print(os.listdir(root / "opt/app/disk"), os.listdir(root / "opt/tasks"), os.listdir(root / "home"))
        """,
        host=host,
    )
    assert out == "[] [] []\n"


# --- under a real overlay ------------------------------------------------------------------------------


def test_no_secret_of_a_host_is_seen_through_the_overlay(run: Callable[..., str], host: Path) -> None:
    put(host / "opt/app/task/solution/solve.sh", SECRET)
    out = run(
        """
        mask = make_host_mask(host)
        root = overlay(host, make_run_mask([Path("/opt/app/task")], mask, host), mask)
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


def test_a_masked_directory_stays_empty_when_it_is_made_again(inside: Callable[[str], str]) -> None:
    out = inside(
        "for name in home srv root tmp var/log; do rmdir /$name; mkdir /$name; ls -A /$name; done;"
        "for name in work data etc/docker var/lib/docker; do rm -rf /$name; mkdir /$name; ls -A /$name; done"
    )
    assert out == ""


def test_programs_of_this_machine_run_and_find_their_accounts(inside: Callable[[str], str]) -> None:
    out = inside("python3 -c 'import ssl, sqlite3; print(1 + 1)'; id; getent passwd root nobody; cat /etc/hostname")
    assert out.startswith("2\nuid=0(root) gid=0(root)")
    assert "root:x:0:0:root:/root:" in out and out.endswith("sandbox\n")


@pytest.mark.skipif(not Path("/usr/bin/dpkg-deb").exists(), reason="this host has other packages than Debian's")
@pytest.mark.long
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


def test_root_inside_sees_none_of_this_machines_private_places(inside: Callable[[str], str]) -> None:
    allowed = {"bin", "sbin", "usr", "etc", "var", "opt", "proc", "sys", "dev", "tmp", "run", "root", "home"}
    allowed |= {"srv", "mnt", "media", "boot", "lib", "lib32", "lib64", "libx32"}
    # Another process of the same test run may just be making private places, to see that they are hidden.
    assert set(inside("ls -A / | grep -v -e usr-is-merged -e bfguard").split()) <= allowed
    empty = "/tmp /var/tmp /run /root /home /srv /mnt /media /boot /var/log /var/spool /var/backups /sys"
    closed = "( -type f ! -perm -o=r -o -type d ! -perm -o=rx )"
    quoted = closed.replace("(", r"\(").replace(")", r"\)")
    none = (
        f"find {empty} -mindepth 1; find /etc -name 'ssh_host_*' -o -name '*.keytab' -o -name 'shadow-';"
        "ls -d /var/lib/docker /var/lib/containerd /etc/docker /etc/sudoers 2>/dev/null || true"
    )
    assert inside(none) == ""
    look = f"find /etc /opt /usr/local -ignore_readdir_race -maxdepth 4 {quoted}"
    found = [path for path in inside(look).split() if "/usr/local/bfguard" not in path]
    assert set(found) <= {"/etc/shadow", "/etc/gshadow", "/etc/ssl/private", "/etc/pki/tls/private"}


def test_the_hosts_accounts_and_identity_are_not_to_be_read(inside: Callable[[str], str]) -> None:
    seen = inside("cat /etc/machine-id /etc/shadow /etc/hosts /etc/resolv.conf")
    assert Path("/etc/machine-id").read_text().strip() not in seen
    assert "$" not in seen
    assert seen.endswith("nameserver 192.0.2.1\n")


def test_modes_and_owners_of_merged_directories_are_the_hosts(inside: Callable[[str], str]) -> None:
    places = ["/", "/etc", "/usr", "/usr/bin", "/etc/apt", "/var", "/var/lib", "/var/lib/dpkg", "/opt", "/usr/local"]
    existing = [place for place in places if Path(place).is_dir()]
    ask = ["stat", "-c", "%a %u %g %n", *existing]
    own = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.splitlines()
    # The root itself is the sandbox's own layer's.
    assert inside(shlex.join(ask)).splitlines()[1:] == own[1:]
