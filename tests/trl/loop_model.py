"""TRL's training loop in plain Python: what it generates, trains on and updates, and in which order.

Written from the sources of the trainer, without a look at what observes it: dataloader and sampler
(`RepeatSampler`), `Trainer._run_epoch` and `GRPOTrainer._prepare_inputs`.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Loop:
    """One configuration. Counts are of one process."""

    rows: int  # prompts in the data set
    batch: int  # per_device_train_batch_size
    accumulation: int = 1
    slices: int | None = None  # steps_per_generation; the trainer's default is the accumulation
    reuse: int = 1  # num_iterations
    group: int = 4  # num_generations
    max_steps: int = -1
    epochs: int = 1
    resumed_at: int = 0  # global step of the checkpoint

    @property
    def parts(self) -> int:
        return self.slices or self.accumulation

    @property
    def generated(self) -> int:
        """Samples of one generation."""
        return self.batch * self.parts


@dataclass
class Update:
    samples: int
    nominal: int


@dataclass
class Window:
    """From one generation to the next."""

    generations: int = 1
    visits: list[int] = field(default_factory=list)  # of each slice of its generation
    updates: list[Update] = field(default_factory=list)
    pending: int = 0

    @property
    def status(self) -> str:
        tail = any(update.samples < update.nominal for update in self.updates)
        return "partial" if tail or 0 in self.visits else "complete"


def windows(loop: Loop) -> list[Window]:
    """Each window of the training, in order."""
    parts, every = loop.parts, loop.parts * loop.reuse
    chunks = loop.rows * loop.group // loop.generated  # the sampler drops an incomplete last one
    steps_in_epoch = chunks * every
    updates_in_epoch = -(-steps_in_epoch // loop.accumulation)
    last = loop.max_steps if loop.max_steps > 0 else loop.epochs * updates_in_epoch
    nominal = loop.accumulation * loop.batch

    found: list[Window] = []
    micro_step, accumulated, update = 0, 0, loop.resumed_at
    while update < last:
        place = update % updates_in_epoch
        tail = steps_in_epoch % loop.accumulation or loop.accumulation
        steps = tail if place == updates_in_epoch - 1 else loop.accumulation
        for _ in range(steps):
            if micro_step % every == 0:
                if found:
                    found[-1].pending = accumulated
                found.append(Window(visits=[0] * parts))
            found[-1].visits[micro_step % parts] += 1
            accumulated += loop.batch
            micro_step += 1
        found[-1].updates.append(Update(accumulated, nominal))
        accumulated = 0
        update += 1
    found[-1].pending = accumulated
    return found
