"""Names of the files that tools read unasked, and of the programs that a verifier depends on."""

from __future__ import annotations

import sys

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
BUILD_PATTERNS = (*PYTHON_BUILD, *MAKE_BUILD, "*.mk", "requirements*.txt")

NODE_BUILD = ("package.json", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs")
"""Files that npm and similar tools read in a project. An installed package has its own `package.json`."""

RAKE_BUILD = ("Rakefile", "rakefile", "Rakefile.rb", "rakefile.rb")

MAKE_SOURCES = tuple(f"{name}.{ending}" for name in MAKE_BUILD for ending in ("sh", "c", "cc", "S", "o", "p", "f", "r"))
"""Files from which make would generate a Makefile by its built-in rules."""

RUNNER_FILES = (".proverc", ".rspec", ".perltidyrc")
"""Files that test runners read in the directory in which they start."""

PYTEST_FILES = ("pytest.ini", ".pytest.ini")
"""Configurations of pytest that have no effect while `PYTEST_ADDOPTS` is pinned."""

HOOKS = ("sitecustomize", "usercustomize")
"""Modules that an interpreter imports at its start."""

SITE = ("site-packages", "dist-packages")
"""Names of directories whose `.pth` files an interpreter reads."""

_IMPORTED = """
    __future__ _bisect _blake2 _bz2 _colorize _compression _csv _datetime _decimal _elementtree _hashlib _heapq
    _json _lzma _opcode _opcode_metadata _posixsubprocess _random _sha2 _sha512 _socket _struct _typing _uuid
    _weakrefset argparse array ast base64 bdb binascii bisect bz2 calendar collections contextlib copy copyreg csv
    dataclasses datetime decimal difflib dis email encodings enum fcntl fnmatch functools gettext glob grp hashlib
    heapq html importlib inspect ipaddress json keyword linecache locale logging lzma math numbers opcode operator
    pathlib platform pprint pyexpat quopri random re reprlib select selectors shlex shutil signal socket string
    struct subprocess sysconfig tempfile textwrap threading token tokenize traceback types typing unicodedata
    unittest urllib uuid warnings weakref xml zipfile zlib
    attr exceptiongroup iniconfig packaging pluggy py pygments pytest _pytest tomli
"""
SHADOWED = frozenset(_IMPORTED.split())
"""Modules that `python -m pytest` has imported from files before it loads the plugins that `-p` names: of the standard
library, with Python 3.11 to 3.13 and pytest 7 to 9, and of its own packages.

A module of one of these names in the directory in which Python starts is imported in its place, before any guard is
loaded. If such a module were honest work, pytest would mostly not start with it, because it lacks what pytest imports
from the real one.
"""

STANDARD = frozenset(sys.stdlib_module_names) - {"test", "this", "antigravity"}
"""Modules of the standard library of the engine's own Python. Many projects have a `test` of their own."""

DOTFILES = (
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".inputrc", ".kshrc"),
    *(".zshenv", ".zshrc", ".zprofile", ".zlogin", ".gitconfig", ".config/git/config", ".config/pip/pip.conf"),
    *(".pip/pip.conf", ".pydistutils.cfg", ".pypirc", ".curlrc", ".wgetrc", ".npmrc", ".config/uv/uv.toml"),
    *(".sqliterc", ".psqlrc", ".my.cnf", ".perldb", ".irbrc", ".pam_environment", ".config/sqlite3/sqliterc"),
    *(".config/curlrc", ".config/irb/irbrc", ".config/psql/psqlrc", ".config/go/env", ".jq", ".gdbinit", ".Rprofile"),
)
"""Files below the verifier's home that shells and tools read unasked."""

CRON = ("/etc/crontab", "/etc/cron.*/*", "/var/spool/cron/*", "/var/spool/cron/crontabs/*", "/var/spool/cron/atjobs/*")
"""Jobs of cron and at, which are left as they are: their daemons are stopped while a verifier runs."""

SCHEDULERS = ("cron", "crond", "anacron", "atd", "fcron")
"""Names of these daemons."""

LOCALE_SETTINGS = ("/etc/default/locale", "/etc/locale.conf")
"""Files of variables that `su` and logins set. The system's language is often a task's work."""

LOGIN_SETTINGS = "/etc/login.defs"
"""Settings of logins and accounts, by some of which `su` sets PATH and other variables."""

STARTUP = (
    *("/etc/profile", "/etc/profile.d/*", "/etc/bash.bashrc", "/etc/bashrc", "/etc/zsh/*", "/etc/environment"),
    *(
        "/etc/gitconfig",
        "/etc/pip.conf",
        "/etc/xdg/pip/pip.conf",
        "/usr/pip.conf",
        "/usr/local/pip.conf",
        "/etc/uv/uv.toml",
        "/etc/ld.so.conf",
        "/etc/ld.so.conf.d/*",
        "/etc/nsswitch.conf",
        "/etc/ssl/openssl.cnf",
        "/usr/lib/ssl/openssl.cnf",
        "/etc/pki/tls/openssl.cnf",
        "/etc/pam.conf",
        "/etc/pam.d/common-*",
        "/etc/pam.d/other",
        "/etc/pam.d/runuser*",
        "/etc/pam.d/su",
        "/etc/pam.d/su-l",
        "/etc/security/namespace.*",
        "/etc/security/pam_env.conf",
        *LOCALE_SETTINGS,
        LOGIN_SETTINGS,
        "/etc/apt/apt.conf",
        "/etc/apt/apt.conf.d/*",
        "/etc/dpkg/dpkg.cfg",
        "/etc/dpkg/dpkg.cfg.d/*",
        "/etc/python3*/*",
        "/etc/npmrc",
        "/etc/psqlrc",
        "/etc/postgresql-common/psqlrc",
    ),
    *(*CRON, "/tmp/conftest.py"),
)
"""Further files that shells, tools and logins read unasked."""

HOOKED = ("/etc/apt/", "/etc/dpkg/")
"""Directories of configurations that packages add to. Only those that name a program to run count."""

GIT_FILES = (".git", "config", "config.worktree", "commondir")
"""Files of a repository that say where it lies, and which programs git runs."""

GIT_DIRECTORIES = ("objects", "refs")
"""Directories beside a repository's `config`."""

LOGS = "/logs/verifier"
CLEAR_AWAY = r"""
clear_away() {
  for f; do rm -rf "$f" 2>/dev/null || { mv "$f" "$f.benchflow-gone" && rm -rf "$f.benchflow-gone"; } || return 1; done
}
"""
"""Shell function that removes directories, even if a process that still runs may write into them."""

VERIFIERS = (LOGS, "/tests", "/verifier")
"""Directories of the verifier."""

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
"""Programs that a verifier's script depends on. Those that tasks often upgrade (git, pip, compilers) are not listed."""

PYTHON_LANDMARKS = ("pyvenv.cfg", "pybuilddir.txt")
"""Files beside a Python's program, or in the directory above, that redirect it to another standard library."""

LOCALES = "/usr/lib/locale/"
"""Directory of the C library's locales, each of which is a directory."""

LOADER_CACHE = "/etc/ld.so.cache"
LOADER_FILES = ("/etc/ld.so.preload", LOADER_CACHE)
"""Files that make the dynamic loader load other libraries."""

TEST_PACKAGES = ("pytest", "_pytest", "pytest.py", "pluggy", "iniconfig")
"""Files and directories of pytest and its dependencies in a directory of packages."""

TEST_DISTRIBUTIONS = ("pytest-", "pluggy-", "iniconfig-")
"""Prefixes of the metadata directories of these packages; without these, pip installs the packages again."""

CODE = (".py", ".pyc", ".so", ".pth", "._pth", ".zip", ".pl", ".pm", ".rb", ".js", ".mjs", ".cjs", ".jar", ".sh")
"""Endings of files that interpreters and the loader execute."""

SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib32/", "/lib64/", "/opt/")
"""Directories of the system's programs."""

LOCAL = ("/opt/", "/usr/local/", "/root/", "/home/")
"""Directories of programs that no system package installs. Changing one is often the work."""

PACKAGE_RECORDS = ("/var/lib/dpkg/status", "/lib/apk/db/", "/var/lib/rpm/", "/usr/lib/sysimage/rpm/")
"""Files that package managers change whenever they install something."""

FIRST_SEARCHED = ("/etc/perl/", "/usr/local/lib/site_ruby/", "/usr/local/include/")
"""Directories outside of projects that interpreters and make search before those of the system's packages."""

INTERPRETED = ("/etc/perl/", "/usr/local/lib/site_ruby/")
"""Those of `FIRST_SEARCHED` into which no package puts code."""
