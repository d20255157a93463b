#!/bin/sh
# Install what must run as root on a compute node: install-node.sh [--from FOLDER] [OPTION...]; --help says which.
#
# The programs come from the installed package of the agent, /opt/gleaner (or FOLDER, which holds gleaner/agent). They are
# copied to /usr/local/lib/gleaner, because they must not change when somebody upgrades the agent, and are run by the
# system's own Python. The rest is `install/main.py` there.
set -eu

if [ "${1:-}" = --from ]; then
    found=${2:?--from wants a folder}
    shift 2
else
    found=
    for folder in /opt/gleaner/lib/python3*/site-packages; do
        [ ! -e "$folder/gleaner/agent/privileged/install/main.py" ] || found=$folder
    done
    if [ -z "$found" ]; then
        echo "install-node: the agent is not installed in /opt/gleaner; say --from FOLDER (the one that holds gleaner/agent/)" >&2
        exit 1
    fi
fi
exec /usr/bin/python3 -I -S -B -c 'import sys; sys.path.append(sys.argv.pop(1)); from gleaner.agent.privileged.install.main import main; main()' \
    "$found" "$@"
