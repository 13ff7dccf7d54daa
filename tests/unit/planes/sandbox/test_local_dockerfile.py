"""Dockerfiles as the local sandbox reads them: what each instruction becomes, and what is refused by name."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchflow.contracts.images import ImageConfig
from benchflow.errors import ImageBuildError, UnsupportedFeatureError
from benchflow.planes.sandbox.build_context import read_context
from benchflow.planes.sandbox.local.build.copied_files import Copy
from benchflow.planes.sandbox.local.build.dockerfile import DEFAULT_PATH, read_host_system, read_recipe
from benchflow.planes.sandbox.local.build.recipe import Base, LayerConfig, MakeDirectory, Recipe, Run

Read = Callable[..., Recipe]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "environment"
    directory.mkdir()
    return directory


@pytest.fixture
def read(root: Path) -> Read:
    """Reads a Dockerfile that begins with FROM, unless `start` says otherwise."""

    def from_lines(*lines: str, start: str = "FROM base", end: str = "\n", exclude: tuple[str, ...] = ()) -> Recipe:
        (root / "Dockerfile").write_text("\n".join([*([start] if start else []), *lines]) + end)
        context = read_context(ImageConfig(context=str(root), exclude=exclude))
        return read_recipe(context, host="Host 1", machine="x86_64")

    return from_lines


def last(recipe: Recipe) -> Run | Copy | MakeDirectory | None:
    return recipe.steps[-1].action


def run_of(recipe: Recipe) -> Run:
    action = last(recipe)
    assert isinstance(action, Run)
    return action


def script(recipe: Recipe) -> str:
    return run_of(recipe).argv[-1]


def copy_of(recipe: Recipe) -> Copy:
    action = last(recipe)
    assert isinstance(action, Copy)
    return action


def arriving(recipe: Recipe, tmp_path: Path) -> dict[str, tarfile.TarInfo]:
    """The members of the archive that a COPY becomes."""
    packed = tmp_path / "packed.tar"
    with packed.open("wb") as file:
        recipe.tree.pack(copy_of(recipe), file, (0, 0), None)
    with tarfile.open(packed) as archive:
        return {member.name: member for member in archive}


# --- lines -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["RUN a \\", "  && b"], "a   && b"),
        (["RUN a \\  ", "  && b"], "a   && b"),
        (["RUN a \\", "", "&& b"], "a && b"),
        (["RUN a \\", "  # not said", "&& b  "], "a && b"),
        (["RUN a \\", "# one", "", " ", "# two", "&& b"], "a && b"),
        (["RUN \\", "   a"], "a"),
        (["   run   a"], "a"),
        (["RUN a # b"], "a # b"),
        (["RUN a \\"], "a"),
        (["RUN echo 'x  y'"], "echo 'x  y'"),
        (["RUN echo $((1<<N)) && cat <<<x && echo '<<EOF'"], "echo $((1<<N)) && cat <<<x && echo '<<EOF'"),
        (["RUN cat <<EOF2>/x".replace("cat <<", "cat<<")], "cat<<EOF2>/x"),
    ],
)
def test_lines_are_joined_as_docker_joins_them(read, lines, said):
    assert script(read(*lines)) == said
    assert script(read(*lines, end="")) == said


def test_an_instruction_is_known_by_its_first_line(read):
    steps = read("# comment", "", "RUN a \\", "  b", "RUN c").steps
    assert [(step.line, step.title) for step in steps] == [(1, "FROM base"), (4, "RUN a   b"), (6, "RUN c")]


def test_a_byte_order_mark_is_not_part_of_the_first_word(read):
    assert read(start="\ufeffFROM base").config.base == "base"


@pytest.mark.parametrize("first", ["# syntax=docker/dockerfile:1", "# escape=\\", "# check=skip=all", "# any = thing"])
def test_directives_that_change_nothing_are_taken(read, first):
    assert read("FROM base", "RUN a", start=first).config.base == "base"


@pytest.mark.parametrize(
    ("lines", "key", "named"),
    [
        (["CMD sleep 1"], "CMD", "CMD"),
        (['ENTRYPOINT ["x"]'], "ENTRYPOINT", "ENTRYPOINT"),
        (["VOLUME /data"], "VOLUME", "VOLUME"),
        (["HEALTHCHECK NONE"], "HEALTHCHECK", "HEALTHCHECK"),
        (["STOPSIGNAL 9"], "STOPSIGNAL", "STOPSIGNAL"),
        (["ONBUILD RUN x"], "ONBUILD", "ONBUILD"),
        (["FORM base"], "FORM", "unknown instruction FORM"),
        (["CMD"], "CMD", "CMD"),
        (["FROM other"], "FROM", "a second stage"),
        (["RUN --mount=type=cache,target=/c true"], "RUN", "RUN --mount"),
        (["RUN --network=none true"], "RUN", "RUN --network"),
        (["RUN --security=insecure \\", " true"], "RUN", "RUN --security"),
        (["RUN <<EOF", "true", "CMD x", "EOF"], "RUN", "here-document"),
        (["RUN cat <<-'EOF' >/x", "ends with two \\\\", "EOF"], "RUN", "here-document"),
        (['COPY <<"EOF" /x', "true", "EOF"], "COPY", "here-document"),
        (["ADD 3<<EOF /x", "true", "EOF"], "ADD", "here-document"),
        (["COPY --from=other /a /b"], "COPY", "COPY --from"),
        (["COPY --link a /b"], "COPY", "COPY --link"),
        (["COPY --chmod=u+x a /b"], "COPY", "--chmod=u[+]x"),
        (["ADD https://example.com/x /x"], "ADD", "ADD of https"),
        (["ADD git@example.com:a/b.git /x"], "ADD", "ADD of git@"),
        (["ADD ssh://git@example.com/a/b.git /x"], "ADD", "ADD of ssh"),
        (["RUN echo a\\\\", "RUN b"], "RUN", "two backslashes"),
        (["RUN echo a \\\u00a0", " b"], "RUN", "unusual space"),
        (["ENV A=${B#x}"], "ENV", "the substitution"),
        (["ENV A=${B:?x}"], "ENV", "the substitution"),
        (["ENV A=${B:-${C}}"], "ENV", "the substitution"),
        (["ENV A=$1"], "ENV", "the substitution"),
        (["COPY [!a]* /x/"], "COPY", "wildcard"),
    ],
)
def test_what_is_not_carried_out_is_refused_by_name_with_line_and_remedy(read, lines, key, named):
    with pytest.raises(UnsupportedFeatureError, match=named) as caught:
        read("RUN true", *lines)
    assert caught.value.message.startswith("line 3: ")
    assert (caught.value.file, caught.value.key) == ("environment/Dockerfile", key)
    assert "--sandbox docker" in caught.value.remedy


@pytest.mark.parametrize(
    ("start", "named"),
    [
        ("FROM scratch", "FROM scratch"),
        ("FROM --platform=linux/arm64 base", "FROM --platform=linux/arm64 on linux/amd64"),
        ("FROM --platform=arm64 base", "platform"),
        ("FROM --platform=windows/amd64 base", "platform"),
        ("FROM --other=1 base", "FROM --other"),
        ("# escape=`\nFROM base", "# escape=`"),
        ("#syntax=docker/dockerfile:1\n# Escape = `\nFROM base", "# escape=`"),
        ("# syntax=someone/frontend\nFROM base", "# syntax=someone/frontend"),
    ],
)
def test_what_a_file_must_not_begin_with(read, start, named):
    with pytest.raises(UnsupportedFeatureError, match=named):
        read(start=start)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["RUN"], "nothing follows"),
        (["RUN []"], "empty"),
        (['RUN ["a", 1]'], "not a string"),
        (['RUN ["a"] && b'], "there is more"),
        (["SHELL /bin/bash -c"], "JSON list"),
        (["COPY only"], "source and a target"),
        (["WORKDIR $NOTHING"], "is empty"),
        (["USER :group"], "no user"),
        (["EXPOSE http"], "not a port"),
        (["EXPOSE 70000"], "not a port"),
        (["ENV A"], "no value"),
        (["ENV A=1 B"], "not name=value"),
        (["ENV A='b"], "not closed"),
        (["ARG =1"], "not a name"),
        (["COPY " + "[" * 20_000 + " /x/"], "longer than any path"),
    ],
)
def test_what_no_builder_could_carry_out_is_a_build_error_with_its_line(read, lines, said):
    with pytest.raises(ImageBuildError, match=said) as caught:
        read(*lines)
    assert caught.value.message.startswith("line 2: ") and caught.value.key == lines[0].split()[0]
    assert caught.value.file == "environment/Dockerfile" and caught.value.remedy


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("", "no FROM"),
        ("# nothing", "no FROM"),
        ("ARG A", "no FROM"),
        ("RUN true\nFROM base", "comes before FROM"),
        ("FROM", "nothing follows"),
        ("FROM base name", "AS name"),
        ("FROM $NOTHING", "is empty"),
    ],
)
def test_a_file_needs_one_base_first(read, start, said):
    with pytest.raises(ImageBuildError, match=said):
        read(start=start)


# --- what the image is -------------------------------------------------------------------------------


def test_it_is_on_record_what_the_host_stands_for(read):
    config = read(start="FROM debian:bookworm-slim AS final").config
    assert config.base == "debian:bookworm-slim"
    assert config.warnings == ("the host (Host 1) stands for debian:bookworm-slim",)
    assert read_host_system()


@pytest.mark.parametrize("flag", ["linux/amd64", "linux/x86_64", "amd64", "linux", "$BUILDPLATFORM"])
def test_this_machines_own_platform_is_no_other(read, flag):
    assert read(start=f"FROM --platform={flag} base").config.base == "base"


def test_the_base_may_be_named_by_an_argument_with_a_default(read):
    assert read(start="ARG V=12\nARG NAME=debian:${V}\nFROM ${NAME}-${VARIANT:-slim}").config.base == "debian:12-slim"


def test_env_reaches_the_image_and_later_commands_only(read):
    recipe = read("RUN one", "ENV A=1 B='x y' C=\"$A\"", "ENV D $A and  more", "RUN two")
    before, after = (step.action for step in recipe.steps if isinstance(step.action, Run))
    assert before.env == {}
    # Values of one instruction do not see each other.
    assert after.env == recipe.config.env == {"A": "1", "B": "x y", "C": "", "D": "1 and  more"}


def test_the_path_of_the_base_can_be_extended(read):
    assert read('ENV PATH="/opt/bin:$PATH"').config.env["PATH"] == f"/opt/bin:{DEFAULT_PATH}"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("$A", "a"),
        ("${A}b", "ab"),
        ("\\$A", "$A"),
        ("'$A'", "$A"),
        ('"$A"', "a"),
        ('"\\$A"', "$A"),
        ('"\\\\"', "\\"),
        ('"\\n"', "\\n"),
        ("\\n", "n"),
        ("a\\ b", "a b"),
        ('"it\'s"', "it's"),
        ("'\"'", '"'),
        ("${A:-x}", "a"),
        ("${EMPTY:-x}", "x"),
        ("${EMPTY-x}", ""),
        ("${NONE:-x}", "x"),
        ("${NONE-$A}", "a"),
        ("${NONE:-'a b'}", "a b"),
        ("${A:+x}", "x"),
        ("${NONE:+x}", ""),
        ("${EMPTY+x}", "x"),
        ("$A$A", "aa"),
        ("$", "$"),
        ("$(date)", "$(date)"),
        ("x$/y", "x$/y"),
        ("$A/b", "a/b"),
    ],
)
def test_words_are_substituted_as_docker_does(read, written, value):
    assert read("ENV A=a EMPTY=", f"ENV V={written}").config.env["V"] == value


def test_what_only_the_unknown_base_may_set_is_a_warning(read):
    recipe = read("ENV A=$JAVA_HOME/bin:${OTHER:-x}", "RUN echo $SHELL_OWN")
    assert recipe.config.env["A"] == "/bin:x"
    assert [w for w in recipe.config.warnings if "JAVA_HOME" in w] and len(recipe.config.warnings) == 2


def test_arguments_reach_commands_but_not_the_image(read):
    recipe = read("ARG A=1 B=${A}x", "ARG NOTHING", "ENV E=$A", "RUN x")
    assert run_of(recipe).env == {"A": "1", "B": "x", "E": "1"}
    assert recipe.config.env == {"E": "1"}


def test_an_argument_before_from_has_to_be_declared_again(read):
    assert run_of(read("RUN x", start="ARG A=1\nFROM base")).env == {}
    assert run_of(read("ARG A", "RUN x", start="ARG A=1\nFROM base")).env == {"A": "1"}
    assert run_of(read("ARG A=2", "RUN x", start="ARG A=1\nFROM base")).env == {"A": "2"}


def test_env_goes_before_an_argument_of_the_same_name(read):
    assert run_of(read("ENV A=env", "ARG A=arg", "RUN x")).env == {"A": "env"}
    assert run_of(read("ARG A=arg", "ENV A=env", "RUN x")).env == {"A": "env"}


def test_a_declared_platform_argument_has_its_value(read):
    assert run_of(read("ARG TARGETARCH", "RUN x")).env == {"TARGETARCH": "amd64"}


def test_working_directories_accumulate_and_are_made(read):
    recipe = read("ENV X=deep", "WORKDIR /a", "WORKDIR b/../c", 'WORKDIR "$X dir"', "RUN x")
    made = [step.action.path for step in recipe.steps if isinstance(step.action, MakeDirectory)]
    assert made == ["/a", "/a/c", "/a/c/deep dir"]
    assert run_of(recipe).workdir == recipe.config.workdir == "/a/c/deep dir"


def test_the_root_as_working_directory_counts_as_unset(read):
    recipe = read("WORKDIR /a", "WORKDIR /")
    assert recipe.config.workdir is None and last(recipe) is None
    assert run_of(read("RUN x")).workdir == "/"


def test_commands_run_as_the_user_and_with_the_shell_of_their_place(read):
    recipe = read("RUN a", "USER app:staff", 'SHELL ["/bin/bash", "-ec"]', "RUN b", 'RUN ["c", "$D"]')
    runs = [step.action for step in recipe.steps if isinstance(step.action, Run)]
    assert [(run.user, run.argv) for run in runs] == [
        (None, ("/bin/sh", "-c", "a")),
        ("app:staff", ("/bin/bash", "-ec", "b")),
        ("app:staff", ("c", "$D")),
    ]
    assert recipe.config.user == "app:staff"


def test_a_command_that_only_looks_like_a_list_is_for_the_shell(read):
    assert script(read("RUN [ -f x ] && y")) == "[ -f x ] && y"
    assert script(read("RUN ['a']")) == "['a']"


def test_ports_and_labels_are_recorded(read):
    config = read("ENV P=81", "EXPOSE 80 $P/UDP 9000-9002 80", 'LABEL a=1 "b c"="d e"', "MAINTAINER Some One").config
    assert config.ports == ("80/tcp", "81/udp", "9000/tcp", "9001/tcp", "9002/tcp")
    assert config.labels == {"a": "1", "b c": "d e", "maintainer": "Some One"}


# --- what is copied ----------------------------------------------------------------------------------


@pytest.fixture
def files(root: Path) -> Path:
    for name in ("a.txt", "b.txt", "c.log", "d/one", "d/two.txt", "d/deep/three", "e/four", "sp ace"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


@pytest.mark.parametrize(
    ("step", "target", "directory", "names"),
    [
        ("COPY a.txt /x", "/x", False, ["a.txt"]),
        ("COPY ./a.txt /x/", "/x", True, ["a.txt"]),
        ("COPY /a.txt x", "/w/x", False, ["a.txt"]),
        ("COPY a.txt .", "/w", True, ["a.txt"]),
        ("COPY a.txt ../y/.", "/y", True, ["a.txt"]),
        ("COPY a.txt b.txt /x/", "/x", True, ["a.txt", "b.txt"]),
        ('COPY ["sp ace", "/x"]', "/x", False, ["sp ace"]),
        ("COPY sp\\ ace /x/", None, None, None),
        ("COPY d /x", "/x", True, ["deep", "deep/three", "one", "two.txt"]),
        ("COPY d/ e /x/", "/x", True, ["deep", "deep/three", "four", "one", "two.txt"]),
        ("COPY *.txt /x/", "/x", True, ["a.txt", "b.txt"]),
        ("COPY [^a-b].* /x", "/x", False, ["c.log"]),
        ("COPY ?.log none* /x/", "/x", True, ["c.log"]),
        ("COPY */*.txt /x/", "/x", True, ["two.txt"]),
        ("COPY d/d* /x/", "/x", True, ["three"]),
        ("COPY $D/one /x/", "/x", True, ["one"]),
        ("ADD d/one /x/", "/x", True, ["one"]),
    ],
)
def test_sources_and_targets(read, files, tmp_path, step, target, directory, names):
    lines = ("WORKDIR /w", "ENV D=d", step)
    if target is None:
        with pytest.raises(ImageBuildError, match="line 4"):
            read(*lines)
        return
    recipe = read(*lines)
    assert (copy_of(recipe).target, copy_of(recipe).directory) == (target, directory)
    assert sorted(arriving(recipe, tmp_path)) == names


def test_what_is_ignored_or_excluded_is_not_copied(read, files, tmp_path):
    (files / ".dockerignore").write_text("*.txt\n!b.txt\nd\n!d/deep\n.dockerignore\nDockerfile\n")
    recipe = read("COPY . /x", exclude=("e",))
    assert sorted(arriving(recipe, tmp_path)) == ["b.txt", "c.log", "d", "d/deep", "d/deep/three", "sp ace"]


def test_the_dockerfile_itself_is_copied_unless_it_is_ignored(read, root, tmp_path):
    assert sorted(arriving(read("COPY . /x"), tmp_path)) == ["Dockerfile"]


@pytest.mark.parametrize("source", ["missing", "d/missing", "a.txt", "nothing*", "../environment/b.txt", "dangling"])
def test_a_source_that_is_not_in_the_context_is_named_with_its_line(read, files, source):
    (files / ".dockerignore").write_text("a.txt\n")
    (files / "dangling").symlink_to("../environment/b.txt")
    with pytest.raises(ImageBuildError) as caught:
        read("COPY b.txt /x", f"COPY {source} /x")
    assert caught.value.message.startswith("line 3: COPY: ") and source in caught.value.message


def test_several_sources_need_a_directory(read, files):
    for step in ("COPY a.txt b.txt /x", "COPY *.txt /x", "COPY d e /x"):
        with pytest.raises(ImageBuildError, match="slash"):
            read(step)


def test_links_that_are_named_are_followed_within_the_context_and_others_kept(read, files, tmp_path):
    (files / "to_file").symlink_to("/a.txt")
    (files / "to_dir").symlink_to("d")
    (files / "d" / "inner").symlink_to("one")
    members = arriving(read("COPY to_file to_dir /x/"), tmp_path)
    assert sorted(members) == ["deep", "deep/three", "inner", "one", "to_file", "two.txt"]
    assert members["to_file"].isreg() and members["inner"].issym() and members["inner"].linkname == "one"
    assert sorted(arriving(read("COPY to_dir/one /x/"), tmp_path)) == ["one"]
    (files / "round").symlink_to("round")
    with pytest.raises(ImageBuildError, match="round"):
        read("COPY round /x")


def test_modes_are_kept_or_set(read, files, tmp_path):
    (files / "a.txt").chmod(0o750)
    assert arriving(read("COPY a.txt /x"), tmp_path)["a.txt"].mode == 0o750
    members = arriving(read("ARG M=711", "COPY --chown=app:$M --chmod=$M d /x"), tmp_path)
    assert {member.mode for member in members.values()} == {0o711}
    assert copy_of(read("COPY --chown=app:staff a.txt /x")).owner == "app:staff"


def test_pipes_are_left_out_and_second_names_are_files(read, files, tmp_path):
    os.mkfifo(files / "d" / "pipe")
    (files / "d" / "again").hardlink_to(files / "d" / "one")
    members = arriving(read("COPY d /x"), tmp_path)
    assert "pipe" not in members and members["again"].isreg() and members["one"].isreg()


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_an_archive_is_copied_but_not_unpacked(read, files, mode):
    with tarfile.open(files / "data", mode) as archive:
        archive.add(files / "a.txt")
    read("COPY data /x")
    for step in ("ADD data /x", "ADD dat* /x"):
        with pytest.raises(UnsupportedFeatureError, match="ADD of the archive dat"):
            read(step)


def test_the_digest_of_a_copy_goes_by_what_arrives(read, files):
    def digest(step: str) -> str:
        recipe = read(step)
        return recipe.tree.digest(copy_of(recipe))

    first = digest("COPY d /x")
    (files / "b.txt").write_text("changed")
    assert digest("COPY d /y") == first
    changes = [
        lambda: (files / "d" / "one").write_text("other"),
        lambda: (files / "d" / "one").chmod(0o755),
        lambda: (files / "d" / "one").rename(files / "d" / "uno"),
        lambda: (files / "d" / "link").symlink_to("uno"),
        lambda: (files / "d" / "empty").mkdir(),
    ]
    seen = {first}
    for change in changes:
        change()
        seen.add(digest("COPY d /x"))
    assert len(seen) == len(changes) + 1


# --- worlds: images upon images, and what they run by themselves ----------------------------------------


@pytest.fixture
def upon(root: Path) -> Read:
    """Reads a Dockerfile that begins with an image that is known, ENTRYPOINT and CMD included."""

    def from_lines(*lines: str, entrypoint: bool = True, known: dict[str, object]) -> Recipe:
        (root / "Dockerfile").write_text("\n".join(["FROM world", *lines]) + "\n")
        base = Base("local/key", LayerConfig.model_validate({"base": "debian"} | known))
        context = read_context(ImageConfig(context=str(root)))
        return read_recipe(context, bases={"world:latest": base}, entrypoint=entrypoint, host="Host 1")

    return from_lines


def test_an_image_upon_another_begins_with_what_that_one_is(upon: Read) -> None:
    known = {"env": {"A": "a"}, "workdir": "/deep", "user": "me", "shell": ("/bin/bash", "-c"), "warnings": ("w",)}
    recipe = upon("RUN echo $A", "ENV B=$A$UNSET", "WORKDIR er", known=known)
    run = recipe.steps[1].action
    assert run == Run(("/bin/bash", "-c", "echo $A"), {"A": "a"}, "/deep", "me")
    assert recipe.upon == "local/key"
    assert (recipe.config.env, recipe.config.workdir) == ({"A": "a", "B": "a"}, "/deep/er")
    # The host stands for the image below, as that one says itself; and what it sets is known.
    assert recipe.config.warnings == ("w",)


def test_an_image_upon_the_host_is_upon_no_other(read: Read) -> None:
    assert read().upon is None


@pytest.mark.parametrize(
    ("lines", "entrypoint", "command"),
    [
        ([], ("low",), ("l",)),
        (['CMD ["c"]'], ("low",), ("c",)),
        (['ENTRYPOINT ["e"]'], ("e",), ()),
        (['CMD ["c"]', 'ENTRYPOINT ["e"]'], ("e",), ("c",)),
        (["ENTRYPOINT []"], (), ()),
        (["CMD run $A", 'SHELL ["/b", "-c"]', "ENTRYPOINT go"], ("/b", "-c", "go"), ("/bin/sh", "-c", "run $A")),
        (["CMD [not json"], ("low",), ("/bin/sh", "-c", "[not json")),
    ],
)
def test_entrypoint_and_command_are_those_that_docker_would_have(
    upon: Read, lines: list[str], entrypoint: tuple[str, ...], command: tuple[str, ...]
) -> None:
    config = upon(*lines, known={"entrypoint": ("low",), "command": ("l",)}).config
    assert (config.entrypoint, config.command) == (entrypoint, command)


def test_what_an_image_runs_is_inherited_also_where_it_may_not_be_written(upon: Read) -> None:
    known = {"entrypoint": ("low",)}
    assert upon("RUN true", entrypoint=False, known=known).config.entrypoint == ("low",)
    with pytest.raises(UnsupportedFeatureError):
        upon("CMD x", entrypoint=False, known=known)
