"""Which environment manifest a task has, and what it then need not bring itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchflow.errors import ManifestError, TaskError
from benchflow.tasks import check, find_manifest, load_task

Builder = Callable[..., Path]

NAMED = "benchflow: {environment: {manifest: worlds/mail.toml}}\n"


def in_package(build: Builder, frontmatter: str = "", **options: object) -> tuple[Path, Path]:
    """The package's manifest, and its only task."""
    root = build(frontmatter, name="package/tasks/one", **options)
    manifest = root.parents[1] / "environment.toml"
    manifest.write_text("[environment]\n")
    return manifest, root


def test_a_task_alone_has_no_manifest(native: Builder) -> None:
    root = native()
    assert find_manifest(root, load_task(root)) is None


def test_a_task_in_a_package_has_the_packages(native: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, root = in_package(native)
    assert find_manifest(root, load_task(root)) == manifest
    monkeypatch.chdir(root)
    assert find_manifest(Path(), load_task(root)) == manifest
    assert find_manifest(Path("../../tasks/one"), load_task(root)) == manifest


def test_a_manifest_belongs_only_to_what_lies_in_tasks(native: Builder, tmp_path: Path) -> None:
    root = native(name="package/others/one")
    (tmp_path / "package/environment.toml").write_text("")
    (tmp_path / "package/others/environment.toml").write_text("")
    assert find_manifest(root, load_task(root)) is None


def test_what_the_task_names_wins_over_its_package(native: Builder) -> None:
    _, root = in_package(native, NAMED, files={"worlds/mail.toml": ""})
    assert find_manifest(root, load_task(root)) == root / "worlds/mail.toml"


def test_a_name_may_lead_out_of_the_task(native: Builder, tmp_path: Path) -> None:
    root = native("benchflow: {environment: {manifest: ../mail.toml}}\n")
    (tmp_path / "mail.toml").write_text("")
    assert find_manifest(root, load_task(root)) == tmp_path / "mail.toml"


@pytest.mark.parametrize("name", ["../../../home/secret.toml", "/etc/passwd", "worlds/link.toml", "absolute"])
def test_a_name_may_not_lead_out_of_the_task_set(
    name: str, native: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "home" / "secret.toml"
    secret.parent.mkdir()
    secret.write_text("key = 'geheim'")
    inside = tmp_path / "set" / "tasks" / "one" / "inside.toml"
    name = str(inside) if name == "absolute" else name
    root = native(
        f"benchflow: {{environment: {{manifest: {name}}}}}\n", name="set/tasks/one", files={"inside.toml": ""}
    )
    task = load_task(root)
    # A link that leads out of the task is refused when the task is read; this one is of another directory of the set.
    (root / "worlds").symlink_to("../../worlds")
    (tmp_path / "set" / "worlds").mkdir()
    (tmp_path / "set" / "worlds" / "link.toml").symlink_to(secret)
    with pytest.raises(ManifestError, match="may not choose") as caught:
        find_manifest(root, task)
    assert (caught.value.file, caught.value.key) == (str(root / "task.md"), "benchflow.environment.manifest")
    assert "--environment-manifest" in (caught.value.remedy or "") and "geheim" not in str(caught.value)


def test_a_name_may_not_lead_into_the_users_home_although_the_task_lies_in_it(
    native: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    root = native("benchflow: {environment: {manifest: ../mail.toml}}\n")
    (tmp_path / "mail.toml").write_text("")
    with pytest.raises(ManifestError, match="may not choose"):
        find_manifest(root, load_task(root))


def test_a_packages_manifest_is_no_link_to_a_file_of_the_host(native: Builder, tmp_path: Path) -> None:
    manifest, root = in_package(native)
    task = load_task(root)
    manifest.unlink()
    (tmp_path / "secret").write_text("key")
    manifest.symlink_to(tmp_path / "secret")
    with pytest.raises(ManifestError, match="leads out"):
        find_manifest(root, task)


def test_the_option_wins_over_both(native: Builder, tmp_path: Path) -> None:
    _, root = in_package(native, NAMED)
    assert find_manifest(root, load_task(root), tmp_path / "other.toml") == tmp_path / "other.toml"


@pytest.mark.parametrize("name", ["worlds/mail.toml", ".", "a\\0b"])
def test_a_named_manifest_that_is_not_there_is_refused(native: Builder, name: str) -> None:
    root = native(f'benchflow: {{environment: {{manifest: "{name}"}}}}\n')
    with pytest.raises(ManifestError) as caught:
        find_manifest(root, load_task(root))
    assert (caught.value.file, caught.value.key) == (str(root / "task.md"), "benchflow.environment.manifest")
    assert caught.value.remedy
    assert [problem.key for problem in check(root) if problem.severity == "error"] == ["benchflow.environment.manifest"]


WITHOUT_IMAGE = {"environment/Dockerfile": None, "environment/": ""}
WITHOUT_ENVIRONMENT = {"environment/Dockerfile": None}


@pytest.mark.parametrize("files", [WITHOUT_IMAGE, WITHOUT_ENVIRONMENT], ids=["empty", "absent"])
def test_a_task_needs_no_image_of_its_own_where_a_manifest_may_bring_it(native: Builder, files: dict[str, str]) -> None:
    alone = native(files=files)
    with pytest.raises(TaskError, match=r"no image|no environment/ directory"):
        load_task(alone)
    assert load_task(alone, has_manifest=True).dockerfile is None
    _, packaged = in_package(native, files=files)
    assert load_task(packaged).dockerfile is None
    naming = native(NAMED, files=files | {"worlds/mail.toml": ""}, name="naming")
    assert load_task(naming).dockerfile is None
    assert not [problem for problem in check(naming) if problem.severity == "error"]
