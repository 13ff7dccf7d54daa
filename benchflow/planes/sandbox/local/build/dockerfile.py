"""Reading a Dockerfile into steps that this machine can carry out, with the host in place of the base image.

Everything is decided before anything runs: names are resolved, files are found in the build context, and unsupported
instructions are refused with their name and line.
"""

from __future__ import annotations

import platform
import posixpath
import re
from collections.abc import Callable, Mapping

from benchflow.errors import ImageBuildError, UnsupportedFeatureError
from benchflow.planes.sandbox.bases import find_base
from benchflow.planes.sandbox.build_context import Context
from benchflow.planes.sandbox.local.build.copied_files import Copy, Tree, is_remote
from benchflow.planes.sandbox.local.build.recipe import Base, BuildInstruction, LayerConfig, MakeDirectory, Recipe, Run
from benchflow.planes.sandbox.local.build.syntax import (
    Instruction,
    SyntaxMistakeError,
    UnsupportedSyntaxError,
    check_directives,
    expand,
    has_here_document,
    parse_flags,
    parse_instructions,
    parse_json_list,
    split_words,
)
from benchflow.planes.sandbox.local.local_images import SHELL

OTHER_SANDBOX = "use --sandbox docker"
"""Remedy for all that is unsupported."""
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of RUN, unless ENV sets one."""

PROXY_ARGS = tuple(
    name
    for base in ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
    for name in (base, base.lower())
)
"""Build arguments that every RUN has without declaring them, and that don't count in a layer's key."""

_REFUSED = {
    "CMD": "remove it: in a sandbox only the agent's and the verifier's commands run",
    "ENTRYPOINT": "remove it, if nothing has to run before the agent comes",
    "VOLUME": "remove it: the directory is kept like any other",
    "HEALTHCHECK": "remove it, and declare the healthcheck in the task",
    "STOPSIGNAL": "remove it: a sandbox is killed when it is over",
    "ONBUILD": "remove it: no image is built from this one",
}
"""Remedies for known instructions that are refused, by name."""
_ARCHITECTURES = {
    "x86_64": "amd64",
    "x86-64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "armhf": "arm",
    "armel": "arm",
    "i386": "386",
    "i686": "386",
}
"""Docker's names of architectures, by others."""
_PORT = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?(?:/(tcp|udp|sctp))?", re.I)
_NAME = re.compile(r"[^\s=]+")


def read_recipe(
    context: Context,
    *,
    bases: Mapping[str, Base] | None = None,
    entrypoint: bool = False,
    host: str | None = None,
    machine: str | None = None,
) -> Recipe:
    """Read the Dockerfile of a context.

    Args:
        context: The build context.
        bases: Images that FROM may name.
        entrypoint: Whether ENTRYPOINT and CMD are supported.
        host: Name of the operating system; None for this machine's.
        machine: Architecture; None for this machine's.

    Raises:
        ImageBuildError: The Dockerfile is wrong, or the context can't be read.
        UnsupportedFeatureError: An instruction is not supported by the local sandbox.
    """
    reader = _Reader(
        Tree(context),
        bases or {},
        entrypoint,
        host or read_host_system(),
        _name_architecture(machine or platform.machine()),
    )
    steps = []
    where: Instruction | None = None
    try:
        check_directives(context.text)
        for where in parse_instructions(context.text):
            steps.append(BuildInstruction(where.line, where.word, where.rest, reader.take(where)))
        where = None
        return Recipe(context.shown, tuple(steps), reader.config(), reader.tree, reader.upon)
    except SyntaxMistakeError as error:
        said = f"line {where.line}: {where.word}: {error}" if where else str(error)
        remedy = "mend the Dockerfile" if where is None else f"mend line {where.line}"
        raise ImageBuildError(said, file=context.shown, key=where.word if where else None, remedy=remedy) from error
    except UnsupportedSyntaxError as error:
        line = where.line if where else 1
        raise UnsupportedFeatureError(
            f"line {line}: the local sandbox does not carry out {error.what}",
            file=context.shown,
            key=where.word if where else "directive",
            remedy=f"{error.remedy}; or {OTHER_SANDBOX}" if error.remedy else OTHER_SANDBOX,
        ) from error
    except OSError as error:
        raise ImageBuildError(
            f"the build context {context.root} cannot be read: {error}",
            file=context.shown,
            remedy="make its files readable, or list them in .dockerignore",
        ) from error


def read_host_system() -> str:
    """Return name and version of this machine's operating system, such as `Debian GNU/Linux 12`."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return platform.system()
    return f"{release['NAME']} {release.get('VERSION_ID', '')}".strip()


class _Reader:
    """The state of the image between instructions."""

    def __init__(self, tree: Tree, bases: Mapping[str, Base], entrypoint: bool, host: str, architecture: str) -> None:
        self.tree = tree
        self.upon: str | None = None
        self._bases = bases
        self._host = host
        self._architecture = architecture
        # Docker's builder predefines these arguments. FROM sees them; other instructions only if ARG declares them.
        self._platform = {
            f"{side}{part}": value
            for side in ("TARGET", "BUILD")
            for part, value in (("PLATFORM", f"linux/{architecture}"), ("OS", "linux"), ("ARCH", architecture))
        }
        self._global: dict[str, str] = {}
        self._base: str | None = None
        self._env: dict[str, str] = {}
        self._args: dict[str, str] = {}
        self._shell: tuple[str, ...] = SHELL
        self._workdir = "/"
        self._user: str | None = None
        self._labels: dict[str, str] = {}
        self._ports: list[str] = []
        self._entrypoint: tuple[str, ...] = ()
        self._command: tuple[str, ...] = ()
        self._own_command = False
        self._warnings: list[str] = []
        self._line = 0
        self._handlers: dict[str, Callable[[str], Run | Copy | MakeDirectory | None]] = {
            "FROM": self._take_from,
            "RUN": self._take_run,
            "COPY": lambda rest: self._take_copy("COPY", rest),
            "ADD": lambda rest: self._take_copy("ADD", rest),
            "ENV": self._take_env,
            "ARG": self._take_arg,
            "WORKDIR": self._take_workdir,
            "USER": self._take_user,
            "SHELL": self._take_shell,
            "EXPOSE": self._take_expose,
            "LABEL": self._take_label,
            "MAINTAINER": self._take_maintainer,
        }
        if entrypoint:
            self._handlers |= {"ENTRYPOINT": self._take_entrypoint, "CMD": self._take_command}

    def take(self, instruction: Instruction) -> Run | Copy | MakeDirectory | None:
        """Apply an instruction to the state, and return the change of files that it asks for."""
        word, rest = instruction.word, instruction.rest
        self._line = instruction.line
        handler = self._handlers.get(word)
        if handler is None and word in _REFUSED:
            raise UnsupportedSyntaxError(word, _REFUSED[word])
        if handler is None:
            raise UnsupportedSyntaxError(f"the unknown instruction {word}", "correct the word")
        if word in ("RUN", "COPY", "ADD") and has_here_document(rest):
            raise UnsupportedSyntaxError(
                f"{word} with a here-document", "put the text in a file of the build context and COPY it"
            )
        if instruction.misread is not None:
            raise UnsupportedSyntaxError(instruction.misread, "write the line without it")
        if not rest:
            raise SyntaxMistakeError("nothing follows it")
        if self._base is None and word not in ("FROM", "ARG"):
            raise SyntaxMistakeError("it comes before FROM")
        return handler(rest)

    def config(self) -> LayerConfig:
        """Return the configuration of the finished image. Raise `SyntaxMistakeError` without FROM."""
        if self._base is None:
            raise SyntaxMistakeError("the Dockerfile has no FROM")
        return LayerConfig(
            env=self._env,
            workdir=None if self._workdir == "/" else self._workdir,
            user=self._user,
            labels=self._labels,
            ports=tuple(self._ports),
            shell=self._shell,
            entrypoint=self._entrypoint,
            command=self._command,
            warnings=tuple(dict.fromkeys(self._warnings)),
            base=self._base,
        )

    # --- FROM ----------------------------------------------------------------------------------------

    def _take_from(self, rest: str) -> None:
        if self._base is not None:
            raise UnsupportedSyntaxError("a second stage", "make the image in one stage")
        given, rest = parse_flags(rest)
        for name, value in given:
            if name != "platform":
                raise UnsupportedSyntaxError(f"FROM --{name}")
            self._check_platform(self._expand(value))
        image, *more = split_words(rest)
        if more and not (len(more) == 2 and more[0].upper() == "AS"):
            raise SyntaxMistakeError(f"after the image there may only be `AS name`, not {' '.join(more)}")
        base = self._expand(image)
        if not base:
            raise SyntaxMistakeError(f"the name of the image, {image}, is empty")
        if base == "scratch":
            raise UnsupportedSyntaxError("FROM scratch", "name the image whose place this machine's system can take")
        self._base = base
        found = find_base(self._bases, base)
        if found is None:
            self._warnings.append(f"the host ({self._host}) stands for {base}")
        else:
            self._begin_with(found)

    def _begin_with(self, base: Base) -> None:
        """Take over the configuration of a base image."""
        known = base.config
        self.upon = base.reference
        self._env, self._user, self._shell = dict(known.env), known.user, known.shell
        self._workdir = known.workdir or "/"
        self._entrypoint, self._command = known.entrypoint, known.command
        self._labels, self._ports, self._warnings = dict(known.labels), list(known.ports), list(known.warnings)

    def _check_platform(self, wanted: str) -> None:
        """Raise `UnsupportedSyntaxError` for the platform of another machine."""
        system, _, architecture = wanted.lower().partition("/")
        if not architecture and system != "linux":
            system, architecture = "linux", system
        architecture = _name_architecture(architecture.split("/")[0] or self._architecture)
        if (system, architecture) != ("linux", self._architecture):
            raise UnsupportedSyntaxError(f"FROM --platform={wanted} on linux/{self._architecture}", "remove the flag")

    # --- changes of files ----------------------------------------------------------------------------

    def _take_run(self, rest: str) -> Run:
        given, rest = parse_flags(rest)
        if given:
            raise UnsupportedSyntaxError(f"RUN --{given[0][0]}", "write the step without it")
        listed = parse_json_list(rest)
        if listed == []:
            raise SyntaxMistakeError("its JSON list is empty")
        argv = tuple(listed) if listed else (*self._shell, rest)
        return Run(argv, self._args | self._env, self._workdir, self._user)

    def _take_copy(self, word: str, rest: str) -> Copy:
        owner, mode = None, None
        given, rest = parse_flags(rest)
        for name, value in given:
            if name == "chown":
                owner = self._expand(value)
            elif name == "chmod":
                mode = _parse_mode(self._expand(value))
            else:
                raise UnsupportedSyntaxError(f"{word} --{name}", "write the step without it")
        # Like Docker, which splits at every space here, even within quotes.
        *written, target = [self._expand(one) for one in parse_json_list(rest) or rest.split()] or [""]
        if not written or not target or not all(written):
            raise SyntaxMistakeError("it needs at least one source and a target")
        found = []
        for one in written:
            if word == "ADD" and is_remote(one):
                raise UnsupportedSyntaxError(f"ADD of {one}", "fetch it with RUN, or put it in the build context")
            for source in self.tree.find(one):
                if word == "ADD" and self.tree.is_archive(source):
                    raise UnsupportedSyntaxError(f"ADD of the archive {one}", "COPY it, and unpack it with RUN")
                found.append(source)
        if not found:
            raise SyntaxMistakeError(f"{' '.join(written)} fits nothing in the build context {self.tree.root}")
        into = posixpath.basename(target) in ("", ".", "..")
        if len(found) > 1 and not into:
            raise SyntaxMistakeError(
                f"with several sources the target must be a directory that ends with a slash, not {target}"
            )
        return Copy(tuple(found), self._path(target), into, owner, mode)

    def _take_workdir(self, rest: str) -> MakeDirectory | None:
        given = self._expand(rest)
        if not given:
            raise SyntaxMistakeError(f"the path {rest} is empty")
        self._workdir = self._path(given)
        return None if self._workdir == "/" else MakeDirectory(self._workdir)

    # --- configuration of the image ------------------------------------------------------------------

    def _take_env(self, rest: str) -> None:
        self._env |= self._pairs(rest)

    def _take_label(self, rest: str) -> None:
        self._labels |= self._pairs(rest)

    def _take_maintainer(self, rest: str) -> None:
        self._labels["maintainer"] = rest

    def _take_arg(self, rest: str) -> None:
        """Declare build arguments. Those before FROM are global, and seen after it only if declared again."""
        before_from = self._base is None
        values = self._values()
        for word in split_words(rest):
            name, given, default = (self._expand(part, values) for part in word.partition("="))
            if not _NAME.fullmatch(name):
                raise SyntaxMistakeError(f"{word} is not a name, nor name=default")
            if given:
                (self._global if before_from else self._args)[name] = default
            elif not before_from and name in self._platform | self._global:
                self._args[name] = (self._platform | self._global)[name]

    def _take_user(self, rest: str) -> None:
        self._user = self._expand(rest)
        if not self._user or self._user.startswith(":"):
            raise SyntaxMistakeError(f"{rest} names no user")

    def _take_shell(self, rest: str) -> None:
        listed = parse_json_list(rest)
        if not listed:
            raise SyntaxMistakeError('the shell must be a JSON list, like ["/bin/bash", "-c"]')
        self._shell = tuple(listed)

    def _take_entrypoint(self, rest: str) -> None:
        self._entrypoint = self._program(rest)
        if not self._own_command:
            # An inherited CMD was meant for the inherited ENTRYPOINT.
            self._command = ()

    def _take_command(self, rest: str) -> None:
        self._command = self._program(rest)
        self._own_command = True

    def _program(self, rest: str) -> tuple[str, ...]:
        """Return the argv of ENTRYPOINT or CMD, in JSON or shell form."""
        listed = parse_json_list(rest)
        return tuple(listed) if listed is not None else (*self._shell, rest)

    def _take_expose(self, rest: str) -> None:
        for port in self._expand(rest).split():
            match = _PORT.fullmatch(port)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
            if match is None or not 0 < first <= last < 65536:
                raise SyntaxMistakeError(f"{port} is not a port, like 80, 80/udp or 8000-8010")
            exposed = (f"{number}/{(match[3] or 'tcp').lower()}" for number in range(first, last + 1))
            self._ports = list(dict.fromkeys([*self._ports, *exposed]))

    # --- words ---------------------------------------------------------------------------------------

    def _pairs(self, rest: str) -> dict[str, str]:
        """Parse `name=value …`, or `name value with spaces`. Values do not see each other's new ones."""
        values = self._values()
        split = split_words(rest)
        if "=" not in split[0]:
            name, *value = rest.split(None, 1)
            if not value:
                raise SyntaxMistakeError(f"{name} has no value")
            return {self._expand(name, values): self._expand(value[0], values)}
        found = {}
        for word in split:
            name, given, value_of = (self._expand(part, values) for part in word.partition("="))
            if not given or not _NAME.fullmatch(name.replace(" ", "_")):
                raise SyntaxMistakeError(f"{word} is not name=value")
            found[name] = value_of
        return found

    def _values(self) -> dict[str, str]:
        """Return the variables that are replaced in the current instruction."""
        if self._base is None:
            return self._platform | self._global
        return {"PATH": DEFAULT_PATH} | self._args | self._env

    def _expand(self, text: str, values: dict[str, str] | None = None) -> str:
        return expand(text, self._values() if values is None else values, self._note_unset)

    def _note_unset(self, name: str) -> None:
        """Warn of a variable that the base image may set, and the host does not."""
        if self._base is not None and self.upon is None:
            self._warnings.append(
                f"line {self._line}: ${name} is empty: nothing here sets it, and what {self._base} sets is not known"
            )

    def _path(self, given: str) -> str:
        """Return an absolute path, resolved against the working directory."""
        return "/" + posixpath.normpath(posixpath.join(self._workdir, given)).lstrip("/")


def _parse_mode(given: str) -> int:
    if not re.fullmatch(r"[0-7]{3,4}", given):
        raise UnsupportedSyntaxError(f"--chmod={given}", "write the mode in octal, like 755")
    return int(given, 8)


def _name_architecture(name: str) -> str:
    """Return Docker's name of an architecture."""
    return _ARCHITECTURES.get(name.lower(), name.lower())
