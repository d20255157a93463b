/*
 * In front of Slurm's own slurm_version.h. PySlurm's setup.py looks for the line below, as text, and refuses every
 * Slurm but 25.11. The compiler does not see it: what is built says truly which Slurm's header it was built with.
 */
#if 0
#define SLURM_VERSION_NUMBER 0x190b00
#endif
#include_next <slurm/slurm_version.h>
