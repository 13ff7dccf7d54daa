"""Search new and changed files of the workspace, for notes: a shell script that the survey runs.

It finds names of the verifier's directories, triggers and views of databases, objects that are equal to everything, and
pytest plugins. As all of it is for notes, it is bounded: large files, and files beyond a number, are not read.
"""

from __future__ import annotations

import shlex

_MAX_SMALL, _MAX_BROUGHT, _MAX_LARGE = 160_000, 40_000, 1000
"""Bytes of the lists of paths that are read: about 4000 small files, 1000 small ones of installers, and 20 large ones.
"""

_SMALL_BLOCKS, _LARGE_BLOCKS = 128, 32 * 1024
"""Maximum sizes of small and large files, in blocks of 512 bytes: 64 KiB and 16 MiB."""

_MAX_HITS = 200
"""Maximum number of files with a match that are read a second time."""

_MAX_STATEMENTS = 20

_WORDS = ("/tests", "/verifier", "/solution", "/oracle", "SQLite format 3", "__eq__")
# Matches an absolute path only, not the end of a longer one: src/tests/, ./tests/, $HOME/tests/, https://host/tests/.
_NAMES = r"(^|[^A-Za-z0-9_.~*})>/-])/(tests|verifier|logs/verifier|solution|oracle)(/|[^A-Za-z0-9_.-]|$)"
_ACTS = "CREATE +((TEMP|TEMPORARY) +)?(TRIGGER|VIEW) +[^ ]{1,60}"
# Matches a method whose first statement, on the same line or the next, returns True.
_EQUAL = r"__eq__ *= *lambda[^:]*: *True|__eq__ *[(].*: *return +True|^[[:space:]]+return +True"
_BROUGHT = r"\( -path '*/node_modules/*' -o -path '*-packages/*' -o -path '*/.git/*' \)"
_SMALL = f"-type f -size -{_SMALL_BLOCKS + 1}"
_LARGE = f"-type f -size +{_SMALL_BLOCKS} -size -{_LARGE_BLOCKS + 1}"
_NODE, _POINTS = "-path '*/node_modules/*'", "-path '*-info/entry_points.txt'"
_HOOKS = "! -type d -path '*/hooks/*' -perm -0100"
_FUTURE = "-type f $later"
_MAGIC = "d9d505f9|377f0682|377f0683"
_JOURNALS = r"-type f -size +0 \( -name '*-wal' -o -name '*-journal' \)"

FILES = ("small", "brought", "large", "node", "points", "hooks", "journals", "dashed", "future")
"""Names of the lists of files to read, which `PASS` or `PASSES` make."""

# $since: time of the survey before, empty for the first. Lists with $recent have the files that are new or changed
# since then or, in a first survey, in the very second of it: these are in the baseline and so not reported as new
# later. $later: expression for files with a time in the future.
PASS = rf"""{_SMALL} -newerct "@${{since:-0}}" ! {_BROUGHT} -fprint0 small , \
    {_SMALL} -newerct "@${{since:-0}}" {_BROUGHT} -fprint0 brought , \
    {_LARGE} -newerct "@${{since:-0}}" -fprint0 large , \
    {_NODE} -newerct "@$recent" -fprint0 node , \
    {_POINTS} -newerct "@$recent" -fprint0 points , \
    {_HOOKS} -newerct "@$recent" -fprint0 hooks , \
    {_JOURNALS} -newerct "@$recent" -fprint0 journals , \
    -name '-*' -fprint0 dashed , \
    {_FUTURE} -fprint0 future"""
"""Expressions for `find` that make these lists in one pass through the workspace."""

PASSES = rf"""find "$@" -xdev {_SMALL} ! {_BROUGHT} -print0 >small
    find "$@" -xdev {_SMALL} {_BROUGHT} -print0 >brought
    find "$@" -xdev {_LARGE} -print0 >large
    find "$@" -xdev {_NODE} -print0 >node
    find "$@" -xdev {_POINTS} -print0 >points
    find "$@" -xdev {_HOOKS} -print0 >hooks
    find "$@" -xdev {_JOURNALS} -print0 >journals
    find "$@" -xdev -name '-*' -print0 >dashed
    find "$@" -xdev {_FUTURE} -print0 >future"""
"""Commands that make these lists, of the directories in `$@`, with a `find` that has no `-newerct`. They list all
files; the comparison of both surveys shows which are new.
"""

# Starting a process takes a millisecond, so none is started if there is nothing to read.
READ = rf"""(
  LC_ALL=C; export LC_ALL
  files() {{ tr '\n' '\0' | xargs -0 "$@" /dev/null 2>/dev/null; }}
  {{ head -c {_MAX_SMALL} small; [ ! -s brought ] || head -c {_MAX_BROUGHT} brought; head -c {_MAX_LARGE} large; }} |
    xargs -0 grep -lF {" ".join(f"-e {shlex.quote(word)}" for word in _WORDS)} /dev/null 2>/dev/null >hits
  if [ -s hits ]; then
    head -n {_MAX_HITS} hits >few
    files grep -lE {shlex.quote(_NAMES)} <few | tr '\n' '\0' >naming
    files grep -lF 'SQLite format 3' <few | while IFS= read -r f; do
      case $f in *-wal) ;; *) [ "$(head -c 15 "$f" | tr -d '\0')" = "SQLite format 3" ] || continue;; esac
      tr '\t\n\r' '   ' <"$f" | tr -d '\0' | tr -c ' -~' '\n' | grep -oiE {shlex.quote(_ACTS)} | sort -u |
        head -n {_MAX_STATEMENTS} | while IFS= read -r s; do printf '%s\0%s\0' "$f" "$s"; done
    done >acting
    files grep -lF __eq__ <few | while IFS= read -r f; do
      ! grep -A1 -E '__eq__ *[(=]' "$f" | grep -qE {shlex.quote(_EQUAL)} || printf '%s\0' "$f"
    done >equal
  fi
  if [ -s journals ]; then
    tr '\0' '\n' <journals | while IFS= read -r f; do
      case $(od -An -tx1 -N4 "$f" | tr -d ' ') in {_MAGIC}) ;; *) continue;; esac
      printf '%s\0' "$f"
      [ -e "${{f%-*}}" ] || printf '%s\0' "$f" >&3
    done >sqlite 3>orphans
    mv sqlite journals
  fi
  [ ! -s points ] || xargs -0 grep -l '^\[pytest11\]' /dev/null <points 2>/dev/null | head -n {_MAX_HITS} |
    while IFS= read -r f; do
      sed -n '/^\[pytest11\]/,/^\[/{{s/^[ \t]*\([A-Za-z0-9_.-]*\)[ \t]*=.*/\1/p;}}' "$f" |
        while IFS= read -r s; do printf '%s\0%s\0' "$f" "$s"; done
    done >plugins
  [ ! -s node ] || tr '\0' '\n' <node |
    sed -n 's#^\(.*/node_modules/\(@[^/]*/\)\{{0,1\}}[^/.@][^/]*\).*#\1#p' | sort -u | tr '\n' '\0' >packages
)"""
"""Script that reads these files, and makes the lists in `LISTS`."""

LISTS = ("naming", "acting", "equal", "plugins", "packages", "hooks", "journals", "orphans", "dashed", "future")
"""Names of the lists that the survey returns."""
