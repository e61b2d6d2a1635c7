"""A run that is over, sent by OTLP: the spans and metrics that a live view would have had."""
