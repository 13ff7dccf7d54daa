"""The page at `/`: what a person or an agent needs to begin."""

from __future__ import annotations

from office_core.service import Operation, Service

HEAD = """\
Office {name}: {about}

You act as one person: GET /me says as whom, and what time it is. GET /people is the directory.
Requests and answers are JSON. Arguments of GET and DELETE are in the query (lists: a,b), all others in the body.
An error is {{"error": {{"code", "message"}}}}. The whole description: GET /openapi.json{mcp}

"""
MCP = "\nThe same as MCP tools (streamable HTTP): POST /mcp"


def write(service: Service, with_mcp: bool) -> str:
    rows = [(f"{one.method} {one.path}", _arguments(one), one.about) for one in service.operations]
    width = max(len(route) for route, _, _ in rows)
    described = [f"{route:<{width}}  {about}{arguments}\n" for route, arguments, about in rows]
    return HEAD.format(name=service.name, about=service.about, mcp=MCP if with_mcp else "") + "".join(described)


def _arguments(operation: Operation) -> str:
    """The arguments apart from those in the path; a required one has a star."""
    named = [
        name + ("*" if argument.required else "")
        for name, argument in operation.arguments.items()
        if name not in operation.path_arguments
    ]
    return f" [{' '.join(named)}]" if named else ""
