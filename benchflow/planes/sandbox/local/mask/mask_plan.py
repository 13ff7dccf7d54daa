"""The content of masks: layers above the host's root that hide files from sandboxes, without a single mount.

The host's mask is the same for all sandboxes and follows `policy`; a run's mask hides that run's own paths (the task's
source, jobs, state, store) wherever they lie. Both are lower layers of an overlay, so nothing inside can remove them,
and files that are written to a hidden place lie in the sandbox's own layer.

A mask covers the names that exist when it is made. Sandboxes that start with an older mask would see one that appears
later at the host's top level, so `Masks` makes it anew after changes.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from benchflow.errors import ConfigError, SandboxUnavailableError
from benchflow.planes.sandbox.local.mask import policy
from benchflow.planes.sandbox.local.mask.accounts import HOSTNAME, HOSTS, MACHINE_ID, Accounts, format_resolv_conf
from benchflow.planes.sandbox.local.mask.mask_layer import (
    Draft,
    Mask,
    MaskEntry,
    find_first_missing,
    list_ancestors,
    list_names,
    list_places,
)
from benchflow.planes.sandbox.local.mask.submounts import Submounts

__all__ = ["Mask", "make_host_mask", "make_image_mask", "make_run_mask"]

MAX_DEPTH = 64
"""Maximum depth of the search for private files in /etc."""
PROGRAMS = ("opt", "usr/local")
"""Other directories that are searched for private files."""
PROGRAMS_DEPTH = 4
"""Depth of the search there: deeper down, packages have their own thousands of files."""
CONFIGURATION_BYTES = 1 << 20
"""Bytes of a configuration file that are searched for credentials."""


def make_host_mask(root: Path = Path("/"), *, nameservers: Sequence[str] = ()) -> Mask:
    """Return the mask for every sandbox of this host.

    Args:
        root: Root directory of the host.
        nameservers: Addresses of the sandboxes' resolvers.

    Raises:
        SandboxUnavailableError: The host can't be masked, because of its filesystems or links.
    """
    draft = Draft(root)
    mounts = Submounts(root)
    accounts = Accounts(root)
    needed = frozenset(_list_needed(root))
    _require_maskable(root, mounts)
    _hide_mounts(draft, mounts)
    _hide_top(draft)
    _hide_var(draft)
    _hide_names(draft, needed)
    _hide_private(draft, "etc", MAX_DEPTH)
    for name in PROGRAMS:
        place = list_places(root, Path("/", name))[-1]
        if not draft.covers(place):
            _hide_private(draft, place, PROGRAMS_DEPTH)
    _hide_homes(draft, mounts, accounts, needed)
    _generate(draft, accounts, nameservers)
    mask = draft.finish()
    assert mask is not None  # some directories are always made
    return mask


def make_run_mask(hidden: Sequence[Path], host: Mask, root: Path = Path("/")) -> Mask | None:
    """Return a layer above the host's mask for the paths that it does not cover; None if it covers them all.

    Args:
        hidden: Absolute paths to hide, which need not exist.
        host: The host's mask.
        root: Root directory of the host.

    Raises:
        ConfigError: Sandboxes can't do without one of the paths, or it is not absolute.
    """
    draft = Draft(root, host)
    mounts = Submounts(root)
    needed = frozenset(_list_needed(root))
    for path in hidden:
        for place in _list_everywhere(root, path, mounts):
            if place in needed:
                raise ConfigError(
                    "this must be hidden from sandboxes, but they need what lies in it",
                    file=str(path),
                    remedy="move it to a directory of its own, e.g. below a home directory",
                )
            missing = find_first_missing(root, place)
            if missing is not None:
                draft.hide(missing)
    return draft.finish()


def make_image_mask(root: Path, *, nameservers: Sequence[str] = ()) -> Mask:
    """Return the layer above the files of a ready image: the files that each sandbox has of its own, like a container.

    Args:
        root: Root directory of the image.
        nameservers: Addresses of the sandboxes' resolvers.
    """
    draft = Draft(root)
    for name in ("dev", "proc", "sys"):
        # The image may have a link in its place, which the mount would follow.
        draft.add(MaskEntry(name, "opaque", 0o755))
    _generate_names(draft, nameservers)
    mask = draft.finish()
    assert mask is not None
    return mask


def _list_needed(root: Path) -> Iterator[str]:
    """Yield the paths that every sandbox needs, links followed, with all directories that hold them."""
    found = [match for pattern in policy.NEEDED_PATTERNS for match in glob.glob(pattern, root_dir=root)]  # noqa: PTH207
    for name in (*policy.NEEDED, *found):
        for place in (name, *list_places(root, Path("/", name))):
            yield from (place, *list_ancestors(place), "")


def _list_everywhere(root: Path, path: Path, mounts: Submounts) -> Iterator[str]:
    """Yield all places at which a sandbox would see a path: those of `list_places`, and the sources of bind mounts."""
    for place in list_places(root, path):
        yield place
        if (source := mounts.behind(place)) is not None:
            yield source


def _require_maskable(root: Path, mounts: Submounts) -> None:
    """Raise `SandboxUnavailableError` for a host whose sandboxes would lack programs, or see unmasked directories."""
    for name in mounts.foreign():
        if name in policy.OWN_FILESYSTEM:
            raise SandboxUnavailableError(
                f"/{name} is a filesystem of its own, so local sandboxes would find it empty",
                remedy="use --sandbox docker, or a machine with /usr, /etc and /var on its root filesystem",
            )
    for name in ("usr", "etc", "var", "var/lib", "var/cache"):
        if os.path.islink(root / name):  # noqa: PTH114
            raise SandboxUnavailableError(
                f"/{name} is a symbolic link, so local sandboxes could not hide what lies in it",
                remedy="use --sandbox docker",
            )


def _hide_mounts(draft: Draft, mounts: Submounts) -> None:
    """Hide what lies below the host's mount points."""
    # The host does not see what lies below a mount point, so rules made for what it sees would not apply.
    for place in mounts.foreign():
        if not policy.TOP.match(place.split("/", 1)[0]):
            continue
        try:
            status = os.stat(draft.whole(place))  # noqa: PTH116
        except FileNotFoundError:
            # The mount point was unmounted and removed meanwhile.
            continue
        if stat.S_ISDIR(status.st_mode):
            draft.empty(place, status)
        else:
            draft.hide(place)


def _hide_top(draft: Draft) -> None:
    """Empty the directories of `EMPTY`, and hide other names at the top level that are not allowed."""
    for path, mode in policy.EMPTY.items():
        draft.add(MaskEntry(path, "opaque", mode))
    for entry in list_names(draft.whole("")):
        if not policy.TOP.match(entry.name):
            draft.hide(entry.name)


def _hide_var(draft: Draft) -> None:
    """Hide names in /var, /var/cache and /var/lib that are not allowed."""
    for entry in list_names(draft.whole("var")):
        if entry.name not in policy.VAR:
            draft.hide(f"var/{entry.name}")
        elif entry.name in ("run", "lock") and not entry.is_symlink() and (status := _read_status(entry.path)):
            draft.empty(f"var/{entry.name}", status)
    for directory, allowed in (("var/cache", policy.VAR_CACHE), ("var/lib", policy.VAR_LIB)):
        for entry in list_names(draft.whole(directory)):
            if not allowed.match(entry.name):
                draft.hide(f"{directory}/{entry.name}")


def _hide_names(draft: Draft, needed: Container[str]) -> None:
    """Empty and hide the paths that the policy names."""
    for path in policy.EMPTIED:
        place = list_places(draft.root, Path("/", path))[-1]
        status = _read_status(draft.whole(place))
        if status and stat.S_ISDIR(status.st_mode) and place not in needed:
            draft.empty(place, status)
    for path in policy.HIDDEN:
        for place in list_places(draft.root, Path("/", path)):
            if stat.S_ISDIR(_read_mode(draft.whole(place.rpartition("/")[0]))) and place not in needed:
                draft.hide(place)


def _hide_private(draft: Draft, directory: str, depth: int) -> None:
    """Hide private files in a directory: those that others may not read, and those with a secret's name or content.

    Args:
        draft: The mask.
        directory: A directory that is not hidden itself.
        depth: Levels of directories to search.
    """
    etc = directory.startswith("etc")
    named = policy.HIDDEN_IN_ETC if etc and not f"{directory}/".startswith(policy.SHOWN) else policy.PRIVATE
    for entry in list_names(draft.whole(directory)):
        path = f"{directory}/{entry.name}"
        if draft.hides(path):
            continue
        mode = _read_mode(entry.path)
        if not mode:
            # The file was removed meanwhile.
            continue
        if _is_closed(mode) or named.match(entry.name):
            draft.hide(path)
        elif stat.S_ISDIR(mode):
            if depth > 1:
                _hide_private(draft, path, depth - 1)
        elif etc and policy.CONFIGURATION.match(path) and _has_credential(entry.path):
            draft.hide(path)


def _is_closed(mode: int) -> bool:
    """Return whether others may not read a file, or not list and enter a directory. Sockets and devices are closed."""
    if stat.S_ISLNK(mode):
        return False
    if stat.S_ISDIR(mode):
        return mode & 0o005 != 0o005
    return not stat.S_ISREG(mode) or not mode & 0o004


def _has_credential(path: str) -> bool:
    """Return whether the beginning of a configuration file contains a credential."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return policy.CREDENTIAL.search(file.read(CONFIGURATION_BYTES)) is not None
    except OSError:
        return False  # a link to nothing


def _hide_homes(draft: Draft, mounts: Submounts, accounts: Accounts, needed: Container[str]) -> None:
    """Hide the homes of people's accounts."""
    homes = {account.home for account in accounts.everyone if account.person and account.home.startswith("/")}
    for home in sorted(homes):
        for place in _list_everywhere(draft.root, Path(home), mounts):
            # An account may have `/` or `/usr/bin` as its home: then it keeps nothing of its own there.
            if place not in needed and stat.S_ISDIR(_read_mode(draft.whole(place))):
                draft.hide(place)


def _generate(draft: Draft, accounts: Accounts, nameservers: Sequence[str]) -> None:
    """Add the generated files: accounts, machine id, names and resolvers."""
    private = 0o640 if accounts.shadow_group else 0o600
    for name, text in (("passwd", accounts.passwd()), ("group", accounts.group())):
        draft.add(_make_file(f"etc/{name}", text))
    for name, text in (("shadow", accounts.shadow()), ("gshadow", accounts.gshadow())):
        draft.add(_make_file(f"etc/{name}", text, private, accounts.shadow_group))
    for name in ("subuid", "subgid", "environment"):
        draft.add(_make_file(f"etc/{name}", ""))
    draft.add(_make_file("etc/machine-id", f"{MACHINE_ID}\n", 0o444))
    _generate_names(draft, nameservers)
    for name in ("system", "user"):
        if draft.covers("etc/systemd"):
            draft.add(MaskEntry(f"etc/systemd/{name}", "directory"))
    overrides = list_places(draft.root, Path("/var/lib/dpkg/statoverride"))[-1]
    if stat.S_ISREG(_read_mode(draft.whole(overrides))) and not draft.covers(overrides):
        text = (draft.root / overrides).read_text(encoding="utf-8", errors="surrogateescape")
        draft.add(_make_file(overrides, accounts.overrides(text)))


def _generate_names(draft: Draft, nameservers: Sequence[str]) -> None:
    """Add the files of host names and resolvers."""
    draft.add(_make_file("etc/hosts", HOSTS))
    draft.add(_make_file("etc/hostname", f"{HOSTNAME}\n"))
    draft.add(_make_file("etc/resolv.conf", format_resolv_conf(nameservers)))
    draft.add(MaskEntry("etc/mtab", "link", content=b"/proc/self/mounts"))


def _make_file(path: str, text: str, mode: int = 0o644, gid: int = 0) -> MaskEntry:
    return MaskEntry(path, "file", mode, 0, gid, text.encode(errors="surrogateescape"))


def _read_mode(path: str) -> int:
    """Return the mode of a path, 0 if there is nothing. A link is not followed."""
    status = _read_status(path)
    return status.st_mode if status else 0


def _read_status(path: str) -> os.stat_result | None:
    """Return the status of a path, None if there is nothing. A link is not followed."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
