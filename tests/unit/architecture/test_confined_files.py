"""Files whose names a sandbox, an agent or an archive can choose are opened by `confined` and `archive_reader`.

All other modules that open, list, copy, change or unpack by path are in `HOST`, each with the reason why nobody but
this host chooses the names that it uses, and why nothing but this host has written what is on the way to them.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

import pytest
from support.paths import ROOT

PACKAGE = ROOT / "benchflow"

_STATE = "the state directory, by names that the host makes"
_RESULTS = "the host's own files of results, by names that the host makes"
_INSIDE = "runs in the sandbox, or in its namespaces: all that it opens is the sandbox's own"
_TASK = "a task directory: `load` refuses what leads out before any file is read, and a pack holds nothing that does"
_NOTES = "the workers' notes about an agent, in a directory that no sandbox mounts"
_UPLOADED = "what the host uploads, which nothing changes meanwhile: a link goes as a link"
_IN_ROOT = "the last part of a name, through no link, in a directory that `confined` has opened"
_LOWER = "a layer below sandboxes, which nothing changes any more: each part of a name is looked at by lstat"
_KERNEL = "what the kernel tells, and control groups"

HOST: dict[str, str] = {
    "config_file.py": "configurations that the user names",
    "cli/": "what the user names, and results by names that the host makes",
    "gateway/": "the gateway's own records, prices and sockets",
    "llm_apis/side_calls.py": "a table of the package",
    "testing/": "programs of tests: their own directories",
    "trajectories/": "journals and trees that the host writes",
    "results/": _RESULTS,
    "planes/agent/toolbox/": "programs of agents, checked by their digests, in the host's own directory",
    "planes/environment/helper/": _INSIDE,
    "planes/sandbox/local/helper/": _INSIDE,
    "planes/sandbox/local/mask/": "the host's own files, and layers that the host makes",
    "planes/sandbox/local/store/": "the store's own directories; of a sandbox's files it only takes whole volumes",
    "planes/sandbox/docker/host_processes.py": "the kernel's files of processes",
    "activities/handover.py": _STATE,
    "activities/leftovers.py": _STATE,
    "activities/reaper.py": _STATE,
    "hosting/clean_room.py": _RESULTS,
    "hosting/worker_host.py": _STATE,
    "hosting/hosted.py": "the state directory, and the directory of a rollout's results",
    "hosting/image_configs.py": _TASK,
    "hosting/checkpoint_records.py": _STATE,
    "hosting/model.py": _STATE,
    "hosting/out_of_memory.py": _STATE,
    "hosting/parent_calls.py": _RESULTS,
    "hosting/scored_step.py": _RESULTS,
    "hosting/step_report.py": _RESULTS,
    "hosting/fidelity.py": _STATE,
    "hosting/room_trial.py": _RESULTS,
    "hosting/agent_baseline.py": "evidence that the host has kept, copied with its links as they are",
    "hosting/hosted_world.py": "records in the state directory, and evidence that the host writes",
    "host_files.py": "files that the caller names",
    "process_identity.py": _KERNEL,
    "enclosure.py": _STATE,
    "host.py": _STATE,
    "jobs/": "what the user names, and results by names that the host makes",
    "log.py": _STATE,
    "log_files.py": _STATE,
    "paths.py": _STATE,
    "temporal_server.py": _STATE,
    "planes/agent/notes.py": _NOTES,
    "planes/agent/acp/acp_agent.py": _STATE,
    "planes/agent/acp/sent.py": _NOTES,
    "planes/agent/function/": _NOTES,
    "planes/agent/acpx/acpx_session.py": _NOTES,
    "planes/agent/agent_check.py": "an agent that the user tries on this host, without a sandbox",
    "planes/agent/registry.py": "records of agents that come with the package, or that the user names",
    "planes/environment/world_context.py": _STATE,
    "planes/environment/environment_code.py": "the module of an environment that the user names",
    "planes/environment/world_helper.py": "programs of the package",
    "planes/environment/services.py": "programs of the package",
    "planes/reward/hardening/baseline.py": _RESULTS,
    "planes/reward/hardening/escaping_archives.py": "archives in memory, of which no member is written",
    "planes/reward/hardening/verifier_environment.py": "programs of the package",
    "planes/reward/hardening/python_start.py": _INSIDE,
    "planes/reward/hardening/pytest_session.py": _INSIDE,
    "planes/reward/uploads.py": _UPLOADED,
    "planes/sandbox/__init__.py": _KERNEL,
    "planes/sandbox/host_code.py": "the kernel's files of processes; what one has mapped, by the kernel's handle of it",
    "planes/sandbox/host_table.py": "the kernel's files of processes",
    "planes/sandbox/docker/forks.py": _STATE,
    "planes/sandbox/docker/oci.py": "the store's blobs, by digests alone; the daemon's export; a scratch directory",
    "planes/sandbox/docker/container_processes.py": _STATE,
    "planes/sandbox/driven/command_executions.py": _STATE,
    "planes/sandbox/driven/retained_outputs.py": _STATE,
    "planes/sandbox/driven/started_sandboxes.py": _STATE,
    "planes/sandbox/driven/sandbox_records.py": _STATE,
    "planes/sandbox/docker/container_records.py": _STATE,
    "planes/sandbox/docker/restores.py": _STATE,
    "planes/sandbox/docker/uppers.py": "a layer, which nothing changes any more: taken entry by entry, by lstat",
    "planes/sandbox/image_facts.py": _TASK,
    "planes/sandbox/local/cgroups.py": _KERNEL,
    "planes/sandbox/local/helper_client.py": _KERNEL,
    "planes/sandbox/local/fingerprint.py": "the host's own programs",
    "planes/sandbox/local/firewall.py": _KERNEL,
    "planes/sandbox/local/local_images.py": "the record beside an image's files, which sandboxes do not see",
    "planes/sandbox/local/cgroup_limits.py": _KERNEL,
    "planes/sandbox/local/machine.py": _STATE,
    "planes/sandbox/local/command_outputs.py": _STATE,
    "planes/sandbox/local/local_processes.py": _STATE,
    "planes/sandbox/local/network.py": _KERNEL,
    "planes/sandbox/local/local_packs.py": "GNU tar, into a new volume: it writes through no link that leads out",
    "planes/sandbox/local/local_records.py": _STATE,
    "planes/sandbox/local/machine_trial.py": "the host's own files",
    "planes/sandbox/local/volumes.py": "directories beside a sandbox's files, which it does not see",
    "planes/sandbox/sandbox_memory.py": _STATE,
    "planes/sandbox/rebuilds.py": _STATE,
    "planes/sandbox/timeouts.py": _STATE,
    "planes/sandbox/scratch.py": _STATE,
    "planes/sandbox/transcript.py": _STATE,
    "planes/sandbox/directory_trees.py": "a tree in which nothing runs: taken entry by entry, by lstat, into a new one",
    "results/stored_rollouts.py": _RESULTS,
    "hosting/stored_scoring.py": _RESULTS,
    "rescoring/found_tasks.py": _STATE,
    "rubric.py": _RESULTS,
    "stack.py": _STATE,
    "store.py": "blobs by their digests, and files that the caller names",
    "tasks/find.py": _TASK,
    "tasks/scaffold.py": "a new task directory",
    "tasks/sections.py": _TASK,
}
"""Modules, and packages of them, that touch no file whose name a sandbox, an agent or an archive can choose."""

HOST_FUNCTIONS: dict[str, str] = {
    "hosting/session_files.py::store_journals": "the directory that is made for the copies",
    "planes/agent/journals.py::copy_journals": "names of notes",
    "hosting/reporting.py::_collect_logs": _RESULTS,
    "hosting/reporting.py::_collect_artifact": "the directory of all artifacts",
    "hosting/reporting.py::_fetch_child": _RESULTS,
    "hosting/portable.py::_pack_record": "the archive, in a scratch directory",
    "hosting/portable.py::_extract": "the archive, and the directory of a rollout's results",
    "planes/environment/rows.py::read_record": "the record that the host has written",
    "planes/environment/rows.py::open_database": "SQLite takes a path alone; nothing else writes the file",
    "planes/environment/world_state.py::fetch": "the record, and the directory that is brought as a whole",
    "planes/environment/world_state.py::remove_directories": "removes a whole directory, by descriptors",
    "planes/reward/evidence.py::_download": "the directory of inputs",
    "planes/reward/evidence.py::_store": "the archive that the host writes",
    "planes/reward/evidence.py::_write_record": _RESULTS,
    "planes/reward/verify.py::run_soft": _RESULTS,
    "planes/reward/verify.py::_fetch": "the directory of a verifier's files",
    "planes/agent/acp/wire.py::make": "the directory that the sandbox mounts",
    "planes/sandbox/archives.py::_walk": _UPLOADED,
    "planes/sandbox/archives.py::_add": _UPLOADED,
    "planes/sandbox/archives.py::unpack_file": "the directory that the host names",
    "planes/sandbox/archives.py::unpack_tree": "the directory that the host names",
    "planes/sandbox/archives.py::_write": "times, of a file that is open",
    "planes/sandbox/build_context.py::compute_digest": _TASK,
    "planes/sandbox/build_context.py::read_context": "the names of a context's files",
    "planes/sandbox/build_context.py::read_files": "the names of a context's files",
    "planes/sandbox/docker/layers.py::copy": "the daemon's own records, and the archive that is written",
    "planes/sandbox/docker/layers.py::extract_layers": "the daemon's export, whose names are not used",
    "planes/sandbox/docker/layers.py::_decompress": "the daemon's export, whose names are not used",
    "planes/sandbox/docker/layers.py::stream_image": "layers in a scratch directory",
    "planes/sandbox/docker/outside_reader.py::_open_root": _KERNEL,
    "planes/sandbox/local/build/copied_files.py::": "kinds of compression, of a file that is open",
    "planes/sandbox/local/build/copied_files.py::_resolve": _TASK,
    "planes/sandbox/local/build/copied_files.py::digest": _TASK,
    "planes/sandbox/local/build/copied_files.py::_add": _TASK,
    "planes/sandbox/local/local_files.py::_unnamed": _STATE,
    "planes/sandbox/overlays.py::find_original": _LOWER,
    "planes/sandbox/overlays.py::read_original": _LOWER,
    "planes/sandbox/overlays.py::list_names": _LOWER,
    "planes/sandbox/overlays.py::_read_attribute": _LOWER,
    "planes/sandbox/overlays.py::_read_state": "attributes, of a file that is open",
    "planes/sandbox/local/ready/image_archive.py::layer": "decompresses what is open",
    "planes/sandbox/local/ready/ready_images.py::_from_engine": "the daemon's export, in a scratch directory",
    "planes/sandbox/local/ready/ready_images.py::_unpack": "a new volume",
    "planes/sandbox/local/ready/root_files.py::__init__": "a directory in a new volume",
    "planes/sandbox/local/ready/root_files.py::apply": _IN_ROOT,
    "planes/sandbox/local/ready/root_files.py::finish": _IN_ROOT,
    "planes/sandbox/local/ready/root_files.py::_make": _IN_ROOT,
    "planes/sandbox/local/ready/root_files.py::_write": _IN_ROOT,
    "planes/sandbox/local/ready/root_files.py::_link": _IN_ROOT,
    "planes/sandbox/local/ready/root_files.py::_dress": _IN_ROOT,
    "planes/sandbox/local/ready/root_files.py::_set_attributes": _IN_ROOT,
    "planes/sandbox/local/ready/root_files.py::_empty": _IN_ROOT,
    "planes/sandbox/local/ready/root_files.py::_remove": _IN_ROOT,
    "planes/sandbox/local/ready/root_files.py::_parent": _IN_ROOT,
    "hosting/stored_judging.py::_unpack": "the archive itself",
    "secrets.py::of_job": _STATE,
    "secrets.py::store_secrets": _STATE,
    "secrets.py::list_stored_secrets": _STATE,
    "secrets.py::remove_secrets": _STATE,
    "tasks/layout.py::read_steps": "the names of the steps' directories",
    "tasks/migrate.py::_list_moves": "a task directory of the user's own, changed in place at their word",
    "tasks/migrate.py::_carry_out": "a task directory of the user's own, changed in place at their word",
    "tasks/migrate.py::_find_warnings": "a task directory of the user's own, changed in place at their word",
    "tasks/pack.py::write_pack": "the pack that is written",
    "tasks/pack.py::unpack": "the new directory as a whole",
    "tasks/pack.py::_write_members": "the pack itself",
}
"""In modules that use `confined` or `archive_reader`, which therefore can't be in `HOST`: what else they open there."""

OPENERS = {"confined.py", "archive_reader.py"}


_OS = {
    *("open", "listdir", "scandir", "walk", "fwalk", "mkdir", "makedirs", "mkfifo", "mknod", "link", "symlink"),
    *(
        "readlink",
        "remove",
        "removedirs",
        "rename",
        "renames",
        "replace",
        "rmdir",
        "unlink",
        "chmod",
        "lchmod",
        "chown",
    ),
    *("lchown", "utime", "truncate", "setxattr", "getxattr", "listxattr", "removexattr", "startfile"),
}
_MODULES = {
    "os": _OS,
    "io": {"open", "open_code", "FileIO"},
    "shutil": {
        *("copy", "copy2", "copyfile", "copytree", "copymode", "copystat", "move", "rmtree", "chown"),
        *("make_archive", "unpack_archive"),
    },
    "tarfile": {"open", "TarFile", "is_tarfile"},
    "zipfile": {"ZipFile", "PyZipFile", "is_zipfile"},
    "gzip": {"open", "GzipFile"},
    "bz2": {"open", "BZ2File"},
    "lzma": {"open", "LZMAFile"},
    "glob": {"glob", "iglob"},
    "sqlite3": {"connect", "Connection"},
    "fileinput": {"input", "FileInput"},
    "linecache": {"getline", "getlines"},
    "mmap": {"mmap"},
    "filecmp": {"cmp", "cmpfiles", "dircmp"},
}
"""Functions of modules that take a path."""

_METHODS = {
    *("read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "glob", "rglob", "symlink_to", "hardlink_to"),
    *("unlink", "mkdir", "rmdir", "chmod", "lchmod", "touch", "readlink", "extract", "extractall", "create_archive"),
}
"""Names that only methods of `Path`, of archives and of the docker library's helpers for them have here."""

_PROGRAMS = {"tar", "rm", "cp", "mv", "ln", "unzip", "gzip", "rsync", "install"}


@functools.cache
def uses(source: str) -> tuple[tuple[str, str], ...]:
    """Return what a module does with paths: the outermost function or class, and `line: call`."""
    return tuple(_uses(source))


def _uses(source: str) -> Iterator[tuple[str, str]]:
    """Yield what a module does with paths: the outermost function or class, and `line: call`."""
    tree = ast.parse(source)
    aliases = _aliases(tree)
    for outermost in tree.body:
        is_named = isinstance(outermost, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for method in outermost.body if isinstance(outermost, ast.ClassDef) else [outermost]:
            names = [
                node.name for node in (outermost, method) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            name = names[-1] if names else outermost.name if is_named else ""  # type: ignore[attr-defined]
            for use in _uses_in(method, aliases):
                yield name, use


def _uses_in(part: ast.AST, aliases: dict[str, str]) -> Iterator[str]:
    own = {node.arg for node in ast.walk(part) if isinstance(node, ast.arg)}
    own |= {node.name for node in ast.walk(part) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    calls = {id(node.func): node for node in ast.walk(part) if isinstance(node, ast.Call)}
    # What is awaited is a sandbox's `read_bytes`, and no path's.
    awaited = {
        id(node.value.func) for node in ast.walk(part) if isinstance(node, ast.Await) and hasattr(node.value, "func")
    }
    for node in ast.walk(part):
        # A function that is only named may be handed on, to a thread for example; a class is the type of something.
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = aliases.get(node.value.id, "")
            is_type = node.attr[0].isupper() and id(node) not in calls
            if node.attr in _MODULES.get(module, ()) and not is_type and not _is_in_memory(calls.get(id(node))):
                yield f"{node.lineno}: {module}.{node.attr}"
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in own:
            module, _, function = aliases.get(node.id, "").rpartition(".")
            if function in _MODULES.get(module, ()) or node.id == "open":
                yield f"{node.lineno}: {node.id}"
        is_method = isinstance(node, ast.Attribute) and node.attr in _METHODS and id(node) not in awaited
        if is_method and not _is_of_module(node, aliases):
            yield f"{node.lineno}: .{node.attr}"
        if isinstance(node, ast.Call):
            yield from _calls(node, aliases)


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Return what the imported names stand for, with their modules."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _is_of_module(node: ast.Attribute, aliases: dict[str, str]) -> bool:
    """Tell whether this is a function of an imported module, as `ast.walk` is; `Path.read_text` is none."""
    return isinstance(node.value, ast.Name) and aliases.get(node.value.id, "") in _MODULES


def _is_in_memory(call: ast.Call | None) -> bool:
    """Tell whether this is `tarfile.open` that only writes, to a file that is open."""
    given = {keyword.arg: keyword.value for keyword in call.keywords} if call else {}
    mode = given.get("mode")
    return "fileobj" in given and isinstance(mode, ast.Constant) and str(mode.value).startswith(("w", "x"))


def _calls(node: ast.Call, aliases: dict[str, str]) -> Iterator[str]:
    """Yield what is told from others of its name only by its arguments."""
    if not isinstance(node.func, ast.Attribute):
        return
    first = node.args[0] if node.args else None
    is_module = _is_of_module(node.func, aliases)
    if node.func.attr == "open" and not is_module:
        mode = next((keyword.value for keyword in node.keywords if keyword.arg == "mode"), first)
        # `Path.open`: what else is called so takes no mode.
        is_mode = isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) <= set("rwaxbt+")
        if is_mode or {keyword.arg for keyword in node.keywords} & {"encoding", "buffering", "newline", "errors"}:
            yield f"{node.lineno}: .open"
    # `str.replace` takes two, and `ConfinedDirectory.rename` as well; `datetime.replace` takes names.
    if node.func.attr in ("rename", "replace") and len(node.args) == 1 and not node.keywords and not is_module:
        yield f"{node.lineno}: .{node.func.attr}"
    if node.func.attr == "walk" and not (isinstance(node.func.value, ast.Name) and node.func.value.id == "ast"):
        yield f"{node.lineno}: .walk"
    if isinstance(node.func.value, ast.Name) and aliases.get(node.func.value.id) == "subprocess":
        argv = first.elts[0] if isinstance(first, ast.List | ast.Tuple) and first.elts else None
        if isinstance(argv, ast.Constant) and argv.value in _PROGRAMS:
            yield f"{node.lineno}: {argv.value}"


def modules() -> Iterator[tuple[str, str]]:
    """Yield the package's modules, by their paths in it, with their source."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), path.read_text()


def places(name: str, source: str) -> Iterator[str]:
    """Yield what a module may not open: `module::function:line: call`."""
    if name in OPENERS:
        return
    uses_confined = _uses_confined(source)
    if not uses_confined and any(name == each or (each.endswith("/") and name.startswith(each)) for each in HOST):
        return
    for function, use in uses(source):
        if not (uses_confined and f"{name}::{function}" in HOST_FUNCTIONS):
            yield f"{name}::{function}:{use}"


def _uses_confined(source: str) -> bool:
    return "from benchflow.confined import" in source or "from benchflow.archive_reader import" in source


def test_only_confined_opens_what_a_sandbox_can_name() -> None:
    assert [place for name, source in modules() for place in places(name, source)] == []


def test_every_row_of_the_tables_is_needed() -> None:
    found = {name: (_uses_confined(source), {function for function, _ in uses(source)}) for name, source in modules()}
    rows = {
        row for row in HOST if not any(name.startswith(row) and used and not c for name, (c, used) in found.items())
    }
    assert rows == set(), "nothing there opens a path, or it uses `confined`: list its functions"
    needed = {f"{name}::{function}" for name, (confined, used) in found.items() if confined for function in used}
    assert set(HOST_FUNCTIONS) - needed == set()


@pytest.mark.parametrize(
    "seeded",
    [
        "open(path)",
        "path.open('rb')",
        "path.open(encoding='utf-8')",
        "path.read_bytes()",
        "path.write_text('x')",
        "sorted(path.rglob('*'))",
        "path.replace(other)",
        "path.rename(other)",
        "path.unlink(missing_ok=True)",
        "path.symlink_to(other)",
        "path.walk()",
        "import os\nos.open(path, os.O_RDONLY)",
        "import os as system\nsystem.walk(path)",
        "from os import scandir\nscandir(path)",
        "import shutil\nrun(shutil.rmtree, path)",
        "from shutil import copytree as copy\ncopy(path, other)",
        "import tarfile\ntarfile.open(path)",
        "import tarfile\ntarfile.open(fileobj=file)",
        "import tarfile\ntarfile.TarFile(path)",
        "archive.extractall(path)",
        "import zipfile\nzipfile.ZipFile(path)",
        "import sqlite3\nsqlite3.connect(path)",
        "import gzip\ngzip.open(path)",
        "import glob\nglob.glob('*')",
        "import subprocess\nsubprocess.run(['tar', '-xf', path])",
    ],
)
def test_a_seeded_use_is_found_wherever_it_is(seeded: str) -> None:
    inside = "\n".join(["def late():", *(f"    {line}" for line in seeded.splitlines())])
    for source in (seeded, inside, f"class One:\n    def method(self):\n        {seeded.splitlines()[-1]}"):
        if "import" in seeded and "class" in source:
            source = f"{seeded.splitlines()[0]}\n{source}"
        assert list(places("planes/reward/new.py", source)) != [], source
        # The same in a module that goes through `confined` elsewhere, and so can't be in the table as a whole.
        with_import = f"from benchflow.confined import ConfinedDirectory\n{source}"
        assert list(places("tasks/text.py", with_import)) != [], source


@pytest.mark.parametrize(
    "harmless",
    [
        "text.replace('a', 'b')",
        "when.replace(microsecond=0)",
        "directory.open(name)",
        "Store.open()",
        "directory.rename(old, new)",
        "import ast\nast.walk(tree)",
        "import tarfile\ntarfile.open(fileobj=file, mode='w')",
        "import tarfile\ndef one(archive: tarfile.TarFile) -> None: ...",
        "def one(open): return open()",
    ],
)
def test_what_opens_nothing_is_left_alone(harmless: str) -> None:
    assert list(places("planes/reward/new.py", harmless)) == []
