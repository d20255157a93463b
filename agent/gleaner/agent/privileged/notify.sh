#!/bin/sh -p
# CRIU's action script: passes each of its notifications on to the program that has called it (criu.py). With -p, as CRIU may
# run with another real than effective user, and a shell would drop its rights otherwise.
printf '%s %s\n' "$CRTOOLS_SCRIPT_ACTION" "${CRTOOLS_INIT_PID:-0}" >"$GLEANER_OWN/said" || exit 1
read -r answer <"$GLEANER_OWN/answered"
[ "$answer" = ok ]
