"""Metrics and traces: what this process counts, `/metrics` in Prometheus' form, and OTLP push where it is configured.

Roles count by `metrics().bytes_sent(n)` and time by `with span("lease.renew"): ..`. Counting is an addition under a
lock; the OpenTelemetry SDK is imported by the first scrape or push, in a thread, so that a node starts without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from node.errors import ConfigError
from node.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer
    from prometheus_client import CollectorRegistry

    from node.config import NodeConfig

log = logging.getLogger(__name__)

STOP_WITHIN_S = 1.0
EXPORT_TIMEOUT_S = 3
PUSH_EVERY_S = 15
LABEL_VALUES_KEPT = 100
EARLY_DURATIONS_KEPT = 1_000
DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
EXPORTERS = {
    "http/protobuf": ("opentelemetry.exporter.otlp.proto.http", "opentelemetry-exporter-otlp-proto-http"),
    "http/json": ("opentelemetry.exporter.otlp.json.http", "opentelemetry-exporter-otlp-json-http"),
    "grpc": ("opentelemetry.exporter.otlp.proto.grpc", "opentelemetry-exporter-otlp-proto-grpc"),
}
SAMPLERS = (
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)


class Series:
    """One metric: a number for each value of its label. Beyond 100 label values, the rest share `other`."""

    def __init__(
        self, name: str, about: str, *, label: str = "", first: tuple[str, ...] = ("",), grows: bool = True
    ) -> None:
        self.name = name
        self.about = about
        self.label = label
        self.grows = grows
        self._values: dict[str, float] = dict.fromkeys(first, 0.0)
        self._lock = threading.Lock()

    def add(self, amount: float, value: str = "") -> None:
        """Add to the number at this label value; any thread may."""
        with self._lock:
            if value not in self._values and len(self._values) >= LABEL_VALUES_KEPT:
                value = "other"
            self._values[value] = self._values.get(value, 0) + amount

    def set(self, amount: float) -> None:
        """Set the number of a metric without label."""
        with self._lock:
            self._values[""] = amount

    def values(self) -> dict[str, float]:
        """A copy of all numbers, by label value."""
        with self._lock:
            return dict(self._values)


class Metrics:
    """Everything a node counts; one method for each thing that happens."""

    def __init__(self) -> None:
        self._renewals = Series(
            "hypha_lease_renewals", "Lease renewals, by outcome", label="status", first=("success", "failure")
        )
        self._samples = Series("hypha_training_samples", "Samples that executors of this node trained on")
        self._sent = Series("hypha_network_bytes_sent", "Bytes of messages and files sent to peers")
        self._received = Series("hypha_network_bytes_received", "Bytes of messages and files received from peers")
        self._served = Series(
            "hypha_data_bytes_served", "Bytes of slices served, by dataset", label="dataset", first=()
        )
        self._slice_requests = Series(
            "hypha_data_slice_requests", "Requests for slices that were answered", label="dataset", first=()
        )
        self._serving = Series(
            "hypha_data_serving_seconds",
            "Seconds from the request for a slice to the last of its bytes, added up",
            label="dataset",
            first=(),
        )
        self._slices = Series("hypha_data_slices", "Slices that this node serves", grows=False)
        self._stored = Series("hypha_data_stored_bytes", "Bytes of the slices that this node serves", grows=False)
        self._requests = Series(
            "hypha_requests", "Requests from peers and operators, by method", label="method", first=()
        )
        self._exported = Series("hypha_exported_values", "Values of metrics written, by sink", label="sink", first=())
        self._not_exported = Series(
            "hypha_export_dropped_values", "Values of metrics that a sink did not take", label="sink", first=()
        )
        self._workers = Series("hypha_active_workers", "Workers under lease to this node's scheduler", grows=False)
        self._streams = Series("hypha_active_streams", "Bulk transfers and event streams being served", grows=False)
        self._jobs = Series("hypha_active_jobs", "Jobs this node schedules", grows=False)
        self._tasks = Series("hypha_active_tasks", "Tasks this node runs", grows=False)
        self._workers_of_job: dict[str, int] = {}
        self._early: deque[float] = deque(maxlen=EARLY_DURATIONS_KEPT)
        self._recorders: list[Callable[[float], None]] = []

    def lease_renewed(self, status: str) -> None:
        """A scheduler's renewal came out as `success` or `failure`."""
        self._renewals.add(1, status)

    def samples_trained(self, count: int) -> None:
        """An executor of this node reported `count` more samples."""
        self._samples.add(count)

    def data_fetched(self, seconds: float) -> None:
        """A slice was fetched, from request to verified file, in `seconds`."""
        for record in self._recorders:
            record(seconds)
        if not self._recorders:
            self._early.append(seconds)

    def bytes_sent(self, count: int) -> None:
        """`count` bytes of bulk data went to a peer."""
        self._sent.add(count)

    def bytes_received(self, count: int) -> None:
        """`count` bytes of bulk data came from a peer."""
        self._received.add(count)

    def bytes_served(self, dataset: str, count: int) -> None:
        """`count` bytes of this dataset's slices were served; they also count as sent where they are sent."""
        self._served.add(count, dataset)

    def slice_served(self, dataset: str, seconds: float) -> None:
        """A request for a slice of this dataset, or for a part of one, was answered in `seconds`."""
        self._slice_requests.add(1, dataset)
        self._serving.add(seconds, dataset)

    def datasets_held(self, slices: int, size_bytes: int) -> None:
        """This node serves so many slices with so many bytes, of all its datasets."""
        self._slices.set(slices)
        self._stored.set(size_bytes)

    def request_handled(self, method: str) -> None:
        """The operator API was asked; `method` is a route of ours (`GET /events`), never a caller's text."""
        self._requests.add(1, method)

    def values_exported(self, sink: str, count: int) -> None:
        """`count` values of metrics were written to this sink."""
        self._exported.add(count, sink)

    def values_dropped(self, sink: str, count: int) -> None:
        """`count` values of metrics are lost to this sink."""
        self._not_exported.add(count, sink)

    def job_workers(self, job_id: str, count: int) -> None:
        """A job of this node's scheduler has so many workers; 0 forgets the job."""
        self._workers_of_job[job_id] = count
        if not count:
            del self._workers_of_job[job_id]
        self._workers.set(sum(self._workers_of_job.values()))

    def jobs_changed(self, by: int) -> None:
        """This node's scheduler began (1) a job, or ended it (-1)."""
        self._jobs.add(by)

    def tasks_changed(self, by: int) -> None:
        """A task began (1) or ended (-1) on this node."""
        self._tasks.add(by)

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Count a transfer or event stream as active for the length of the block."""
        self._streams.add(1)
        try:
            yield
        finally:
            self._streams.add(-1)

    def series(self) -> list[Series]:
        """All metrics but the durations."""
        return [
            self._renewals,
            self._samples,
            self._sent,
            self._received,
            self._served,
            self._slice_requests,
            self._serving,
            self._slices,
            self._stored,
            self._requests,
            self._exported,
            self._not_exported,
            self._workers,
            self._streams,
            self._jobs,
            self._tasks,
        ]

    def record_durations(self, record: Callable[[float], None]) -> None:
        """Pass fetch durations to `record`, beginning with those seen before the first recorder."""
        while self._early:
            record(self._early.popleft())
        self._recorders.append(record)

    def forget_durations(self, record: Callable[[float], None]) -> None:
        """Stop passing durations to `record`."""
        self._recorders.remove(record)


_metrics = Metrics()
_tracer: Tracer | None = None


def metrics() -> Metrics:
    """The counters of this process."""
    return _metrics


@contextlib.contextmanager
def span(name: str, *, carrier: Mapping[str, str] | None = None, **attributes: str | int | float) -> Iterator[None]:
    """A trace span around the block, below the one in `carrier` (a request's headers); nothing where traces are off."""
    if _tracer is None:
        yield
        return
    from opentelemetry.propagate import extract

    context = extract(carrier) if carrier is not None else None
    with _tracer.start_as_current_span(name, context=context, attributes=attributes):
        yield


def trace_headers() -> dict[str, str]:
    """Headers that carry the current span to the peer that is called; empty where traces are off."""
    headers: dict[str, str] = {}
    if _tracer is not None:
        from opentelemetry.propagate import inject

        inject(headers)
    return headers


class Telemetry:
    """The exports of this process's metrics and traces; its life is the daemon's.

    Raises `ConfigError` where `telemetry_protocol` needs a package that is not installed.
    """

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._provider: MeterProvider | None = None
        self._traces: TracerProvider | None = None
        self._registry: CollectorRegistry | None = None
        self._record: Callable[[float], None] | None = None
        if config.telemetry_endpoint:
            _check_exporter(config.telemetry_protocol)
            if config.telemetry_sampler and config.telemetry_sampler not in SAMPLERS:
                raise ConfigError(
                    f"telemetry_sampler {config.telemetry_sampler!r} is unknown", hint=f"one of {', '.join(SAMPLERS)}"
                )

    def start(self) -> None:
        """Begin to push, where an endpoint is configured. Returns at once; the work is a thread's."""
        if self._config.telemetry_endpoint:
            threading.Thread(target=self._start_and_tell, name="telemetry-start", daemon=True).start()

    async def render(self) -> bytes:
        """The metrics in Prometheus' text form."""
        return await asyncio.to_thread(self._render)

    async def stop(self) -> None:
        """Push what is left and end, within a second even where the collector does not answer."""
        if self._provider is None:
            return
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def shut_down() -> None:
            self._shut_down()
            with contextlib.suppress(RuntimeError):  # the loop may be gone by now
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, name="telemetry-stop", daemon=True).start()
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await done.wait()
        except TimeoutError:
            log.warning("telemetry.stop_timed_out endpoint=%s", self._config.telemetry_endpoint)

    def _start_and_tell(self) -> None:
        try:
            self._set_up()
        except Exception:
            log.exception("telemetry.not_started endpoint=%s", self._config.telemetry_endpoint)

    def _render(self) -> bytes:
        registry = self._set_up()
        from prometheus_client import generate_latest

        return generate_latest(registry)

    def _set_up(self) -> CollectorRegistry:
        with self._lock:
            if self._registry is not None:
                return self._registry
            from opentelemetry.exporter.prometheus import PrometheusMetricReader
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.resources import Resource
            from prometheus_client import CollectorRegistry

            registry = CollectorRegistry()
            readers: list[MetricReader] = [
                PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=registry)
            ]
            attributes = {"service.name": "hypha-node", "service.version": __version__}
            resource = Resource({**attributes, **self._config.telemetry_attributes})
            if self._config.telemetry_endpoint:
                readers.append(self._push_metrics())
                self._traces = self._push_traces(resource)
            self._provider = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
            self._record = _instrument(self._provider.get_meter("hypha"))
            self._registry = registry
            return registry

    def _push_metrics(self) -> MetricReader:
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        exporter = self._exporter("metric_exporter", "OTLPMetricExporter", "v1/metrics")
        return PeriodicExportingMetricReader(exporter, PUSH_EVERY_S * 1_000, EXPORT_TIMEOUT_S * 1_000)

    def _push_traces(self, resource: Resource) -> TracerProvider:
        from opentelemetry.sdk.trace import TracerProvider, sampling
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        ratio = self._config.telemetry_sample_ratio
        made = (
            sampling.ALWAYS_ON,
            sampling.ALWAYS_OFF,
            sampling.TraceIdRatioBased(ratio),
            sampling.DEFAULT_ON,
            sampling.DEFAULT_OFF,
            sampling.ParentBasedTraceIdRatio(ratio),
        )
        sampler = dict(zip(SAMPLERS, made, strict=True))[self._config.telemetry_sampler or SAMPLERS[-1]]
        provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
        exporter = self._exporter("trace_exporter", "OTLPSpanExporter", "v1/traces")
        provider.add_span_processor(BatchSpanProcessor(exporter, export_timeout_millis=EXPORT_TIMEOUT_S * 1_000))
        global _tracer
        _tracer = provider.get_tracer("hypha", __version__)
        return provider

    def _exporter(self, module: str, name: str, path: str) -> Any:
        protocol = self._config.telemetry_protocol
        endpoint = self._config.telemetry_endpoint.rstrip("/")
        if protocol != "grpc":
            endpoint = endpoint if endpoint.endswith(path) else f"{endpoint}/{path}"
        exporter = getattr(importlib.import_module(f"{EXPORTERS[protocol][0]}.{module}"), name)
        return exporter(endpoint=endpoint, headers=dict(self._config.telemetry_headers), timeout=EXPORT_TIMEOUT_S)

    def _shut_down(self) -> None:
        global _tracer
        _tracer = None
        if self._record is not None:
            _metrics.forget_durations(self._record)
        if self._traces is not None:
            self._traces.shutdown()
        if self._provider is not None:
            self._provider.shutdown(timeout_millis=STOP_WITHIN_S * 1_000)


def _check_exporter(protocol: str) -> None:
    if protocol not in EXPORTERS:
        raise ConfigError(f"telemetry_protocol {protocol!r} is unknown", hint=f"one of {', '.join(EXPORTERS)}")
    module, package = EXPORTERS[protocol]
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise ConfigError(
            f"telemetry_protocol {protocol!r} needs a package that is not installed",
            hint=f'`pip install {package}`, or set telemetry_protocol = "http/protobuf"',
        )


def _instrument(meter: Meter) -> Callable[[float], None]:
    from opentelemetry.metrics import Observation

    def reader(series: Series) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            label = series.label
            return [Observation(amount, {label: value} if label else {}) for value, amount in series.values().items()]

        return read

    for series in _metrics.series():
        create = meter.create_observable_counter if series.grows else meter.create_observable_gauge
        create(series.name, callbacks=[reader(series)], description=series.about)
    # A unit would be appended to the name that dashboards know.
    durations = meter.create_histogram(
        "hypha_data_fetch_duration",
        description="Seconds from asking for a slice to its verified file",
        explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S,
    )

    def record(seconds: float) -> None:
        durations.record(seconds)

    _metrics.record_durations(record)
    return record
