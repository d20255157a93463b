"""The counts and measurements that a running control program keeps for Prometheus.

Each app has its own `Instruments`, so nothing is global.
"""

from collections.abc import Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gleaner.agent.messages import Checkpointed, Completed, Returned, ReturnReason, Saved, Slice
from gleaner.control.queue.attempts import SAVE_FAILURES

_SECONDS = (0.5, 1, 2, 5, 10, 20, 40, 60, 90, 120, 240, 480)
_RATIOS = (0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10)
_LATENESS = (-600, -120, -60, -30, -10, -5, 0, 1, 2, 5, 10, 20, 30, 60, 120, 300)
Family = tuple[str, str, Mapping[str, float]]
"""The description of a metric, its label (or ""), and its values by label."""
_LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Instruments:
    """Counters and histograms since control's start, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        self.requests = histogram(
            "gleaner_request_seconds",
            "Time to answer a request, by what was asked and the status",
            ["call", "status"],
            buckets=_LATENCIES,
        )
        self.claimed = counter("gleaner_jobs_claimed", "Jobs handed to agents")
        self.refused = counter(
            "gleaner_reports_refused", "Reports of attempts that were not current (409), by kind", ["report"]
        )
        self.saves = histogram(
            "gleaner_save_seconds", "From the order to save until the checkpoint was published", buckets=_SECONDS
        )
        self.restores = histogram(
            "gleaner_restore_seconds", "From the beginning of a restore until the process ran", buckets=_SECONDS
        )
        self.save_errors = histogram(
            "gleaner_save_error_ratio",
            "How long a save took against what its agent had expected; above 1 it took longer",
            buckets=_RATIOS,
        )
        self.too_late = counter(
            "gleaner_saves_too_late",
            "Slices lost because their save, or storing their result, was not done at the agent's end",
        )
        self.failed_saves = counter("gleaner_saves_failed", "Tries to save that failed")
        self.saved_bytes = counter(
            "gleaner_saved_bytes", "What was saved: memory in use, and what was stored of it", ["of"]
        )
        self.restored_bytes = counter("gleaner_restored_bytes", "Sizes of restored checkpoints")
        self.lateness = histogram(
            "gleaner_agent_lateness_seconds",
            "When an agent was done against the end it was submitted for; above 0 it was late",
            buckets=_LATENESS,
        )

    def reported(self, report: Checkpointed | Saved | Completed | Returned) -> None:
        """Add the measurements of one report. A job that started from its beginning has no restore to measure."""
        if isinstance(report, Checkpointed | Saved):
            self._saved(report)
        if isinstance(report, Saved | Completed):
            self._restored(report.slice)
        if isinstance(report, Returned):
            self.too_late.inc(report.why is ReturnReason.TOO_LATE)
            self.failed_saves.inc(_is_failed_save(report))

    def _saved(self, report: Checkpointed | Saved) -> None:
        measured = report.measured
        if measured is None:
            if isinstance(report, Saved):
                self.saves.observe(report.slice.save_s)
            return
        self.saves.observe(measured.took_s)
        self.saved_bytes.labels("memory").inc(measured.memory_bytes)
        self.saved_bytes.labels("stored").inc(measured.stored_bytes)
        self.failed_saves.inc(measured.failed)
        if measured.expected_s:
            self.save_errors.observe(measured.took_s / measured.expected_s)

    def _restored(self, spent: Slice) -> None:
        if spent.restore_s > 0:
            self.restores.observe(spent.restore_s)
        if spent.restored is not None:
            self.restored_bytes.inc(spent.restored.stored_bytes)


def gauges(families: Mapping[str, Family]) -> CollectorRegistry:
    """Return a registry of gauges with the current values."""
    registry = CollectorRegistry()
    for name, (meaning, label, values) in families.items():
        gauge = Gauge(name, meaning, [label] if label else [], registry=registry)
        for key, value in values.items():
            (gauge.labels(key) if label else gauge).set(value)
    return registry


def _is_failed_save(report: Returned) -> bool:
    """Return True if the attempt ran but could not be saved, whether or not the storage was at fault."""
    has_run = report.slice is not None and report.slice.compute_s > 0
    return report.why in SAVE_FAILURES or (report.why is ReturnReason.STORAGE_FAULT and has_run)
