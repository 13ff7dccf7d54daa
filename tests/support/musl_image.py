"""An image that has musl, a shell, and nothing else: what Alpine is to an agent, made of two packages of Debian's."""

from __future__ import annotations

import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def musl_image(directory: Path) -> Iterator[str]:
    """Its reference, while it is there. Skips where the packages cannot be had."""
    directory.mkdir()
    try:
        options = _sources(directory)
        _run("apt-get", *options, "download", "musl", "busybox-static", cwd=directory)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"musl and busybox-static cannot be fetched: {getattr(error, 'stderr', error)}")
    root = directory / "root"
    for name in ("bin", "lib"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in directory.glob("*.deb"):
        _unpack(package, root)
    for name in ("root", "proc", "dev", "sys", "home"):
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").mkdir(mode=0o1777)
    (root / "tmp").chmod(0o1777)
    (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\nnogroup:x:65534:\n")
    listed = subprocess.run([root / "bin" / "busybox", "--list"], capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    archive = directory / "root.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(root, ".")
    reference = f"benchflow-test-musl:{uuid.uuid4().hex[:12]}"
    imported = ["docker", "import", "--change", "CMD sh", "--change", "ENV PATH=/usr/bin:/bin", archive, reference]
    subprocess.run(imported, check=True, capture_output=True)
    try:
        yield reference
    finally:
        subprocess.run(["docker", "rmi", "-f", reference], check=True, capture_output=True)


def _unpack(package: Path, root: Path) -> None:
    # Through the links that are there already, whichever of the two places its files have in this release.
    content = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "--keep-directory-symlink", "-C", root], input=content, check=True)


def _sources(directory: Path) -> list[str]:
    """Return options of apt for Debian's current release; None on another distribution.

    They name it wherever this host has its packages from: an older musl is too old.
    """
    form = "$(ORIGIN) $(CODENAME) $(REPO_URI)"
    rows = [
        row.split() for row in _run("apt-get", "indextargets", "--format", form, "Created-By: Packages").splitlines()
    ]
    archive = next((uri for origin, name, uri in rows if origin == "Debian" and name.isalpha()), None)
    if archive is None:
        return []
    (directory / "lists" / "partial").mkdir(parents=True)
    (directory / "cache" / "archives" / "partial").mkdir(parents=True)
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (directory / "sources.list").write_text(f"deb [signed-by={keys}] {archive} stable main\n")
    settings = {
        "Dir::Etc::SourceList": directory / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": directory / "lists",
        "Dir::Cache": directory / "cache",
        "APT::Sandbox::User": "root",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    _run("apt-get", *options, "update")
    return options


def _run(*command: str, cwd: Path | None = None) -> str:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout
