"""The audit of a run directory: every derived number computed again from the raw evidence.

It shares no arithmetic with ``otel_grpo.core``: of ours it imports the record types alone, so that
a wrong formula there cannot hide itself here.
"""

from otel_grpo.audit.report import Finding, Report, render
from otel_grpo.audit.run import audit

__all__ = ["Finding", "Report", "audit", "render"]
