"""One package from a registry: configuration as npm reads it, tokens, digests, and what is said when it goes wrong."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchflow.errors import AgentDownloadError, AgentInstallError
from benchflow.planes.agent.toolbox.npm import NpmRegistry, read_npm_config


def package(name: str = "package/hello.txt", content: bytes = b"hello") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


@dataclass
class Registry:
    """A registry of one package. integrity: what it promises; authorizations: what requests carried."""

    url: str
    packed: bytes = field(default_factory=package)
    integrity: str | None = None
    token: str | None = None
    authorizations: list[str | None] = field(default_factory=list)


@pytest.fixture
def registry() -> Iterator[Registry]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given.authorizations.append(self.headers["Authorization"])
            if given.token and self.headers["Authorization"] != f"Bearer {given.token}":
                return self.answer(401, b"")
            if self.path == "/npm/hello/1.0.0":
                digest = base64.b64encode(hashlib.sha512(given.packed).digest()).decode()
                dist = {"tarball": f"{given.url}hello.tgz", "integrity": given.integrity or f"sha512-{digest}"}
                return self.answer(200, json.dumps({"dist": dist}).encode())
            if self.path == "/npm/hello.tgz":
                return self.answer(200, given.packed)
            return self.answer(404, b"{}")

        def answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: tests read what was asked."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    given = Registry(f"http://127.0.0.1:{server.server_port}/npm/")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield given
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(registry: Registry, target: Path, version: str = "1.0.0", **environ: str) -> Path:
    reader = NpmRegistry({"HOME": str(target.parent), "npm_config_registry": registry.url, **environ})
    reader.unpack("hello", version, target, threading.Event())
    return target / "hello.txt"


def test_a_package_is_unpacked(registry: Registry, tmp_path: Path) -> None:
    assert fetch(registry, tmp_path / "box").read_text() == "hello"
    assert not (tmp_path / "box.tgz").exists()


def test_a_token_goes_to_its_registry(registry: Registry, tmp_path: Path) -> None:
    registry.token = "secret"
    host = registry.url.removeprefix("http:")
    (tmp_path / ".npmrc").write_text(f"{host}:_authToken=${{MY_TOKEN}}\n")
    assert fetch(registry, tmp_path / "box", MY_TOKEN="secret").exists()


def test_without_the_token_it_is_refused(registry: Registry, tmp_path: Path) -> None:
    registry.token = "secret"
    with pytest.raises(AgentInstallError, match="401") as caught:
        fetch(registry, tmp_path / "box")
    assert "npm login" in str(caught.value.remedy)


def test_a_package_that_is_not_what_was_promised_is_refused(registry: Registry, tmp_path: Path) -> None:
    registry.integrity = "sha512-" + base64.b64encode(b"0" * 64).decode()
    with pytest.raises(AgentDownloadError, match="not what the registry promises"):
        fetch(registry, tmp_path / "box")
    assert not (tmp_path / "box").exists()


def test_a_version_that_does_not_exist_is_named(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(AgentInstallError, match=r"hello 2\.0\.0: there is no such version") as caught:
        fetch(registry, tmp_path / "box", "2.0.0")
    assert not caught.value.retryable


def test_a_file_outside_of_the_package_is_left_out(registry: Registry, tmp_path: Path) -> None:
    registry.packed = package("package/../../evil.txt")
    fetch(registry, tmp_path / "box")
    assert not list(tmp_path.rglob("evil.txt"))


def test_what_is_no_registry_is_named(registry: Registry, tmp_path: Path) -> None:
    registry.url += "elsewhere/"
    with pytest.raises(AgentInstallError):
        fetch(registry, tmp_path / "box")


def test_variables_come_before_the_users_file_and_that_before_the_global_one(tmp_path: Path) -> None:
    user, everybody = tmp_path / "user", tmp_path / "global"
    user.write_text("; a comment\nregistry = https://user.example/\nproxy=http://proxy:1\n")
    everybody.write_text('registry=https://global.example/\ncafile="/etc/ca.pem"\n')
    files = {"npm_config_userconfig": str(user), "NPM_CONFIG_GLOBALCONFIG": str(everybody)}
    config = read_npm_config(files)
    assert (config["registry"], config["cafile"], config["proxy"]) == (
        "https://user.example/",
        "/etc/ca.pem",
        "http://proxy:1",
    )
    assert (
        read_npm_config({**files, "NPM_CONFIG_REGISTRY": "https://mine.example/"})["registry"]
        == "https://mine.example/"
    )


MISSING = "/nonexistent/ca.pem"


def test_a_ca_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentInstallError) as caught:
        NpmRegistry(
            {"HOME": str(tmp_path), "npm_config_registry": "https://npm.example/", "npm_config_cafile": MISSING}
        )
    assert caught.value.file == MISSING


def test_without_a_configured_registry_npm_is_asked_for_its_own(tmp_path: Path) -> None:
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho https://npm.example/kept\n")
    npm.chmod(0o755)
    assert NpmRegistry({"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}).url == "https://npm.example/kept/"


def test_without_a_registry_and_without_npm_the_error_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(AgentInstallError, match="no npm registry is configured") as caught:
        NpmRegistry({"HOME": str(tmp_path), "PATH": str(tmp_path)})
    assert "NPM_CONFIG_REGISTRY" in str(caught.value.remedy)
