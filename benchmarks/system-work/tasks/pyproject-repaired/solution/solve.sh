#!/bin/sh
set -e
cat > /app/pyproject.toml <<'END'
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "calc"
version = "2.0.0"

[project.scripts]
calc = "calc:main"

[tool.setuptools]
py-modules = ["calc"]
END
