#!/bin/sh
# Accounts of the demo's cluster. The last block is what a real site adds for Gleaner (docs/admin/install.md).
set -e
sacctmgr -i add cluster gleaner
sacctmgr -i add account physics chemistry biology Description=group Organization=demo
sacctmgr -i add user alice Account=physics
sacctmgr -i add user bob Account=chemistry
sacctmgr -i add user carol Account=biology

# UsageFactor=0: what agents use counts in nobody's fair share. NoReserve: a waiting agent never keeps a node free.
sacctmgr -i add qos gleaner UsageFactor=0 Flags=NoReserve
sacctmgr -i add account gleaner Description=agents Organization=demo
sacctmgr -i add user gleaner Account=gleaner QOS=gleaner DefaultQOS=gleaner

# Where Gleaner enforces entitlements, or drains nodes. The Slurm admin service submits nothing itself.
sacctmgr -i add user gleaner-slurm-admin Account=gleaner AdminLevel=Administrator
sacctmgr -i modify user gleaner-slurm-admin set MaxSubmitJobs=0
