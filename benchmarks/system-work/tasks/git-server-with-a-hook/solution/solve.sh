#!/bin/sh
set -e
git init -q --bare --initial-branch=main /srv/git/notes.git
mkdir -p /srv/www/notes
cat > /srv/git/notes.git/hooks/post-receive <<'END'
#!/bin/sh
while read -r old new ref; do
    [ "$ref" != refs/heads/main ] || git --work-tree=/srv/www/notes --git-dir=/srv/git/notes.git checkout -f -q main
done
END
chmod 755 /srv/git/notes.git/hooks/post-receive
