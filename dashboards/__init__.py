"""Grafana dashboards as code: `python -m dashboards` writes them into `json/`."""

import warnings

with warnings.catch_warnings():
    # The library would rather have its newer model, which only Grafana 12 and later can read.
    warnings.simplefilter("ignore", DeprecationWarning)
    import grafana_foundation_sdk.builders.bargauge
    import grafana_foundation_sdk.builders.dashboard  # noqa: F401
