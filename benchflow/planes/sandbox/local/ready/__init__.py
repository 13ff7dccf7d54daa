"""Ready images, from a Docker daemon or an archive, unpacked as the whole root of local sandboxes."""
