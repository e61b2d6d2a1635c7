"""``python -m otel_grpo.cli``: the command line where no script is installed."""

from otel_grpo.cli.commands import main

if __name__ == "__main__":
    main(prog_name="otel-grpo")
