"""Memoryless fair share: the start of a waiting job, and the running jobs that are preempted for it. Pure.

The method is OMFS (Zvi and Oren, "Optimized Memoryless Fair-Share HPC Resources Scheduling using Transparent
Checkpoint-Restart Preemption", 2021). Each owner is entitled to a part of the machine, may use more while others do
not want theirs, and gives it back when they do. Nothing is remembered: only what runs and what waits now counts.

The paper's section II says it twice, in words and as Algorithm 1, and not the same. The words count here. The
simulator has a twin of these rules, and there the listing is an option (`literal`), to study it. What was read how,
with the lines of the listing:

- Line 3 starts with no idle CPU and an empty machine would stay empty, since nothing ever ends in the listing. Idle is
  what the caller says; a replay starts with all of it.
- Lines 19 to 21: "preemptable" is whoever may be vacated, by a kill or by a save.
- Line 22: owed by its words, a non-preemptible job runs "up to the entitlement", so what is exactly as large may. The
  listing refuses it. So non-preemptible jobs never hold more than the entitlement, and all that an owner has above it
  can be taken back.
- Line 26: what is idle is enough when it is as much as asked; the listing wants more, and a job exactly as large goes
  on to the test of line 27.
- Line 27: a job that fits what is left of its owner's entitlement, all of the owner's jobs counted, is a claim. Any
  other job runs on what is idle, and may be larger than the entitlement unless it is non-preemptible; but not while
  its owner was promised units that it does not have yet, or it might be vacated before they come.
- Line 32 takes the least prioritised of all that runs: even of an owner within its entitlement, of the claim's own
  owner, or of one that may not be preempted. By the words victims are preemptible or checkpointable jobs "of entities
  utilizing more than their allotment". An owner that falls to its entitlement while victims are chosen is spared.
- Line 32, the order: the queue of running jobs "demotes jobs that have been running uninterruptedly for at least a
  quantum", so those come first. Next, which the paper leaves open, come jobs that push their owner the least below
  its entitlement; then the least priority (line 11 has it count within one user, here it counts for all); then what is
  cheapest to vacate: the time of a save, or what a killed job has computed.
- "Each job is allowed a quantum: a minimal running duration": with `protects` no job is vacated within its quantum, so
  saves are bounded and a claim waits for a quantum at most. Without, such jobs come last, and a claim never waits.
- Line 31 stops as soon as enough is freed. A job is spared again if those chosen after it are enough alone.
- Line 33 drops what cannot be saved. By its words such a job "may be killed": the caller lets it start over.
- Line 36 counts what is vacated as idle at once. A save takes time, so `coming` is what is being freed and is
  promised to nobody: it is not freed a second time.

The caller asks for each waiting job in turn, and takes each answer before the next question:

1. The claims, in the order of the queue. When one had others vacated, it asks again for those that had to wait: an
   owner that has just lost a job may have become entitled to another.
2. Then the others, in the order of the queue, unless a claim was told to `WAIT`: what is idle is kept for it. So no
   owner comes above its entitlement while a claim waits, all that is above it has soon run for a quantum, and the
   claim goes on then. The listing knows no such order: with `literal` each job is asked for once, claim or not.

That no claim waits for longer follows by counting. Idle, coming and used units are the whole machine, and entitlements
are no more than that. So if a claim fits its owner's entitlement and what is idle or coming is not enough, another
owner is above its own, and has preemptible jobs there. Nor does it go round in circles. Who claims is within its
entitlement afterwards, and is not vacated before it has taken idle units beyond it. A job that was just vacated is no
claim: its owner was above its entitlement with it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gleaner.control.policy.entitlements_view import EntitlementRules, RunningJob
from gleaner.control.policy.job_class import JobClass


@dataclass(slots=True)
class OwnerCpus:
    """The CPUs of one owner while decisions are taken. CPUs that are being vacated are not used."""

    entitled: int = 0
    used: int = 0
    used_fixed: int = 0
    """Of the used CPUs those of non-preemptible jobs."""
    promised: int = 0
    """Of the used CPUs those of claims that have not started."""

    def is_claim(self, cpus: int) -> bool:
        """Return True if a job of so many CPUs fits what is left of the entitlement."""
        return cpus <= self.entitled - self.used

    def would_exceed(self, cpus: int, job_class: JobClass) -> bool:
        """Return True if the owner's non-preemptible jobs would be more than its entitlement with this job."""
        return job_class is JobClass.NON_PREEMPTIBLE and self.used_fixed + cpus > self.entitled

    def may_use_idle(self, cpus: int) -> bool:
        """Return True if a job of so many CPUs starts where as many are idle."""
        return self.is_claim(cpus) or self.promised == 0

    def count(self, cpus: int, job_class: JobClass) -> None:
        """Count the CPUs of one more job as used."""
        self.used += cpus
        self.used_fixed += cpus if job_class is JobClass.NON_PREEMPTIBLE else 0


def victims(
    running: Sequence[RunningJob],
    gives: Callable[[RunningJob], int],
    owners: Mapping[str, OwnerCpus],
    missing: int,
    *,
    now_s: float,
    rules: EntitlementRules,
) -> list[RunningJob]:
    """Return the running jobs to preempt so that a claim gets what it misses, in the order chosen; empty if too few.

    `gives` returns what the claim could use of a job: all its CPUs, where CPUs need only be counted.
    """
    left = {name: owner.used for name, owner in owners.items()}
    chosen: list[RunningJob] = []

    def is_young(job: RunningJob) -> bool:
        return now_s < job.since_s + rules.quantum_s

    def order(job: RunningJob) -> tuple[bool, int, int, float]:
        below = max(0, owners[job.owner].entitled - (left[job.owner] - job.cpus))
        lost_s = job.cost_s if job.job_class is JobClass.CHECKPOINTABLE else now_s - job.since_s
        return is_young(job), below, job.priority, lost_s

    candidates = [
        job
        for job in running
        if job.job_class is not JobClass.NON_PREEMPTIBLE
        and gives(job) > 0
        and not (rules.quantum_protects and is_young(job))
    ]
    surplus = -missing
    while surplus < 0:
        above = [job for job in candidates if left[job.owner] > owners[job.owner].entitled]
        if not above:
            return []
        chosen.append(min(above, key=order))
        candidates.remove(chosen[-1])
        left[chosen[-1].owner] -= chosen[-1].cpus
        surplus += gives(chosen[-1])
    # Those chosen first may not be needed beside those chosen last; who was the last to be chosen is spared first.
    for job in reversed(chosen.copy()):
        if gives(job) <= surplus:
            surplus -= gives(job)
            chosen.remove(job)
    return chosen
