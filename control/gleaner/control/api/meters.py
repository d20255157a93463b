"""What control counts and measures while it answers, for Prometheus. One `Meters` an app; nothing is global."""

import time
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gleaner.agent.protocol import Slice

_SECONDS = (0.5, 1, 2, 5, 10, 20, 40, 60, 90, 120, 240, 480)
_LATENESS = (-600, -120, -60, -30, -10, -5, 0, 1, 2, 5, 10, 20, 30, 60, 120, 300)
Family = tuple[str, str, Mapping[str, float]]
"""What it means, the label (or empty), and the values by label."""
_LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Meters:
    """Counters and histograms since control started, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Histogram(
            "gleaner_request_seconds",
            "Time to answer a request, by what was asked and the status",
            ["call", "status"],
            buckets=_LATENCIES,
            registry=self.registry,
        )
        self.claimed = Counter("gleaner_jobs_claimed", "Jobs handed to agents", registry=self.registry)
        self.refused = Counter(
            "gleaner_reports_refused",
            "Reports of attempts that were not current (409), by kind",
            ["report"],
            registry=self.registry,
        )
        self.saves = Histogram(
            "gleaner_save_seconds",
            "From the order to save until the generation was published",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.restores = Histogram(
            "gleaner_restore_seconds",
            "From the claim of a saved job until its process ran",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.lateness = Histogram(
            "gleaner_agent_lateness_seconds",
            "When an agent was done against the end it was submitted for; above 0 it was late",
            buckets=_LATENESS,
            registry=self.registry,
        )

    def slice_ended(self, a_slice: Slice, *, saved: bool) -> None:
        """Take the times of one attempt. A job that started anew has no restore to measure."""
        if saved:
            self.saves.observe(a_slice.save_s)
        if a_slice.restore_s > 0:
            self.restores.observe(a_slice.restore_s)


class Gauges(Collector):
    """Values that are read at the time of the scrape."""

    def __init__(self, families: Mapping[str, Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One metric family an entry."""
        for name, (meaning, label, values) in self._families.items():
            family = GaugeMetricFamily(name, meaning, labels=[label] if label else [])
            for key, value in values.items():
                family.add_metric([key] if label else [], value)
            yield family


class Stopwatch:
    """Measures how long each request takes until its answer begins. The label is the route's name, never a path."""

    def __init__(self, app: ASGIApp, *, meters: Meters) -> None:
        self._app = app
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                call = getattr(scope.get("endpoint"), "__name__", "none")
                took_s = time.perf_counter() - began_s
                self._meters.requests.labels(call, str(message["status"])).observe(took_s)
            await send(message)

        await self._app(scope, receive, sending)
