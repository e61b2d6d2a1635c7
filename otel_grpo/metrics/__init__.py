"""Metrics of a run: the catalogue, its instruments, and what counts in them."""

from otel_grpo.metrics.instruments import Instruments

__all__ = ["Instruments"]
