"""Trainings of one rank with ms-swift, see `one_rank`."""

from __future__ import annotations

import sys
import warnings
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "trl"), str(HERE.parents[1] / "demo")]
warnings.simplefilter("ignore")

from one_rank import FOLDER, Rank  # noqa: E402
from same_swift import run  # noqa: E402
from swift_support import Spy, train  # noqa: E402


def spy(trainer):
    made = Spy()
    made(trainer)
    return made


rank = Rank(lambda output, watch, **options: train(FOLDER, output, watch=watch, **options), spy)
rank.copies()
rank.same(partial(run, FOLDER))
rank.counted("plain")
rank.counted("sampled")
rank.killed()
