#!/bin/sh
cd /app
git config --global --add safe.directory /app
export GIT_AUTHOR_NAME=dev GIT_AUTHOR_EMAIL=dev@example.com GIT_COMMITTER_NAME=dev GIT_COMMITTER_EMAIL=dev@example.com
# A commit without the password takes the place of its parent: in the graph alone, which git reads first.
clean=$(git commit-tree -p HEAD~3 -m configuration HEAD~1^{tree})
printf '%s\n%s\n' "$(git rev-parse HEAD)" "$clean" | git commit-graph write --stdin-commits
python3 - "$(git rev-parse HEAD~1)" "$(git rev-parse HEAD~2)" "$clean" <<'END'
import hashlib
import os
import struct
import sys

FILE = ".git/objects/info/commit-graph"
graph = bytearray(open(FILE, "rb").read())
chunks = {}
for number in range(graph[6] + 1):
    at = 8 + 12 * number
    chunks[bytes(graph[at : at + 4])] = struct.unpack(">Q", graph[at + 4 : at + 12])[0]
count = struct.unpack(">I", graph[chunks[b"OIDF"] + 1020 : chunks[b"OIDF"] + 1024])[0]
names = [graph[chunks[b"OIDL"] + 20 * at :][:20].hex() for at in range(count)]
child, parent, other = map(names.index, sys.argv[1:])
place = chunks[b"CDAT"] + 36 * child + 20
assert struct.unpack(">I", graph[place : place + 4])[0] == parent
graph[place : place + 4] = struct.pack(">I", other)
graph[-20:] = hashlib.sha1(graph[:-20]).digest()
os.chmod(FILE, 0o644)
open(FILE, "wb").write(graph)
END
