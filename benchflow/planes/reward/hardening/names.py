"""The names that hardening knows: files that tools read by themselves, and the programs that a verifier stands on."""

from __future__ import annotations

PYTHON_BUILD = (
    "setup.py",
    "pyproject.toml",
    "setup.cfg",
    "tox.ini",
    "noxfile.py",
    "hatch.toml",
    "flit.ini",
    "MANIFEST.in",
)
MAKE_BUILD = ("Makefile", "makefile", "GNUmakefile")
BUILD_PATTERNS = (*PYTHON_BUILD, *MAKE_BUILD, "requirements*.txt")

HOOKS = ("sitecustomize", "usercustomize")
"""Modules that an interpreter imports by itself."""

SITE = ("site-packages", "dist-packages")
"""Directories whose `.pth` files an interpreter reads."""

SHADOWED = (
    *("pytest", "_pytest", "pluggy", "iniconfig", "site", "os", "sys", "io", "re", "json", "abc", "ast", "types"),
    *("enum", "typing", "inspect", "pathlib", "subprocess", "importlib", "unittest", "functools", "collections"),
    *("contextlib", "dataclasses", "traceback", "warnings", "shutil", "tempfile", "argparse", "hashlib", "random"),
    *("math", "time", "datetime", "csv", "sqlite3", "difflib", "copy", "string", "struct", "socket", "logging"),
)
"""Modules that a verifier imports; one of these names in the working directory would be taken in their place."""

DOTFILES = (
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".inputrc", ".kshrc"),
    *(".zshenv", ".zshrc", ".zprofile", ".zlogin", ".gitconfig", ".config/git/config", ".config/pip/pip.conf"),
    *(".pip/pip.conf", ".pydistutils.cfg", ".pypirc", ".curlrc", ".wgetrc", ".npmrc", ".config/uv/uv.toml"),
)
"""Below the verifier's home: read by shells and tools without being asked."""

STARTUP = (
    *("/etc/profile", "/etc/profile.d/*", "/etc/bash.bashrc", "/etc/bashrc", "/etc/zsh/*", "/etc/environment"),
    *(
        "/etc/gitconfig",
        "/etc/pip.conf",
        "/etc/ld.so.conf",
        "/etc/ld.so.conf.d/*",
        "/etc/crontab",
        "/etc/cron.*/*",
        "/var/spool/cron/*",
    ),
    *("/var/spool/cron/crontabs/*", "/conftest.py", "/tmp/conftest.py", "/home/conftest.py"),
)

LOGS = "/logs/verifier"
VERIFIERS = (LOGS, "/tests", "/verifier")

TOOLS = (
    *("sh", "bash", "dash", "ash", "busybox", "env", "cat", "cp", "mv", "rm", "ls", "ln", "mkdir", "rmdir", "touch"),
    *(
        "chmod",
        "chown",
        "id",
        "date",
        "echo",
        "printf",
        "test",
        "[",
        "true",
        "false",
        "expr",
        "seq",
        "sleep",
        "timeout",
    ),
    *("head", "tail", "sort", "uniq", "wc", "cut", "tr", "tee", "tac", "od", "stat", "du", "basename", "dirname"),
    *("readlink", "realpath", "mktemp", "base64", "sha256sum", "sha1sum", "md5sum", "cmp", "diff", "grep", "egrep"),
    *(
        "fgrep",
        "sed",
        "awk",
        "gawk",
        "mawk",
        "find",
        "xargs",
        "tar",
        "gzip",
        "curl",
        "wget",
        "uv",
        "uvx",
        "su",
        "chroot",
    ),
    *("ldconfig", "python", "python3", "pytest", "py.test"),
)
"""Programs that a verifier's script stands on. What tasks ask to be upgraded (git, pip, compilers) is not here."""

FIRST = ("sh", "find", "sha256sum")
"""What looks at all the rest from inside; these, and what they load, are looked at from outside."""

TRACED = (*FIRST, "bash", "python3")
"""Programs of which is looked again what they load."""

LOADER_FILES = ("/etc/ld.so.preload", "/etc/ld.so.cache")
"""What tells the loader to load other libraries."""

TEST_PACKAGES = ("pytest", "_pytest", "pytest.py", "pluggy", "iniconfig")
