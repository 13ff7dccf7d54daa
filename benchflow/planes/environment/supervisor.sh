# Starts a world's services, keeps their logs, and writes down how they end. Runs in the sandbox as root, in whatever
# shell its image has (dash, busybox, bash), until it is killed. One of these is one epoch of the world.
#
# $1: the directory of this boot; $2: the epoch's number; $3: where services run; $4: seconds that a probe may
# take; $5: bytes that a log may have. Then four for each service: its name, what is to be done (ask: start it if its
# probe says that this image has it; yes: start it; no: leave it out; taken: as `ask`, but its port is taken), the first
# word of its command, its command.
#
# Files of a service, in the epoch's directory: NAME.probing, while its probe runs; then NAME.left_out (exit
# status of the probe), or NAME.taken, or NAME.pid (pid, start time of that pid, uptime at the start) and later
# NAME.exit (exit status, uptime at the end).
boot=$1 mine=$1/$2 logs=$1/logs place=$3 patience=$4 cap=$5
shift 5

[ -e "$mine/stopping" ] && exit 0
mkdir -p -m 0700 "$mine" "$logs" || exit 1
for other in "${boot%/*}"/* "$boot"/[0-9]*; do
  case $other in "$boot" | "$mine") ;; *) rm -rf "$other" ;; esac
done

put() { printf '%s\n' "$2" >"$1.part" && mv "$1.part" "$1"; }

now() { read -r up _ </proc/uptime; }

# When a process began, in clock ticks: that tells two users of one pid apart.
birth() {
  born=0
  { IFS= read -r row <"/proc/$1/stat"; } 2>/dev/null || return 0
  set -- ${row##*) }
  born=${20}
}

has() {
  (exec "$2" --help) </dev/null >"$logs/$1.probe" 2>&1 &
  put "$mine/$1.probing" $!
  wait $!
  said=$?
  rm -f "$mine/$1.probing"
  return $said
}

serve() {
  case $2 in
    yes) ;;
    no) put "$mine/$1.left_out" known && return ;;
    *) has "$1" "$3" || { put "$mine/$1.left_out" $said; return; } ;;
  esac
  [ "$2" = taken ] && put "$mine/$1.taken" "" && return
  [ -e "$mine/stopping" ] && return
  /bin/sh -c "$4" </dev/null >>"$logs/$1.log" 2>&1 &
  pid=$!
  birth $pid
  now
  put "$mine/$1.pid" "$pid $born $up"
  wait $pid
  code=$?
  now
  put "$mine/$1.exit" "$code $up"
}

# Whoever writes to a log has it open to append, so that it can be made shorter in its place.
trim() {
  for log in "$logs"/*; do
    [ "$(wc -c <"$log")" -gt "$cap" ] || continue
    # Whole, or not there: this may be stopped at any moment.
    [ -e "$log.head" ] || { head -c $((cap / 2)) "$log" >"$log.begun" && mv "$log.begun" "$log.head"; }
    tail -c $((cap / 2)) "$log" >"$log.tail"
    cat "$log.tail" >"$log"
    rm -f "$log.tail"
  done
}

birth $$
put "$mine/supervisor" "$$ $born"
cd "$place" 2>/dev/null || cd /
while [ $# -gt 0 ]; do
  serve "$1" "$2" "$3" "$4" &
  shift 4
done
waited=0
while :; do
  sleep 1
  waited=$((waited + 1))
  # Not just this once: on a busy machine a probe may begin late. Its file goes, since its pid may be used again.
  if [ $waited -ge "$patience" ]; then
    for probe in "$mine"/*.probing; do
      { read -r pid <"$probe" && rm -f "$probe" && kill -9 "$pid"; } 2>/dev/null
    done
  fi
  [ $((waited % 2)) -eq 0 ] && trim
done
