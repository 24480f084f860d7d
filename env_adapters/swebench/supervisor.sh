# First process of a sandbox: runs the host's commands one at a time and enforces the limits.
#
# Arguments: processes, memory in KiB, seconds of CPU, files.
# A request on standard input is a line "mark session size1 size2", then a command of size1 bytes, then its standard
# input, size2 bytes of base64. Output of commands is passed on unchanged; after each command follows "\0mark status\0".
# A line that arrives while a command runs stops it. While no command runs, all processes but this one are suspended.
# As process 1 it cannot be signalled from inside, and when it ends the kernel kills all other processes.

[ $$ = 1 ] || exit 1 # otherwise "kill -1" below would hit processes outside of the sandbox
set -f
exec 9>&1 2>/dev/null
# Bash has handlers of its own for these, which would end it. The kernel does not deliver signals without a handler to
# process 1.
trap : HUP INT QUIT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM TERM XCPU XFSZ VTALRM PROF SYS
processes=$1 memory=$2 cpu=$3 files=$4
pages=$((memory * 1024 / $(getconf PAGESIZE)))
seen_files=0

limited() {
  # Twice what `exceeded` allows, so that the supervisor's own commands can still start when the limit is reached.
  ulimit -c 0 -t "$cpu" -d "$memory" -v $((512 * memory)) -u $((2 * processes)) -n 1024
  exec "$@"
}

start() {
  coproc SHELL { limited bash --noprofile --norc 3>&1 >&9 2>&1 9>&-; }
  printf '%s\n' 'if [ -r ~/.bashrc ]; then . ~/.bashrc; fi </dev/null 3>&-' >&"${SHELL[1]}"
}

# With this shell's own program, which is unreadable, and of which no file may be left: an evaluation script holds the
# hidden tests, and what it runs could otherwise read them in the memory of the shell.
alone() (
  limited /proc/self/exe --noprofile --norc <(printf '%s\n' "$command") >&9 2>&1 9>&-
)

exceeded() {
  local statm size resident total=0 path kind used
  set +f
  local tasks=(/proc/[0-9]*/task/[0-9]*) statms=(/proc/[0-9]*/statm)
  set -f
  if ((${#tasks[@]} > processes)); then status=processes; return; fi
  for statm in "${statms[@]}"; do
    # Page tables are not resident memory; a process that reads one byte of every 2 MiB has a page of them for each.
    { read -r size resident _ <"$statm"; } 2>/dev/null && ((total += resident + size / 512))
  done
  if ((total > pages)); then status=memory; return; fi
  (($1 % 10)) && return 1
  total=0
  for path in . /tmp; do
    read -r kind used < <(stat -f -c '%T %c-%d' "$path")
    [ "$kind" = tmpfs ] && ((total = used > total ? used : total)) # on other file systems this is the number of files on the whole disk
  done
  # Only if the number grows: with too many files it must still be possible to delete some.
  used=$seen_files seen_files=$total
  if ((total > files && total > used)); then status=files; return; fi
  return 1
}

# Sets `status` to the exit status that follows the mark on descriptor $1, or to the reason for no longer waiting for it.
await() {
  local tick=0 line='' part code
  while :; do
    IFS= read -r -t 0.1 -u "$1" part
    code=$? line+=$part # the timeout may split a line
    case $code,$line in
      "0,$mark "*)
        status=${line#* }
        exceeded 1 # so that no processes above the limits are left suspended
        return
        ;;
      0,*) line= ;; # a line without the mark is not ours
      1,*) status=exited; return ;;
    esac
    if read -r -t 0; then
      read -r || exit
      status=stopped
      return
    fi
    exceeded "$((tick++))" && return
  done
}

# Kills all other processes and waits until they are gone: one that is writing when the signal arrives still finishes that
# write, and its output would come after the mark, as that of the next command.
end_all() {
  local others
  set +f
  # Bash may miss that an orphan has ended, and `wait` does not know orphans; it collects all that have ended whenever it
  # waits for a subshell.
  while kill -KILL -1; wait; others=(/proc/[0-9]*); ((${#others[@]} > 1)); do (:); done
  set -f
}

start
while read -r mark session size1 size2; do
  [ -n "$mark" ] || continue # a request to stop that came too late
  command=$(head -c "$size1")
  data=; ((size2)) && data=$(head -c "$size2")
  if ((session)); then
    kill -CONT -1
    printf '%s\n' "$command" >&"${SHELL[1]}"
    await "${SHELL[0]}"
  else
    if ((size2)); then
      exec {channel}< <(alone < <(printf %s "$data" | base64 -d); echo $mark $?)
    else
      exec {channel}< <(alone </dev/null; echo $mark $?)
    fi
    await "$channel"
    exec {channel}<&-
  fi
  if [[ $status == [0-9]* ]]; then
    kill -STOP -1
  else
    end_all
    start
  fi
  printf '\0%s %s\0' "$mark" "$status"
done
