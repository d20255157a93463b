#!/bin/sh
# Accounts of the demo's site, before Gleaner is set up there.
set -e
sacctmgr -i add cluster gleaner
sacctmgr -i add account physics chemistry biology Description=group Organization=demo
sacctmgr -i add user alice Account=physics
sacctmgr -i add user bob Account=chemistry
sacctmgr -i add user carol Account=biology
