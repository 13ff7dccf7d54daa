"""Ready images: read from a Docker daemon or from an archive, and unpacked as the whole root of local sandboxes."""
