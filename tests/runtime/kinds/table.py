"""Kinds of processes, and what is promised for each: it goes on as before, or it is not saved, for this reason.

The table in docs/user/kinds.md is this one.
"""

from tests.runtime.kinds import files, memory, messages, processes, timers

KINDS = (*memory.KINDS, *files.KINDS, *messages.KINDS, *timers.KINDS, *processes.KINDS)
