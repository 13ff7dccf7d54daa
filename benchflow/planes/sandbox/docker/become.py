"""The shell script that runs as a container's first process before it becomes the image's entrypoint.

It reads secrets from its stdin, and switches to the image's USER. The container is not created with that user, although
the switch would then be needless: under no-new-privileges, no later command in it could be root.
"""

from __future__ import annotations

SCRIPT = "benchflow-entrypoint"
"""Name of the script, as its `$0`."""

# $1: `wait` to read secrets; $2: user, empty for root; $3: `own` if HOME was set on purpose; the rest: the command.
# Secrets are one message: `begin NONCE`, shell lines after a `|` each, `end NONCE`. A truncated message is discarded.
BECOME = r"""
set -f
bf_s=; bf_w=$1; bf_u=$2; bf_o=$3; shift 3
if [ -n "$bf_w" ]; then
  bf_n=
  while IFS= read -r bf_l; do case $bf_l in
  "begin "*) bf_n=${bf_l#begin }; bf_s=;;
  "end $bf_n") [ -z "$bf_n" ] || break;;
  "|"*) bf_s="$bf_s${bf_l#?}
";;
  esac; done
  [ -n "$bf_n" ] || exit 125
fi
if [ -n "$bf_u" ]; then
  bf_name=${bf_u%%:*}; bf_group=; bf_uid=; bf_gid=0; bf_home=/
  case $bf_u in *:*) bf_group=${bf_u#*:};; esac
  while IFS=: read -r bf_a bf_x bf_i bf_j bf_c bf_d bf_r; do
    if [ "$bf_a" = "$bf_name" ] || [ "$bf_i" = "$bf_name" ]; then
      bf_name=$bf_a; bf_uid=$bf_i; bf_gid=$bf_j; bf_home=$bf_d; break
    fi
  done </etc/passwd
  if [ -z "$bf_uid" ]; then
    case $bf_name in *[!0-9]*) echo "the image has no user $bf_name" >&2; exit 125;; esac
    bf_uid=$bf_name
  fi
  bf_all=
  while IFS=: read -r bf_a bf_x bf_i bf_m; do
    if [ -n "$bf_group" ]; then
      [ "$bf_a" != "$bf_group" ] || { bf_group=$bf_i; break; }
    else
      case ",$bf_m," in *",$bf_name,"*) bf_all=$bf_all,$bf_i;; esac
    fi
  done </etc/group
  case $bf_group in *[!0-9]*) echo "the image has no group $bf_group" >&2; exit 125;; esac
  bf_gid=${bf_group:-$bf_gid}; bf_all=$bf_gid$bf_all
  if setpriv --reuid="$bf_uid" --regid="$bf_gid" --groups="$bf_all" true 2>/dev/null; then
    set -- setpriv --reuid="$bf_uid" --regid="$bf_gid" --groups="$bf_all" "$@"
  elif chroot --userspec="$bf_uid:$bf_gid" --groups="$bf_all" --skip-chdir / true 2>/dev/null; then
    set -- chroot --userspec="$bf_uid:$bf_gid" --groups="$bf_all" --skip-chdir / "$@"
  elif [ -z "$bf_group" ] && su -m -s /bin/sh -c : "$bf_name" 2>/dev/null; then
    set -- su -m -s /bin/sh -c 'exec "$@"' "$bf_name" sh "$@"
  else
    echo "neither setpriv nor chroot nor su can run the entrypoint as the image's USER $bf_u" >&2; exit 125
  fi
  [ -n "$bf_o" ] || export HOME="$bf_home"
fi
ulimit -S -m 9007199254740991
eval "$bf_s"
unset bf_s bf_w bf_u bf_o bf_n bf_l bf_name bf_group bf_uid bf_gid bf_home bf_all
unset bf_a bf_x bf_i bf_j bf_c bf_d bf_r bf_m
set +f
exec "$@" </dev/null
"""
