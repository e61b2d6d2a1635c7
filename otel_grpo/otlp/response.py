"""The protobuf messages that receivers answer with, over either protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_grpo.otlp.answer import PARTIAL_SUCCESS, Answer, shortened

if TYPE_CHECKING:
    from otel_grpo.otlp.answer import Signal


def taken(signal: Signal, body: bytes, where: str) -> Answer:
    """The answer to a request that was taken, perhaps but for some items.

    Of metrics a rejected point spoils its whole export, which is one item.
    """
    try:
        if signal == "traces":
            spans = ExportTraceServiceResponse.FromString(body).partial_success
            rejected, items, message = (
                spans.rejected_spans,
                spans.rejected_spans,
                spans.error_message,
            )
        else:
            points = ExportMetricsServiceResponse.FromString(body).partial_success
            rejected, message = points.rejected_data_points, points.error_message
            items = min(1, rejected)
    except DecodeError:  # it need not say more than that it has it
        return Answer("taken")
    if rejected <= 0:
        return Answer("taken")
    what = "spans" if signal == "traces" else "points"
    told = f"{where} refused {rejected} {what}: {shortened(message) or 'it does not say why'}"
    return Answer("taken", PARTIAL_SUCCESS, told, rejected=items)


def status_message(body: bytes) -> str:
    """What a receiver says about a failure; empty where it says nothing that can be read."""
    try:
        return shortened(Status.FromString(body).message)
    except DecodeError:
        return ""


def retry_delay_s(details: bytes) -> float | None:
    """How long a receiver wants to be left alone, from the details of a status."""
    try:
        for detail in Status.FromString(details).details:
            info = RetryInfo()
            if detail.Unpack(info):
                return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
    except DecodeError:
        pass
    return None
