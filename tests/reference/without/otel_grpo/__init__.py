"""In place of the package: the same names, and nothing behind them."""

from __future__ import annotations


class Nothing:
    """Any attribute, call, slice or block of it is nothing as well."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args, **kwargs):
        return self

    def __getitem__(self, key):
        return ()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


class _Run(Nothing):
    def carrier(self):
        return {}

    def iteration(self):
        return Nothing()


def start_run(*args, **kwargs):
    return _Run()


def timed(**options):
    """A decorator that only takes off the keyword that the trainer's calls carry."""

    def decorate(function):
        def method(self, *args, _otel=None):
            return function(self, *args)

        return method

    return decorate
