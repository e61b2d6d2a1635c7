"""Trainings of one rank with TRL, see `one_rank`."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "demo")]
warnings.simplefilter("ignore")

from one_rank import Rank  # noqa: E402
from same_training import run  # noqa: E402
from support import Spy, trainer  # noqa: E402


def train(output, watch, **options):
    given = trainer(output, **options)
    watch(given)
    given.train()


rank = Rank(train, Spy)
rank.copies()
rank.same(run)
rank.counted("plain")
rank.counted("fixed")
rank.killed()
