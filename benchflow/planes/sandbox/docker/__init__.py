"""The Docker driver: sandboxes that are containers of a Docker daemon.

`driver` is the driver; `containers` finds, creates and removes containers. Below them: `engine` (the daemon's API and
its errors), `stream` (output of an exec), `shell` (the persistent root shell), `processes` (commands), `archives` and
`outside` (files), `launch`, `entrypoint` and `become` (the image's own program), `networks`, `images` and `records`.
For saved states: `captures` (a container's files as an image), `copies` (containers like another), `forks`, `restores`.
"""

from benchflow.planes.sandbox.docker.docker_driver import DockerDriver

__all__ = ["DockerDriver"]
