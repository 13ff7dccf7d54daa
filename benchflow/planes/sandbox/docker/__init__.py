"""The Docker driver: sandboxes that are containers of a local Docker daemon.

`driver` is the driver, `containers` finds, makes and removes one. Below them: `engine` (the daemon's API and its
errors), `stream` (what a command says), `shell` (the persistent root shell), `processes` (commands), `archives` and
`outside` (files), `launch`, `entrypoint` and `become` (the image's own program), `networks`, `images` and `records`. Of
states kept: `captures` (a container's files as an image), `copies` (containers like another), `forks` and `restores`.
"""

from benchflow.planes.sandbox.docker.driver import DockerDriver

__all__ = ["DockerDriver"]
