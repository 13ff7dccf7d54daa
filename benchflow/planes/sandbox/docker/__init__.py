"""The Docker provider: sandboxes that are containers of a local Docker daemon.

`provider` finds and starts, `sandbox` is a started one. Below them: `engine` (the daemon's API and its
errors), `stream` (what a command says), `shell` (the persistent root shell), `executions` (commands, exactly
once), `output` (what they printed), `processes`, `files`, `launch`, `entrypoint` and `become` (the image's own),
`networks`, `images` and `records`. Of states kept: `captures` (a container's files as an image), `copies`
(containers like another), `forks` and `restores`.
"""

from benchflow.planes.sandbox.docker.provider import DockerProvider

__all__ = ["DockerProvider"]
