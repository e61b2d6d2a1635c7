"""``--otlp URL``: where a collector takes spans and metrics. Light: `run` starts a training by it."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from otel_grpo.cli.problem import Problem

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
OF_SIGNALS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_MEND = "say where a collector listens, such as http://localhost:4318"


def checked(url: str) -> str:
    """The URL, fit for the standard variable. Raises Problem if it can be none."""
    where = "--otlp"
    if "@" in url.partition("?")[0]:
        what = "a password in a URL is seen by everybody who lists processes"
        raise Problem(what, where=where, mend="OTEL_EXPORTER_OTLP_HEADERS takes tokens")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Problem(f"{url!r} is no URL ({error})", where=where, mend=_MEND) from error
    if parts.scheme not in {"http", "https"} or not host or url != url.strip() or " " in url:
        raise Problem(f"{url!r} is no URL of http or https", where=where, mend=_MEND)
    if port == 0:
        raise Problem(f"{url!r} names port 0", where=where, mend=_MEND)
    for path in ("/v1/traces", "/v1/metrics"):
        if parts.path.rstrip("/").endswith(path):
            what = f"{url!r} is the address of one signal"
            raise Problem(what, where=where, mend=f"leave {path} out, it is added for each")
    if parts.query or parts.fragment:
        what = f"{url!r} has a query, to which no path can be added"
        raise Problem(what, where=where, mend=_MEND)
    return url


def told(environ: Mapping[str, str]) -> bool:
    """Whether the standard variables name an endpoint."""
    return any(environ.get(name, "").strip() for name in (ENDPOINT, *OF_SIGNALS))
