"""Find the files and requests that well-known programs touch, by their arguments, and the code that they run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from benchflow.planes.reward.action.python_code import read_python
from benchflow.planes.reward.action.shell_reader import ShellCommand, read_script, resolved, unwrapped
from benchflow.planes.reward.action.touched import Access, AccessMode, Touched, TouchedRequest, add_scheme, read_patch

_MAX_DEPTH = 4

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh"})
_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")
_DEVICE = re.compile(r"/dev/|&|$")

# Programs that print the content of their files: the letters of their options that have a value, and the number of
# leading arguments that are no files.
_READERS: dict[str, tuple[str, int]] = {
    **dict.fromkeys(
        ("cat", "tac", "nl", "less", "more", "bat", "strings", "diff", "cmp", "zcat", "wc", "paste"), ("", 0)
    ),
    **dict.fromkeys(("head", "tail", "xxd", "hexdump"), ("ncsl", 0)),
    **dict.fromkeys(("od", "base64", "fold"), ("AjNtw", 0)),
    **dict.fromkeys(("sha256sum", "md5sum", "sha1sum", "source", ".", "view", "vim", "vi", "nano"), ("", 0)),
    **dict.fromkeys(("sort", "uniq", "cut", "column"), ("ktoTSdfbc", 0)),
    **dict.fromkeys(("grep", "egrep", "fgrep", "rg", "zgrep", "ag"), ("ABCmefgd", 1)),
    **dict.fromkeys(("awk", "gawk", "mawk"), ("Fvf", 1)),
    **dict.fromkeys(("jq", "yq"), ("L", 1)),
    "tar": ("fCXT", 0),
    "zip": ("", 0),
}
_RUNNERS = ("pytest", "py.test")
_CURL_VALUED = "HdXouAbceFTmwKxrCDEPQtUYyz"
"""Letters of the options of curl that have a value."""

_CURL_PLAIN = frozenset(
    ("silent", "show-error", "fail", "location", "include", "verbose", "insecure", "compressed", "head", "get", "raw",
     "fail-with-body", "globoff", "http1.1", "http2", "remote-name", "create-dirs", "ipv4", "ipv6", "anyauth", "basic")
)  # fmt: skip
"""Long options of curl that have no value."""

_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


def read_script_effects(text: str, cwd: str = "/", *, deep: int = 0) -> tuple[list[ShellCommand], Touched]:
    """Return the simple commands of a shell script, those of the scripts that it runs included, and their effects.

    Args:
        text: The script.
        cwd: Directory in which it runs.
        deep: Depth of nested scripts, at most 4.
    """
    commands, touched = list[ShellCommand](), Touched()
    for command in read_script(text, cwd):
        commands.append(command)
        done = read_command_effects(command)
        inner, done.scripts = done.scripts, []
        touched.add(done)
        for script in inner if deep < _MAX_DEPTH else ():
            more, all_done = read_script_effects(script, command.cwd, deep=deep + 1)
            commands += more
            touched.add(all_done)
    return commands, touched


def read_command_effects(command: ShellCommand) -> Touched:
    """Return the effects of one command; shell scripts that it runs are not read, but listed in `scripts`."""
    touched = Touched()

    def note(mode: AccessMode, paths: Sequence[str], content: str | None = None) -> None:
        for path in paths:
            if path and not _DEVICE.match(path):
                touched.accesses.append(Access(resolved(path, command.cwd), mode, command.text, content))

    note("read", command.reads)
    output = command.stdin if command.name in ("cat", "tee") else None
    if command.name in ("echo", "printf"):
        output = " ".join(command.words[1:])
    note("write", command.writes, output)
    note("write", command.appends, output)
    for mode, paths in _list_files(command):
        note(mode, paths, command.stdin if mode == "write" and command.name == "tee" else None)
    touched.add(_read_code(command))
    touched.requests += _list_requests(command)
    for request in touched.requests:
        if request.url.startswith("file://"):
            note("read", [request.url[7:]])
    return touched


def _list_files(command: ShellCommand) -> Iterator[tuple[AccessMode, list[str]]]:
    """Yield (mode, paths) of the files that a program is given as arguments."""
    name, words = command.name, command.words[1:]
    if name in _READERS:
        valued, skipped = _READERS[name]
        given, options = _split_arguments(words, valued)
        if name in ("grep", "egrep", "fgrep", "rg") and any(
            re.match(r"-\w*[ef]$|--regexp|--file", one) for one in options
        ):
            skipped = 0
        yield "read", given[skipped:]
    elif name == "sed":
        given, options = _split_arguments(words, "efl")
        edits = any(re.match(r"-[a-zA-Z]*i|--in-place", one) for one in options)
        has_program = any(re.match(r"-[a-zA-Z]*[ef]$|--expression|--file", one) for one in options)
        yield ("edit" if edits else "read"), given[0 if has_program else 1 :]
    elif name == "perl":
        given, options = _split_arguments(words, "eEIMm")
        edits = any(re.match(r"-\w*i", one) for one in options)
        yield ("edit" if edits else "read"), given
    elif name in ("cp", "install", "rsync", "scp", "ln", "mv"):
        yield from _list_copied_files(name, words)
    elif name in ("rm", "unlink", "shred"):
        yield "delete", _split_arguments(words, "")[0]
    elif name == "truncate":
        yield "edit", _split_arguments(words, "sr")[0]
    elif name == "tee":
        yield "write", _split_arguments(words, "")[0]
    elif name == "sqlite3":
        yield "read", _split_arguments(words, "")[0][:1]
    elif name == "dd":
        yield "read", [word[3:] for word in words if word.startswith("if=")]
        yield "write", [word[3:] for word in words if word.startswith("of=")]
    elif name == "git" and words[:1] in (("rm",), ("mv",)):
        yield "delete", _split_arguments(words[1:], "")[0][: 1 if words[0] == "mv" else None]
    elif name == "find":
        yield from _list_found_files(words)
    elif name in ("apply_patch", "applypatch", "patch") or (name == "git" and words[:1] == ("apply",)):
        for mode, path in read_patch(command.stdin or " ".join(words)):
            yield mode, [path]
    elif name in _RUNNERS:
        yield "run", [word.split("::")[0] for word in _split_arguments(words, "kmpncW")[0]]


def _split_arguments(words: Sequence[str], valued: str) -> tuple[list[str], list[str]]:
    """Split words into (arguments, options); the values of options are dropped.

    Args:
        words: Words after the name of the program.
        valued: Letters of the options that have a value.
    """
    given, options, at = list[str](), list[str](), 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            return given + list(words[at:]), options
        if word.startswith("-") and len(word) > 1:
            options.append(word)
            at += not word.startswith("--") and word[-1] in valued
        else:
            given.append(word)
    return given, options


def _list_copied_files(name: str, words: Sequence[str]) -> Iterator[tuple[AccessMode, list[str]]]:
    """Yield (mode, paths) of a program that copies, links or moves files."""
    given, _ = _split_arguments(words, "tmogSe")
    into = next((words[at + 1] for at, one in enumerate(words[:-1]) if one == "-t"), None)
    if into is None:
        if len(given) < 2:
            return
        into = given.pop()
    yield ("delete" if name == "mv" else "read"), given
    if name == "mv":
        yield "read", given
    # The target may be a directory or a file, which the text doesn't tell: both paths count as written.
    yield "write", [into, *(f"{into.rstrip('/')}/{one.rstrip('/').rpartition('/')[2]}" for one in given)]


def _list_found_files(words: Sequence[str]) -> Iterator[tuple[AccessMode, list[str]]]:
    """Yield (mode, paths) of `find`. To look for files is no access, unless it deletes or runs a command on them."""
    roots = []
    for word in words:
        if word.startswith(("-", "(", "!")):
            break
        roots.append(word)
    names = [words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-name", "-iname")]
    found = [f"{root.rstrip('/')}/{name}" for root in roots or ["."] for name in names] or roots or ["."]
    if "-delete" in words:
        yield "delete", found
    for at, word in enumerate(words):
        if word in ("-exec", "-execdir"):
            acted = [one for one in words[at + 1 :] if one not in (";", "+")]
            for one in found:
                inner = ShellCommand(tuple(unwrapped([one if part == "{}" else part for part in acted])), "/")
                if inner.name != "find":
                    yield from _list_files(inner)


def _read_code(command: ShellCommand) -> Touched:
    """Return the effects of the code that an interpreter is given, and the file that it runs."""
    name, words, touched = command.name, command.words, Touched()
    if name in _SHELLS or name == "su":
        given, options = _split_arguments(words[1:], "oc" if name == "su" else "oO")
        if any(re.match(r"-[a-z]*c$", one) for one in options):
            at = next(place for place, one in enumerate(words) if re.match(r"-[a-z]*c$", one))
            touched.scripts += words[at + 1 : at + 2]
        elif given:
            touched.accesses += _make_run_accesses(given[:1], command)
        elif command.stdin:
            touched.scripts.append(command.stdin)
    elif name == "eval":
        touched.scripts.append(" ".join(words[1:]))
    elif _PYTHON.fullmatch(name):
        touched.add(_read_python_command(command))
    elif name in ("node", "deno", "bun"):
        programs = [words[at + 1] for at, one in enumerate(words[:-1]) if one in ("-e", "--eval", "-p")]
        code = programs[0] if programs else command.stdin or ""
        for verb, path in re.findall(r"(read|write|append|unlink|rm)\w*\(\s*['\"]([^'\"]+)", code):
            modes: dict[str, AccessMode] = {"read": "read", "unlink": "delete", "rm": "delete"}
            touched.accesses.append(Access(resolved(path, command.cwd), modes.get(verb, "write"), command.text))
    elif words and "/" in words[0]:
        touched.accesses += _make_run_accesses(words[:1], command)
    return touched


def _read_python_command(command: ShellCommand) -> Touched:
    """Return the effects of a command of Python: of its code, or the file or tests that it runs."""
    words = command.words
    for at, word in enumerate(words[1:], 1):
        if re.match(r"-[a-zA-Z]*c$", word):
            return read_python(words[at + 1] if at + 1 < len(words) else "", command.cwd)
        if word == "-m":
            inner = ShellCommand(words[at + 1 :], command.cwd)
            mode: AccessMode = "run"
            paths = [path for _, paths in _list_files(inner) for path in paths] if inner.name in _RUNNERS else []
            return Touched([Access(resolved(path, command.cwd), mode, command.text) for path in paths])
        if not word.startswith("-"):
            return Touched(_make_run_accesses([word], command))
    return read_python(command.stdin or "", command.cwd)


def _make_run_accesses(paths: Sequence[str], command: ShellCommand) -> list[Access]:
    """Return accesses of the mode `run` to these files."""
    return [Access(resolved(path, command.cwd), "run", command.text) for path in paths]


def _list_requests(command: ShellCommand) -> list[TouchedRequest]:
    """Return the HTTP requests of curl, wget or httpie."""
    if command.name == "curl":
        return _read_curl(command)
    words = command.words[1:]
    if command.name == "wget":
        given, options = _split_arguments(words, "OoPUtTe")
        method = next((one.partition("=")[2] for one in options if one.startswith("--method=")), "")
        body = next(
            (one.partition("=")[2] for one in options if one.startswith(("--post-data=", "--body-data="))), None
        )
        return [
            TouchedRequest(method or ("GET" if body is None else "POST"), add_scheme(url), body, command.text)
            for url in given
        ]
    if command.name in ("http", "https", "xh") and words:
        method = next((word for word in words[:-1] if word in _METHODS), "")
        rest = [word for word in words if word not in _METHODS and not word.startswith("-")]
        body = " ".join(rest[1:]) or None
        return (
            [TouchedRequest(method or ("POST" if body else "GET"), add_scheme(rest[0]), body, command.text)]
            if rest
            else []
        )
    return []


def _read_curl(command: ShellCommand) -> list[TouchedRequest]:
    method, urls, bodies, gets = "", list[str](), list[str](), False
    for option, value in _read_curl_options(command.words[1:]):
        if option in ("X", "request"):
            method = value.upper()
        elif option in ("d", "F", "json", "form") or option.startswith("data"):
            bodies.append(command.stdin or "" if value == "@-" else value)
        elif option in ("T", "upload-file"):
            method = method or "PUT"
        elif option in ("I", "head"):
            method = method or "HEAD"
        elif option in ("G", "get"):
            gets = True
        elif option in ("", "url"):
            urls.append(add_scheme(value))
    body = "&".join(bodies) if bodies else None
    method = method or ("GET" if gets or body is None else "POST")
    return [TouchedRequest(method, url, body, command.text) for url in urls]


def _read_curl_options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (option, value) of curl's arguments; a URL has an empty option."""
    at = 0
    while at < len(words):
        word = words[at].strip()
        at += 1
        following = words[at] if at < len(words) else ""
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            has_value = not equals and name not in _CURL_PLAIN and not name.startswith("no-")
            yield name, following if has_value else value
            at += has_value
        elif word.startswith("-") and len(word) > 1:
            for place, letter in enumerate(word[1:], 2):
                if letter in _CURL_VALUED:
                    yield letter, word[place:].strip() or following
                    at += not word[place:]
                    break
                yield letter, ""
        elif word:
            yield "", word
