#!/bin/sh
set -e
cat > /app/queue.py <<'END'
class Queue:
    def __init__(self):
        self._urgent, self._others = [], []

    def join(self, name, urgent=False):
        (self._urgent if urgent else self._others).append(name)

    def next(self):
        waiting = self._urgent or self._others
        if not waiting:
            raise LookupError("nobody waits")
        return waiting.pop(0)
END
