"""Metrics, traces and logs."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node import logs, telemetry
from node.config import NodeConfig
from node.errors import ConfigError
from node.telemetry import Metrics, Telemetry


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metrics]:
    """Fresh counters in place of the process's."""
    fresh = Metrics()
    monkeypatch.setattr(telemetry, "_metrics", fresh)
    yield fresh


@pytest.mark.asyncio
async def test_the_names_that_dashboards_and_alerts_use_are_the_ones_we_serve(counters: Metrics) -> None:
    """Names as in the operations guide's queries; what was counted before the first scrape is in it."""
    counters.lease_renewed("success")
    counters.lease_renewed("failure")
    counters.lease_renewed("success")
    counters.samples_trained(640)
    counters.data_fetched(0.3)
    counters.job_workers("gone", 5)
    counters.job_workers("j1", 1)
    counters.job_workers("j2", 1)
    counters.job_workers("gone", 0)
    counters.bytes_sent(1000)
    counters.bytes_received(500)
    counters.bytes_served("text", 77)
    counters.jobs_changed(1)
    exports = Telemetry(NodeConfig())
    text = (await exports.render()).decode()
    counters.data_fetched(70.0)
    lines = set((await exports.render()).decode().splitlines())
    await exports.stop()
    assert 'hypha_data_fetch_duration_bucket{le="0.5"} 1.0' in text.splitlines()
    assert lines >= {
        'hypha_lease_renewals_total{status="success"} 2.0',
        'hypha_lease_renewals_total{status="failure"} 1.0',
        "hypha_training_samples_total 640.0",
        'hypha_data_fetch_duration_bucket{le="60"} 1.0',
        'hypha_data_fetch_duration_bucket{le="+Inf"} 2.0',
        "hypha_active_workers 2.0",
        "hypha_network_bytes_sent_total 1000.0",
        "hypha_network_bytes_received_total 500.0",
        'hypha_data_bytes_served_total{dataset="text"} 77.0',
        "hypha_active_jobs 1.0",
        "hypha_active_streams 0.0",
    }


@pytest.mark.asyncio
async def test_renewals_are_served_before_the_first_one(counters: Metrics) -> None:
    exports = Telemetry(NodeConfig())
    assert b'hypha_lease_renewals_total{status="failure"} 0.0' in await exports.render()
    await exports.stop()


def test_label_values_are_bounded(counters: Metrics) -> None:
    for number in range(500):
        counters.bytes_served(f"d{number}", 1)
    served = next(series for series in counters.series() if series.label == "dataset").values()
    assert len(served) == telemetry.LABEL_VALUES_KEPT + 1
    assert sum(served.values()) == 500


def test_streams_are_counted_down_when_they_fail(counters: Metrics) -> None:
    with pytest.raises(ValueError, match="x"), counters.stream():
        raise ValueError("x")
    assert next(series for series in counters.series() if "streams" in series.name).values() == {"": 0}


@pytest.mark.asyncio
async def test_a_collector_that_never_answers_does_not_hold_up_the_end(
    counters: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U66: the SDK's own shutdown takes up to 10 s."""
    monkeypatch.setattr(telemetry, "STOP_WITHIN_S", 0.2)
    silent = socket.create_server(("127.0.0.1", 0))
    exports = Telemetry(NodeConfig(telemetry_endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}"))
    await exports.render()
    with telemetry.span("lease.renew", lease="l1"):
        assert telemetry.trace_headers().keys() >= {"traceparent"}
    began = time.monotonic()
    await exports.stop()
    took = time.monotonic() - began
    silent.close()
    assert took < 1.5
    assert telemetry.trace_headers() == {}


@pytest.mark.parametrize("protocol", ["grpc", "http/json"])
def test_a_protocol_whose_exporter_is_missing_is_one_clear_error(protocol: str) -> None:
    with pytest.raises(ConfigError, match="pip install opentelemetry-exporter-otlp") as caught:
        Telemetry(NodeConfig(telemetry_endpoint="http://collector:4318", telemetry_protocol=protocol))  # type: ignore[arg-type]
    assert caught.value.exit_code == 2


def test_an_unknown_sampler_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match="traceidratio"):
        Telemetry(NodeConfig(telemetry_endpoint="http://collector:4318", telemetry_sampler="sometimes"))


def test_the_import_brings_no_sdk() -> None:
    code = (
        "import sys, node.telemetry; print([m for m in sys.modules if m.startswith(('opentelemetry', 'prometheus'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_upstreams_log_directives_are_understood() -> None:
    assert logs.parse("hypha=info,hypha_network=debug") == [
        ("node", logging.INFO),
        ("node.network", logging.DEBUG),
    ]
    assert logs.parse("warn, node.worker=trace, nonsense") == [
        ("", logging.WARNING),
        ("node.worker", logging.DEBUG),
    ]


def test_a_log_line_is_one_line_whatever_a_peer_sent() -> None:
    record = logging.LogRecord("node.x", logging.INFO, "", 0, "peer.said text=%s", ("a\n2026 error forged",), None)
    line = logs.LineFormatter().format(record)
    assert "\n" not in line
    assert line.endswith(r" info node.x peer.said text=a\n2026 error forged")


def test_the_log_goes_to_stderr_at_the_level_asked_for(tmp_path: Path) -> None:
    code = (
        "import logging; from node import logs; logs.setup('node.quiet=error')\n"
        "logging.getLogger('node.loud').info('a.b x=%s', 1)\n"
        "logging.getLogger('node.quiet').info('c.d')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr.endswith("Z info node.loud a.b x=1\n")
    assert "c.d" not in done.stderr


def test_a_trace_goes_on_at_the_other_end_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(telemetry, "_tracer", provider.get_tracer("test"))
    with telemetry.span("call"):
        headers = telemetry.trace_headers()
    with telemetry.span("answer", carrier=headers, lease="l1"):
        pass
    call, answer = kept.get_finished_spans()
    assert answer.parent is not None
    assert (answer.context.trace_id, answer.parent.span_id) == (call.context.trace_id, call.context.span_id)
    assert answer.attributes == {"lease": "l1"}
