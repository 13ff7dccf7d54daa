"""The names that hardening knows: files that tools read by themselves, and the programs that a verifier stands on."""

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
"""What npm and its like read in a project; a package that is installed has a `package.json` of its own."""

RAKE_BUILD = ("Rakefile", "rakefile", "Rakefile.rb", "rakefile.rb")

MAKE_SOURCES = tuple(f"{name}.{ending}" for name in MAKE_BUILD for ending in ("sh", "c", "cc", "S", "o", "p", "f", "r"))
"""Files of which make would make a Makefile, by rules of its own."""

RUNNER_FILES = (".proverc", ".rspec", ".perltidyrc")
"""What runners of tests read where they start."""

PYTEST_FILES = ("pytest.ini", ".pytest.ini")
"""Configurations of pytest that count for nothing while `PYTEST_ADDOPTS` is pinned."""

HOOKS = ("sitecustomize", "usercustomize")
"""Modules that an interpreter imports by itself."""

SITE = ("site-packages", "dist-packages")
"""Directories whose `.pth` files an interpreter reads."""

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
"""What `python -m pytest` has imported from files by the time it loads the plugins that `-p` names: of the standard
library, with Python 3.11 to 3.13 and pytest 7 to 9, and of its own packages.

A module of one of these names in the directory where Python starts is taken in their place, before there is anything
that could look after it. Where such a module would be honest work, pytest would mostly not start with it: what most of
these are asked for, no other module has.
"""

STANDARD = frozenset(sys.stdlib_module_names) - {"test", "this", "antigravity"}
"""Modules of the standard library, as the engine's own Python has them. Many projects have a `test` of their own."""

DOTFILES = (
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".inputrc", ".kshrc"),
    *(".zshenv", ".zshrc", ".zprofile", ".zlogin", ".gitconfig", ".config/git/config", ".config/pip/pip.conf"),
    *(".pip/pip.conf", ".pydistutils.cfg", ".pypirc", ".curlrc", ".wgetrc", ".npmrc", ".config/uv/uv.toml"),
    *(".sqliterc", ".psqlrc", ".my.cnf", ".perldb", ".irbrc", ".pam_environment", ".config/sqlite3/sqliterc"),
    *(".config/curlrc", ".config/irb/irbrc", ".config/psql/psqlrc", ".config/go/env", ".jq", ".gdbinit", ".Rprofile"),
)
"""Below the verifier's home: read by shells and tools without being asked."""

CRON = ("/etc/crontab", "/etc/cron.*/*", "/var/spool/cron/*", "/var/spool/cron/crontabs/*", "/var/spool/cron/atjobs/*")
"""Jobs of cron and at, which stay as they are: their daemons stand still while a verifier runs."""

SCHEDULERS = ("cron", "crond", "anacron", "atd", "fcron")
"""Names of these daemons."""

LOCALE_SETTINGS = ("/etc/default/locale", "/etc/locale.conf")
"""Variables that `su` and logins set. What says which language the system speaks is often the work."""

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

HOOKED = ("/etc/apt/", "/etc/dpkg/")
"""Directories of configurations that packages add to. Only those count that name a program to be run."""

GIT_FILES = (".git", "config", "config.worktree", "commondir")
"""Of a repository: they say where it lies, and by which programs git does its work."""

GIT_DIRECTORIES = ("objects", "refs")
"""What lies beside a repository's `config`."""

LOGS = "/logs/verifier"
CLEAR_AWAY = r"""
clear_away() {
  for f; do rm -rf "$f" 2>/dev/null || { mv "$f" "$f.benchflow-gone" && rm -rf "$f.benchflow-gone"; } || return 1; done
}
"""
"""Shell: remove directories, even where something that may go on running still writes into them."""

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

PYTHON_LANDMARKS = ("pyvenv.cfg", "pybuilddir.txt")
"""Files by which a Python finds its standard library elsewhere, beside its program or above that."""

LOCALES = "/usr/lib/locale/"
"""Where the C library's locales lie, each a directory."""

LOADER_CACHE = "/etc/ld.so.cache"
LOADER_FILES = ("/etc/ld.so.preload", LOADER_CACHE)
"""What tells the loader to load other libraries."""

TEST_PACKAGES = ("pytest", "_pytest", "pytest.py", "pluggy", "iniconfig")
"""What pytest is made of, in a directory of packages."""

TEST_DISTRIBUTIONS = ("pytest-", "pluggy-", "iniconfig-")
"""How the names of the records of these packages begin: without them, pip installs the packages again."""

CODE = (".py", ".pyc", ".so", ".pth", "._pth", ".zip", ".pl", ".pm", ".rb", ".js", ".mjs", ".cjs", ".jar", ".sh")
"""Endings of what interpreters and the loader execute."""

SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib32/", "/lib64/", "/opt/")
"""Where programs of the system lie."""

LOCAL = ("/opt/", "/usr/local/", "/root/", "/home/")
"""Where programs lie that no package of the system's has brought. To change one is often the work."""

PACKAGE_RECORDS = ("/var/lib/dpkg/status", "/lib/apk/db/", "/var/lib/rpm/", "/usr/lib/sysimage/rpm/")
"""What package managers change whenever they install something."""

FIRST_SEARCHED = ("/etc/perl/", "/usr/local/lib/site_ruby/", "/usr/local/include/")
"""Places outside of projects where interpreters and make look before they look where a system's packages lie."""

INTERPRETED = ("/etc/perl/", "/usr/local/lib/site_ruby/")
"""Those of them that no package puts code into."""
