"""Rates are quotients of sums, evaluated on integers: never means of other rates."""

from __future__ import annotations


def rate(tokens: int, ns: int, devices: int = 1) -> float | None:
    """Tokens per second and device: ``tokens * 1e9 / (ns * devices)``; None without a denominator.

    For several windows give sums: of the tokens, and of ``ns * devices`` as `ns`.
    """
    denominator = ns * devices
    return tokens * 10**9 / denominator if denominator else None


def per_token(ns: int, tokens: int) -> float | None:
    """Nanoseconds per token; None without tokens."""
    return ns / tokens if tokens else None
