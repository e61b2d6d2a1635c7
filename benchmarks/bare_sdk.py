"""A training that is observed by the bare SDK and its OTLP exporter; run as a script.

It makes so many spans and a few metrics, says when it is done, and ends as the SDK ends.
"""

from __future__ import annotations

import logging
import sys
import time

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor


def main() -> None:
    logging.disable()  # it tells of each attempt
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = provider.get_tracer("benchmark")
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    counter = meters.get_meter("benchmark").create_counter("windows")
    for _ in range(int(sys.argv[1])):
        with tracer.start_as_current_span("rl.sample"):
            counter.add(1)
    print(time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
