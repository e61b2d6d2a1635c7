"""The command line: one module per command, each loaded when it is called.

Exit status: 0 good, 1 the finding is bad, 2 the input or the usage is bad.
"""

from otel_grpo.cli.commands import main

__all__ = ["main"]
