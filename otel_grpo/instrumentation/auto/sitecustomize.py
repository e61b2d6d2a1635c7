"""Runs as each Python process below `otel-grpo run` starts: waits for a trainer, imports nothing else.

A process that imports no trainer pays for one import hook. Another `sitecustomize` further down the
path is the user's own and runs as if this one were not there.
"""

import importlib.machinery
import importlib.util
import os
import sys
import types

_TRAINERS = (
    "trl.trainer.grpo_trainer",
    "swift.rlhf_trainers.grpo_trainer",
    "swift.megatron.trainers.grpo_trainer",
    "swift.ray.megatron.grpo_trainer",
    "twinkle.infra",
)


def _watch() -> None:
    import wrapt

    def on_import(module: types.ModuleType) -> None:
        try:
            from otel_grpo.instrumentation import imported

            imported(module)
        except Exception as error:
            sys.stderr.write(f"otel-grpo: the training is not observed: {error!r}\n")

    for name in _TRAINERS:
        wrapt.register_post_import_hook(on_import, name)


def _run_the_next_one() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _watch()
except Exception as error:
    sys.stderr.write(f"otel-grpo: nothing is observed: {error!r}\n")
_run_the_next_one()
