"""Every metric: one table, from which the instruments, the docs and the names in Prometheus are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from otel_grpo import semconv

# A level is what OpenTelemetry calls an up-down counter: a gauge whose sum over processes means
# something.
Kind = Literal["counter", "gauge", "level", "histogram"]
Scope = Literal["job", "process"]

OTHER = "other"

#: Of a label whose values are not all known beforehand, so many are told apart; others are `OTHER`.
MOST_PHASES = 32
MOST_METHODS = 32
MOST_REASONS = 16
MOST_SCALARS = 64

PHASES = (
    semconv.DATA,
    semconv.ROLLOUT_WAIT,
    semconv.GENERATION,
    semconv.REWARD,
    semconv.ADV_PIPELINE,
    semconv.LOGPROB_OLD,
    semconv.LOGPROB_REF,
    semconv.POLICY_TRAIN,
    semconv.OPTIMIZER,
    semconv.WEIGHT_SYNC,
    semconv.ENGINE_WAKE,
    semconv.ENGINE_SLEEP,
    semconv.OFFLOAD,
    semconv.CHECKPOINT,
    semconv.EVALUATION,
)
ROLES = ("train", "generate", "reward")

# The trainers' own names of the scalars that have a metric of their own.
SCALARS = {
    "loss": semconv.TRAIN_LOSS,
    "grad_norm": semconv.TRAIN_GRAD_NORM,
    "kl": semconv.TRAIN_KL,
    "entropy": semconv.TRAIN_ENTROPY,
    "learning_rate": semconv.TRAIN_LEARNING_RATE,
    "reward": semconv.REWARD_MEAN,
    "reward_std": semconv.REWARD_STD,
}

#: Upper bounds of the buckets: from a millisecond to four hours, 16 to a million tokens, versions.
SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0,
    120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0,
)  # fmt: skip
TOKENS = tuple(2.0**power for power in range(4, 21))
VERSIONS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0)


@dataclass(frozen=True)
class Label:
    """A label of a metric.

    Attributes:
        values: those that are known beforehand: a counter is 0 for each of them from the start.
        most: how many values are told apart at most; None: there are no others.
    """

    name: str
    values: tuple[str, ...] = ()
    most: int | None = None


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        unit: of UCUM; empty where there is none.
        boundaries: of a histogram's buckets, upper bounds, inclusive.
        scope: made for the job as a whole by the process that makes its records, or by each process
            for itself.
        asked: its value is asked for when metrics are collected; else it is counted as it happens.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    labels: tuple[Label, ...] = ()
    boundaries: tuple[float, ...] = ()
    scope: Scope = "job"
    asked: bool = False


_PHASE = Label(semconv.PHASE, PHASES, MOST_PHASES)
_PHASE_OR_LOG = Label(semconv.PHASE, (*PHASES, semconv.LOG), MOST_PHASES)
_SEEN_PHASE = Label(semconv.PHASE, (), MOST_PHASES)
_METHOD = Label(semconv.WORKER_METHOD, (), MOST_METHODS)
_TOKEN_TYPE = Label(semconv.KIND_OF_TOKENS, ("input", "output"))
_THROUGHPUT_KIND = Label(semconv.THROUGHPUT_KIND, ("end_to_end", "generation", "train"))
_DEVICE = (Label(semconv.HW_ID), Label(semconv.HW_TYPE, (semconv.HW_TYPE_GPU,)))
_ALLOCATOR = (*_DEVICE, Label(semconv.ALLOCATOR_KIND, ("allocated", "reserved")))


def _scalar(name: str, description: str) -> Metric:
    return Metric(name, "gauge", "", f"{description}, as the trainer said last.", asked=True)


def _device(name: str, kind: Kind, unit: str, description: str) -> Metric:
    return Metric(name, kind, unit, description, _DEVICE, scope="process", asked=True)


CATALOGUE = (
    # --- where the time goes
    Metric(
        semconv.LOOP_DURATION,
        "histogram",
        "s",
        "Length of a window; logical: without blocking log.",
        (Label(semconv.DURATION_KIND, ("wall", "logical")),),
        SECONDS,
    ),
    Metric(
        semconv.LOOP_WINDOWS,
        "counter",
        "{window}",
        "Windows that are over.",
        (Label(semconv.WINDOW_STATUS, ("complete", "partial", "aborted")),),
    ),
    Metric(
        semconv.PHASE_DURATION,
        "histogram",
        "s",
        "Time of a phase in a window: in which it ran, that it alone explains, and without log.",
        (_PHASE_OR_LOG, Label(semconv.DURATION_KIND, ("busy", "exposed", "logical"))),
        SECONDS,
    ),
    Metric(
        semconv.PHASE_TIME,
        "counter",
        "s",
        "Time in which one phase alone was on top of the stack.",
        (_PHASE,),
    ),
    Metric(
        semconv.OVERLAP_TIME, "counter", "s", "Time in which two or more phases were on top of it."
    ),
    Metric(semconv.LOG_TIME, "counter", "s", "Time of blocking log."),
    Metric(semconv.UNATTRIBUTED_TIME, "counter", "s", "Time of windows that no phase explains."),
    # --- what was made in it
    Metric(
        semconv.DEVICE_TIME,
        "counter",
        "s",
        "Denominators of throughput: work time x devices, busy generation x generating devices, "
        "busy policy_train x training devices.",
        (_THROUGHPUT_KIND,),
    ),
    Metric(
        semconv.THROUGHPUT_TOKENS,
        "counter",
        "{token}",
        "Their numerators: prompt and completion tokens, completion tokens, visited tokens.",
        (_THROUGHPUT_KIND,),
    ),
    Metric(
        semconv.THROUGHPUT_DEVICE,
        "gauge",
        "{token}/s",
        "Tokens per second and device of the last window, and of no other.",
        (_THROUGHPUT_KIND,),
        asked=True,
    ),
    Metric(
        semconv.DEVICES,
        "gauge",
        "{device}",
        "Distinct devices of the last window, by what they do.",
        (Label(semconv.ROLE, ROLES),),
        asked=True,
    ),
    Metric(
        semconv.TOKENS,
        "counter",
        "{token}",
        "Tokens of consumed samples, each sample once: input of the prompt, output of the model.",
        (_TOKEN_TYPE,),
    ),
    Metric(semconv.SAMPLES, "counter", "{sample}", "Samples consumed, each once."),
    Metric(semconv.VISITS, "counter", "{sample}", "Samples times passes of training over them."),
    Metric(
        semconv.DISCARDED,
        "counter",
        "{sample}",
        "Samples that were thrown away.",
        (
            Label(
                semconv.DISCARD_REASON,
                ("stale", "filtered", "zero_advantage", "failed"),
                MOST_REASONS,
            ),
        ),
    ),
    Metric(
        semconv.SAMPLE_LENGTH,
        "histogram",
        "{token}",
        "Lengths of consumed samples.",
        (_TOKEN_TYPE,),
        TOKENS,
    ),
    Metric(
        semconv.POLICY_LAG,
        "histogram",
        "{version}",
        "Versions that consumed samples were behind the trainer.",
        (),
        VERSIONS,
    ),
    # --- what became of it
    Metric(
        semconv.TRAIN_STEPS,
        "counter",
        "{update}",
        "Attempted updates.",
        (Label(semconv.UPDATE_STATUS, ("applied", "skipped", "failed", "unconfirmed")),),
    ),
    Metric(semconv.PUBLICATIONS, "counter", "{publication}", "Publications that are complete."),
    Metric(
        semconv.WEIGHTS_VERSION,
        "gauge",
        "",
        "Version of the last complete publication.",
        asked=True,
    ),
    _scalar(semconv.TRAIN_LOSS, "Loss"),
    _scalar(semconv.TRAIN_GRAD_NORM, "Norm of the gradient"),
    _scalar(semconv.TRAIN_KL, "KL divergence"),
    _scalar(semconv.TRAIN_ENTROPY, "Entropy"),
    _scalar(semconv.TRAIN_LEARNING_RATE, "Learning rate"),
    _scalar(semconv.REWARD_MEAN, "Mean reward"),
    _scalar(semconv.REWARD_STD, "Standard deviation of the reward"),
    Metric(
        semconv.TRAIN_NONFINITE,
        "counter",
        "{value}",
        "Scalars of the trainer that were NaN or infinite: no gauge shows them.",
        (Label(semconv.SCALAR, tuple(SCALARS), MOST_SCALARS),),
    ),
    Metric(
        semconv.WORKER_DURATION,
        "histogram",
        "s",
        "Calls of timed methods that ended in a window, of all processes.",
        (_METHOD,),
        SECONDS,
    ),
    # --- each process
    Metric(
        semconv.PHASE_ACTIVE,
        "gauge",
        "",
        "1 while a phase is open, else 0.",
        (_SEEN_PHASE,),
        scope="process",
        asked=True,
    ),
    Metric(
        semconv.PHASE_ACTIVE_DURATION,
        "gauge",
        "s",
        "How long the oldest open phase of this name has lasted; 0 when none is open.",
        (_SEEN_PHASE,),
        scope="process",
        asked=True,
    ),
    Metric(
        semconv.LOOP_ACTIVE_DURATION,
        "gauge",
        "s",
        "How long the open window has lasted; 0 between windows.",
        scope="process",
        asked=True,
    ),
    Metric(
        semconv.RANK_PHASE_TIME,
        "counter",
        "s",
        "Time in which a phase ran in this process.",
        (_SEEN_PHASE,),
        scope="process",
    ),
    Metric(
        semconv.WORKER_TIME,
        "counter",
        "s",
        "Time of the calls of timed methods in this worker process.",
        (_METHOD,),
        scope="process",
    ),
    Metric(
        semconv.TELEMETRY_RECORDS,
        "counter",
        "{record}",
        "What became of the lines, spans and exports of this process.",
        (
            Label(semconv.SINK),
            Label(semconv.OUTCOME, ("written", "dropped", "unconfirmed")),
        ),
        scope="process",
        asked=True,
    ),
    Metric(
        semconv.TELEMETRY_SELF_TIME,
        "counter",
        "s",
        "What the observer cost the threads of the training.",
        scope="process",
        asked=True,
    ),
    Metric(
        semconv.PROCESS_MEMORY_USAGE,
        "level",
        "By",
        "Resident memory of the process.",
        scope="process",
        asked=True,
    ),
    Metric(
        semconv.ALLOCATOR_MEMORY,
        "level",
        "By",
        "Memory of the trainer's allocator.",
        _ALLOCATOR,
        scope="process",
        asked=True,
    ),
    Metric(
        semconv.ALLOCATOR_MEMORY_PEAK,
        "gauge",
        "By",
        "The most since the process started or the trainer reset it.",
        _ALLOCATOR,
        scope="process",
        asked=True,
    ),
    _device(semconv.HW_GPU_MEMORY_USAGE, "level", "By", "GPU memory used."),
    _device(semconv.HW_GPU_MEMORY_LIMIT, "level", "By", "Size of the GPU memory."),
    _device(
        semconv.HW_GPU_UTILIZATION, "gauge", "1", "Fraction of time in which the GPU was at work."
    ),
    _device(semconv.HW_POWER, "gauge", "W", "Power that the device takes."),
    _device(semconv.HW_TEMPERATURE, "gauge", "Cel", "Temperature of the device."),
    _device(semconv.HW_ENERGY, "counter", "J", "Energy taken since it was first read."),
)

BY_NAME = {metric.name: metric for metric in CATALOGUE}
