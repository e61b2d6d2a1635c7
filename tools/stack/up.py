"""`make stack` and `make demo-live`: the live view without a container engine.

    python3 -m tools.stack.up            start all, print where it is, run until Ctrl-C
    python3 -m tools.stack.up COMMAND    start all, run COMMAND with the endpoint set, ask, stop

The ports are those of docker-compose.yml and move by the same variables. All of it listens on the
loopback interface alone. Grafana and Tempo are not part of it: their place in the pipeline is
taken by nobody, and by a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.stack.servers import CannotStartError
from tools.stack.stack import Stack, running_stack

_END_TO_END = '{rl_throughput_kind="end_to_end"}'


def _last(series: str, *labels: str) -> str:
    """The last value of a counter for each run; a run that is over is not forgotten for an hour."""
    return f"sum by ({', '.join(['rl_run_id', *labels])}) (last_over_time({series}[1h]))"


QUESTIONS = {
    "iterations": _last("rl_loop_windows_total"),
    "tokens": _last("rl_tokens_total", "gen_ai_token_type"),
    "updates": _last("rl_train_steps_total", "rl_update_status"),
    "seconds by phase": _last("rl_phase_time_seconds_total", "rl_phase"),
    "tokens / s / device": _last(f"rl_throughput_tokens_total{_END_TO_END}")
    + " / "
    + _last(f"rl_device_time_seconds_total{_END_TO_END}"),
}


def main(command: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # stops the servers on the way out
    with tempfile.TemporaryDirectory(prefix="otel-grpo-stack-") as home:
        try:
            with running_stack(Path(home), fixed=True) as stack:
                _print_links(stack)
                if not command:
                    print("Ctrl-C stops it.", flush=True)
                    signal.pause()
                    return 0
                status = subprocess.run(
                    command,
                    env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp},
                    check=False,
                ).returncode
                _print_answers(stack)
                return status
        except CannotStartError as error:
            print(f"stack: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 0


def _print_links(stack: Stack) -> None:
    query = f"{stack.prometheus.url}/api/v1/query"
    print(
        f"OTLP        {stack.otlp}   (gRPC: {stack.place.address('otel-collector', 4317)})\n"
        f"Jaeger      {stack.jaeger.url}/api/traces?service=otel-grpo\n"
        f"Prometheus  {query}?query=rl_tokens_total\n"
        f"logs        {stack.place.home}/*/log\n"
        "Jaeger and Prometheus have no pages here, only their APIs: `docker compose up` has pages,\n"
        "Grafana's dashboards and Tempo. Send a run with: otel-grpo run --otlp "
        f"{stack.otlp} -- python train.py",
        flush=True,
    )


def _print_answers(stack: Stack) -> None:
    for title, expression in QUESTIONS.items():
        print(f"\n{title}: {expression}")
        for sample in stack.prometheus.query(f"({expression}) > 0"):
            labels = ", ".join(value for _, value in sorted(sample.labels.items(), reverse=True))
            print(f"  {labels:<60} {sample.value:g}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
