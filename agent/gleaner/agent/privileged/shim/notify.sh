#!/bin/sh -p
# CRIU's action script: passes each of its notifications on to the program that has called it (criu_call). With -p, as CRIU may
# run with another real than effective user, and a shell would drop its rights otherwise.
#
# That program may have been killed, now or before. Then CRIU must hear a no, and undo what it has done. So nothing here
# waits for that program to open its ends of the pipes: a pipe that is opened to read and to write is open at once. What
# is left to wait for is the answer, from an end that only that program writes to: without it, there is nothing to read.
exec 4<>"$GLEANER_OWN/notifications" 5<>"$GLEANER_OWN/answers" 3<"$GLEANER_OWN/answers" 5>&- || exit 1
printf '%s %s\n' "$CRTOOLS_SCRIPT_ACTION" "${CRTOOLS_INIT_PID:-0}" >&4 || exit 1
read -r answer <&3
[ "$answer" = ok ] && exit 0
# Here CRIU lets the processes go on whatever it hears.
[ "$CRTOOLS_SCRIPT_ACTION" != pre-resume ] || kill -KILL "$CRTOOLS_INIT_PID"
exit 1
