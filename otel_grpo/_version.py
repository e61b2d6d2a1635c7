"""The version: the one place that holds it. The build reads it from here."""

__version__ = "0.1.0"
