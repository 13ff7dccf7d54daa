#!/bin/bash
set -euo pipefail
cd /app/repo
lost=$(git reflog --format=%H | while read -r id; do
    if [ "$(git log -1 --format=%s "$id")" = "Retry failed uploads" ]; then echo "$id"; fi
done | sed -n 1p)
git reset -q --hard "$lost"
FILTER_BRANCH_SQUELCH_WARNING=1 git filter-branch -f --prune-empty --tag-name-filter cat \
    --index-filter 'git rm -q --cached --ignore-unmatch deploy.key' -- --all >/dev/null
git for-each-ref --format='delete %(refname)' refs/original | git update-ref --stdin
git reflog expire --expire=now --all
git gc -q --prune=now
git checkout -q -f main
git status --short
