"""One phase of ours and one of TRL's profiling contexts: microseconds of CPU as JSON.

Run by `phase.py` in the environment of TRL.
"""

from __future__ import annotations

import json
import tempfile
from statistics import median

from trl.extras.profiling import ProfilingContext

import otel_grpo
from benchmarks.measure import in_turns, stay_on_one_core

SPANS = 100  # of one window
REPEATS = 20


def main() -> None:
    stay_on_one_core()
    with (
        tempfile.TemporaryDirectory() as folder,
        otel_grpo.start_run(folder, trainer="benchmark") as run,
        run.iteration() as it,
    ):

        def ours(n: int) -> None:
            for _ in range(n):
                with it.phase("reward", attributes={"rl.reward.name": "right"}):
                    pass

        def theirs(n: int) -> None:
            for _ in range(n):
                with ProfilingContext("GRPOTrainer.right", report_to=[], step=1):
                    pass

        costs = in_turns({"ours": ours, "trl": theirs}, n=SPANS, repeats=REPEATS)
    print(json.dumps({name: median(each) / 1000 for name, each in costs.items()}))


if __name__ == "__main__":
    main()
