#!/bin/bash
git config --global --add safe.directory /app
cd /app
reward=1
[ "$(git rev-list --count main)" = 4 ] || reward=0
git show main:config.ini | grep -q "env:DB_PASSWORD" || reward=0
if git log -p --all | grep -q "correct-horse"; then
    reward=0
fi
echo $reward > /logs/verifier/reward.txt
