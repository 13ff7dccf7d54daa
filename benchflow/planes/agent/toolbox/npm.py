"""Download of single packages from an npm registry without npm: by the user's configuration, verified and unpacked.

Used for the two packages with which npm itself runs, Node and npm; npm then fetches all others. Of npm's configuration
(variables, the user's and the global `npmrc`) it reads registry, tokens, proxies and CA files.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import re
import shutil
import ssl
import subprocess
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import quote, urlsplit

from benchflow.errors import AgentDownloadError, AgentInstallError
from benchflow.planes.agent.toolbox.build_steps import classify_failure

_GLOBAL = ("/usr/local/etc/npmrc", "/usr/etc/npmrc", "/etc/npmrc")
_VARIABLE = re.compile(r"\$\{([^}]+)\}")
_ATTEMPTS = 3
_TIMEOUT = 60.0
"""Seconds without data after which a request fails."""
_CHUNK = 1 << 20


def read_npm_config(environ: Mapping[str, str]) -> dict[str, str]:
    """Return npm's settings: variables override the user's file, which overrides the global one."""
    variables = {
        name[len("npm_config_") :].lower().replace("_", "-"): value
        for name, value in environ.items()
        if name.lower().startswith("npm_config_") and value
    }
    home = Path(environ.get("HOME") or Path.home())
    files = [Path(variables["globalconfig"])] if "globalconfig" in variables else [Path(name) for name in _GLOBAL]
    files.append(Path(variables["userconfig"]) if "userconfig" in variables else home / ".npmrc")
    settings: dict[str, str] = {}
    for file in files:
        if file.is_file():
            settings |= _parse_npmrc(file.read_text(encoding="utf-8", errors="replace"), environ)
    return settings | variables


def _parse_npmrc(text: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of an `npmrc` file, with variables put in."""
    settings = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.lstrip().startswith((";", "#")):
            value = value.strip().strip("\"'")
            settings[name.strip()] = _VARIABLE.sub(lambda match: environ.get(match.group(1), match.group(0)), value)
    return settings


def _ask_npm_for_registry(environ: Mapping[str, str]) -> str:
    """Return the registry that npm uses by default, as npm itself prints it. Raise `AgentInstallError` without npm."""
    npm = shutil.which("npm", path=environ.get("PATH"))
    said = ""
    if npm is not None:
        done = subprocess.run(
            [npm, "config", "get", "registry"], env=dict(environ), capture_output=True, text=True, timeout=_TIMEOUT
        )
        said = done.stdout.strip()
    if not said.startswith(("http://", "https://")):
        raise AgentInstallError(
            "no npm registry is configured here",
            key="registry",
            remedy="set NPM_CONFIG_REGISTRY to its address, or `registry=` in ~/.npmrc, or install npm, which has one",
        )
    return said


class NpmRegistry:
    """The registry that the user's configuration names."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Read the configuration. Raise `AgentInstallError` if it names no registry and npm is missing."""
        self._config = read_npm_config(environ)
        self._environ = environ
        self.url = (self._config.get("registry") or _ask_npm_for_registry(environ)).rstrip("/") + "/"
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler(self._find_proxies()),
            urllib.request.HTTPSHandler(context=self._make_tls_context()),
        )

    def unpack(
        self, package: str, version: str, target: Path, stop: threading.Event, only: tuple[str, ...] = ()
    ) -> None:
        """Download a package, verify its digest, and unpack it.

        Args:
            package: Name of the package.
            version: Exact version.
            target: Directory for its content.
            stop: Event that ends the download early.
            only: Top names to unpack; empty for all.

        Raises:
            AgentDownloadError: The download fails, and a retry may succeed.
            AgentInstallError: It fails for another reason, such as a missing version.
        """
        what = f"fetching {package} {version}"
        packed = target.with_name(f"{target.name}.tgz")
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                about = self.look_up(package, version)
                self._download(about["tarball"], packed, about, stop, what)
                break
            except AgentDownloadError:
                if attempt == _ATTEMPTS or stop.is_set():
                    raise
        try:
            with tarfile.open(packed) as archive:
                _extract(archive, target, only)
        except OSError as error:
            raise classify_failure(what, str(error), "cannot be unpacked") from error
        finally:
            packed.unlink(missing_ok=True)

    def look_up(self, package: str, version: str) -> dict[str, Any]:
        """Return address and digests of a package's archive.

        Raise `AgentDownloadError` or `AgentInstallError` if the registry does not have the package or cannot be asked.
        """
        what = f"fetching {package} {version}"
        with self._open(f"{self.url}{quote(package, safe='@')}/{quote(version)}", what) as answer:
            try:
                dist: dict[str, Any] = json.loads(answer.read())["dist"]
                return {"tarball": dist["tarball"], "integrity": dist.get("integrity"), "shasum": dist.get("shasum")}
            except (ValueError, KeyError, http.client.HTTPException) as error:
                raise AgentDownloadError(
                    f"{what}: {self.url} does not answer as an npm registry does",
                    key="registry",
                    remedy="correct the registry: npm config set registry URL",
                ) from error

    def _download(self, url: str, file: Path, about: dict[str, Any], stop: threading.Event, what: str) -> None:
        """Download an archive to a file, and verify its digest."""
        integrity = about["integrity"]
        kind, _, expected = (integrity or "").split()[0].partition("-") if integrity else ("sha1", "", "")
        digest = hashlib.new(kind)
        try:
            with self._open(url, what) as answer, file.open("wb") as out:
                while chunk := answer.read(_CHUNK):
                    if stop.is_set():
                        raise AgentDownloadError(f"{what}: given up")
                    digest.update(chunk)
                    out.write(chunk)
        except (OSError, http.client.HTTPException) as error:
            raise _translate_error(what, error) from error
        right = digest.digest() == base64.b64decode(expected) if integrity else digest.hexdigest() == about["shasum"]
        if not right:
            raise AgentDownloadError(
                f"{what}: what came is not what the registry promises", remedy="try again, or look at the proxy"
            )

    def _open(self, url: str, what: str) -> IO[bytes]:
        """Open an address, with the user's credentials for it."""
        request = urllib.request.Request(url, headers={"Accept": "application/json, */*"})
        authorization = self._find_authorization(url)
        if authorization:
            # Must not be sent to the target of a redirect.
            request.add_unredirected_header("Authorization", authorization)
        try:
            opened: IO[bytes] = self._opener.open(request, timeout=_TIMEOUT)
            return opened
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (401, 403):
                raise AgentInstallError(
                    f"{what}: {urlsplit(url).netloc} refuses with {error.code}",
                    remedy="give npm a token for this registry (npm login)",
                ) from error
            said = f"E{error.code}" if error.code == 404 or error.code >= 500 else ""
            raise classify_failure(what, said, f"{urlsplit(url).netloc} answers {error.code}") from error
        except (OSError, http.client.HTTPException) as error:
            raise _translate_error(what, error) from error

    def _find_authorization(self, url: str) -> str | None:
        """Return the credentials for an address, looked up as npm does: by its full path, then by each parent."""
        where = urlsplit(url)
        path = PurePosixPath(where.path or "/")
        for place in (path, *path.parents):
            key = f"//{where.netloc}{place}".rstrip("/") + "/"
            for name in (f"{key}:_authToken", f"{key[:-1]}:_authToken"):
                if name in self._config:
                    return f"Bearer {self._config[name]}"
            if f"{key}:_auth" in self._config:
                return f"Basic {self._config[f'{key}:_auth']}"
        return None

    def _find_proxies(self) -> dict[str, str]:
        """Return the proxies by scheme; none if the registry is excluded from them."""
        proxies = dict(urllib.request.getproxies())
        https = self._config.get("https-proxy") or self._config.get("proxy")
        http_ = self._config.get("http-proxy") or self._config.get("proxy")
        proxies |= {scheme: proxy for scheme, proxy in (("https", https), ("http", http_)) if proxy and proxy != "null"}
        host = urlsplit(self.url).hostname or ""
        spared = [name.strip().lstrip(".") for name in self._config.get("noproxy", "").split(",") if name.strip()]
        return {} if any(host == name or host.endswith(f".{name}") for name in spared) else proxies

    def _make_tls_context(self) -> ssl.SSLContext:
        """Return the TLS context with the user's CA files."""
        if self._config.get("strict-ssl") == "false":
            return ssl._create_unverified_context()
        context = ssl.create_default_context()
        for file in (self._config.get("cafile"), self._environ.get("NODE_EXTRA_CA_CERTS")):
            if file:
                try:
                    context.load_verify_locations(file)
                except OSError as error:
                    raise AgentInstallError(
                        f"the CA file cannot be used: {error}", file=file, remedy="correct npm's `cafile`"
                    ) from error
        if "ca" in self._config:
            context.load_verify_locations(cadata=self._config["ca"].replace("\\n", "\n"))
        return context


def _translate_error(what: str, error: Exception) -> AgentInstallError:
    """Return the error for an exception of a request."""
    reason = getattr(error, "reason", error)
    said = f"{type(reason).__name__}: {reason}"
    if isinstance(reason, OSError) and reason.errno in (28, 122):
        return classify_failure(what, "ENOSPC", said)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return classify_failure(what, f"CERTIFICATE_VERIFY_FAILED\n{said}", said)
    return classify_failure(what, f"ECONNRESET\n{said}", said)


def _extract(archive: tarfile.TarFile, target: Path, only: tuple[str, ...]) -> None:
    """Extract the files of a package's archive, whose names all begin with one directory of any name."""
    for member in archive:
        parts = PurePosixPath(member.name).parts[1:]
        if not member.isfile() or not parts or ".." in parts or (only and parts[0] not in only):
            continue
        file = target.joinpath(*parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        if content is None:
            continue
        with content, file.open("wb") as out:
            while chunk := content.read(_CHUNK):
                out.write(chunk)
        file.chmod(0o755 if member.mode & 0o111 else 0o644)
