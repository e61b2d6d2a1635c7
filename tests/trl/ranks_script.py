"""Trainings of one rank with TRL, see `one_rank`."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "demo")]
warnings.simplefilter("ignore")

import stand_in_vllm as vllm  # noqa: E402
from one_rank import FOLDER, RANK, Rank  # noqa: E402
from same_training import run  # noqa: E402
from support import Spy, trainer  # noqa: E402


def train(output, watch, **options):
    given = trainer(output, **options)
    watch(given)
    given.train()


def served(rank):
    """The main process has the server that it asks; the other one asks nobody."""
    from trl.generation.vllm_client import VLLMClient

    VLLMClient.init_communicator = lambda self, device: None
    with vllm.server() if RANK == 0 else contextlib.nullcontext("nowhere") as url:
        rank.counted("served", use_vllm=True, vllm_mode="server", vllm_server_base_url=url)
    made = {"told": vllm.told, "prompts": vllm.prompts, "made": vllm.made}
    (FOLDER / f"vllm-{RANK}.json").write_text(json.dumps(made))


vllm.install()
rank = Rank(train, Spy)
rank.copies()
rank.same(run)
rank.counted("plain")
rank.counted("fixed")
if vllm.NEWEST:
    served(rank)
rank.killed()
