"""`bench agent …`: list the registry of agents, show a record, and check that an agent can be installed and started."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from benchflow.cli.command import ALL_SCORED, SOME_ERRORED, BenchCommand, Json, run

if TYPE_CHECKING:
    from benchflow.cli.terminal import Text
    from benchflow.contracts.agent_record import AgentRecord
    from benchflow.planes.agent.agent_check import AgentCheck

app = typer.Typer(help="Agents: list, show, check.", no_args_is_help=True)


Name = Annotated[str, typer.Argument(help="An agent's name, alias or import path.", show_default=False)]


@app.command("list", cls=BenchCommand)
def list_(as_json: Json = False) -> None:
    """The agents that a task can be given to."""
    from benchflow.cli.screen import make_console, make_table, print_json
    from benchflow.cli.terminal import Text
    from benchflow.planes.agent.registry import load_agents

    agents = load_agents().values()
    if as_json:
        return print_json({"agents": [record.model_dump(mode="json") for record in agents]})
    rows = make_table(("agent", {"no_wrap": True}), "aliases", "version", "protocol", "model by", "rung", "what it is")
    for record in agents:
        rows.add_row(
            Text(record.name, "bold"),
            ", ".join(record.aliases),
            record.version or "",
            "" if record.is_engine else record.protocol,
            record.model.by if record.model else "",
            "" if record.is_engine else record.session.rung,
            record.description,
        )
    make_console().print(rows)


@app.command(cls=BenchCommand)
def show(name: Name, as_json: Json = False) -> None:
    """Everything the registry says of one agent."""
    from benchflow.cli.screen import make_console, print_json, show_place
    from benchflow.cli.terminal import make_line
    from benchflow.planes.agent.registry import find_agent

    record = find_agent(name)
    if as_json:
        return print_json(record.model_dump(mode="json"))
    screen = make_console()
    screen.print(make_line((record.name, "bold"), f"  {record.description}"), soft_wrap=True)
    for label, text in _describe_record(record):
        show_place(label, text, screen)


def _describe_record(record: AgentRecord) -> list[tuple[str, str | None]]:
    """Return a record as lines for display: a label and a text each; a text is None if the record has no such value."""
    install = record.install
    packages = ", ".join(f"{name} {version}" for name, version in install.packages.items()) if install else None
    runtime = (f"node {install.node}" if install.runtime == "node" else f"python {install.python}") if install else None
    lines: list[tuple[str, str | None]] = [
        ("aliases", ", ".join(record.aliases) or None),
        ("version", record.version),
        ("speaks", _PROTOCOLS[record.protocol]),
        ("acts as", record.user),
        ("launch", shlex.join(record.launch) or None),
        ("code", record.code),
        ("packages", packages),
        ("runtime", runtime),
        ("needs", ", ".join(record.required_env) or None),
        ("model", f"--agent {record.name}:MODEL (by {record.model.by})" if record.model else "takes none"),
        ("effort", f"by {record.effort.by}: {', '.join(record.effort.levels)}" if record.effort else None),
    ]
    for endpoint in record.endpoints:
        keys = " or ".join(endpoint.credentials)
        lines.append(("endpoint", f"{endpoint.api} ({', '.join(endpoint.providers)}), key in {keys}"))
    lines += [
        ("logins", ", ".join(f"~/{path}" for path in record.credential_files) or None),
        ("keeps", ", ".join(f"~/{path}" for path in record.home_dirs) or None),
        ("skills", ", ".join(record.skills) or None),
        ("mode", record.session.mode),
        ("rung", None if record.is_engine else record.session.rung),
    ]
    lines += [("hazard", text) for text in record.session.hazards]
    lines += [("checked", text) for text in record.checked]
    return [*lines, ("source", record.source or None)]


@app.command(cls=BenchCommand)
def check(
    name: Name,
    timeout: Annotated[float, typer.Option(help="Seconds that it may take to answer.", min=1)] = 90.0,
    as_json: Json = False,
) -> None:
    """Install an agent, start it here, and compare what it says of itself with the registry."""
    from benchflow.cli.screen import make_console, print_json
    from benchflow.planes.agent.agent_check import check_agent
    from benchflow.planes.agent.registry import find_agent

    record = find_agent(name)
    found = run(check_agent(record, timeout=timeout))
    if as_json:
        print_json({"ok": found.ok, **found.model_dump(mode="json")})
    else:
        make_console().print(*_format_findings(record, found), sep="\n", soft_wrap=True)
    raise typer.Exit(ALL_SCORED if found.ok else SOME_ERRORED)


def _format_findings(record: AgentRecord, found: AgentCheck) -> list[Text]:
    """Return the result of a check as lines for display."""
    from benchflow.cli.terminal import make_line

    sign = ("✓", "green") if found.ok else ("✗", "red")
    said = found.reported or {}
    lines = [
        make_line(
            *(sign, " ", (record.name, "bold")),
            f" {said.get('version', '(says no version)')}, started in {found.start_sec} s",
        )
    ]
    if found.toolbox is not None and found.size is not None:
        how = f"built in {found.build_sec} s" if found.built else "was there"
        lines.append(make_line(f"  toolbox   {found.toolbox}: {found.runtime}, {found.size / 2**20:.0f} MiB, {how}"))
    lines.append(make_line(f"  protocol  ACP {found.protocol_version}"))
    lines.append(
        make_line(f"  offers    {', '.join(_list_capabilities(found.capabilities)) or 'nothing beyond the protocol'}")
    )
    if found.auth_methods:
        lines.append(make_line(f"  logins    {', '.join(found.auth_methods)}"))
    lines.append(make_line(f"  rung      {record.session.rung}"))
    lines += [make_line("  ", ("problem", "red"), f"   {problem}") for problem in found.problems]
    return lines


def _list_capabilities(capabilities: dict[str, object], above: str = "") -> list[str]:
    """Return the capabilities that an agent offers, as dotted names. In ACP, `{}` means yes, and false means no.

    Args:
        capabilities: Capabilities as the agent sends them, nested.
        above: Prefix of the names, with a dot at its end.
    """
    names = []
    for name, value in capabilities.items():
        if name == "_meta" or value is False:
            continue
        path = f"{above}{name}"
        inner = _list_capabilities(value, f"{path}.") if isinstance(value, dict) else []
        names += inner or ([path] if not isinstance(value, dict) or not value else [])
    return names


_PROTOCOLS: dict[str, str] = {
    "acp": "the Agent Client Protocol, on stdio",
    "acpx": "the Agent Client Protocol, with acpx",
    "python": "nothing: it is Python code that acts from the worker",
    "oracle": "nothing: it runs the task's own solution",
    "none": "nothing",
}
"""Meaning of each protocol of the registry, for display."""
