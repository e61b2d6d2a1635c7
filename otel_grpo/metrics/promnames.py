"""What a metric is called behind Prometheus' OTLP receiver, by its default translation.

Dots become underscores, units become suffixes, and a counter ends in ``_total``: the rules that
Prometheus names ``UnderscoreEscapingWithSuffixes``.
"""

from __future__ import annotations

import re

from otel_grpo.metrics.catalogue import Metric

_UNITS = {"s": "seconds", "By": "bytes", "J": "joules", "W": "watts", "Cel": "celsius"}
_RATES = {"s": "second"}
_OF_HISTOGRAM = ("_bucket", "_sum", "_count")


def name_of(metric: Metric) -> str:
    """The name of its series; a histogram's without ``_bucket``, ``_sum`` and ``_count``."""
    tokens = re.findall(r"[A-Za-z0-9:]+", metric.name)
    unit, _, per = metric.unit.partition("/")
    for suffix in ([_UNITS.get(unit, "")], ["per", _RATES[per]] if per else []):
        if suffix[-1:] != [""] and not set(suffix[-1:]) & set(tokens):
            tokens += suffix
    last = {"counter": "total", "gauge": "ratio" if metric.unit == "1" else ""}.get(metric.kind)
    if last:
        tokens = [token for token in tokens if token != last] + [last]
    return "_".join(tokens)


def series_of(metric: Metric) -> tuple[str, ...]:
    """The names of all its series."""
    name = name_of(metric)
    return tuple(name + part for part in _OF_HISTOGRAM) if metric.kind == "histogram" else (name,)


def label_of(name: str) -> str:
    """The name of a label, or of a resource attribute that is promoted to one."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)
