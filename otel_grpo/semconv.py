"""Every name that leaves the process: spans, attributes, phases. Constants only.

`rl.*` follows the proposal of the OpenTelemetry GenAI group (semantic-conventions-genai 88) where it
speaks and extends it in its style where it does not. Standard names are used as they are.
"""

from __future__ import annotations

from types import MappingProxyType

SCOPE = "otel_grpo"

# --- resource: constant for the process
SERVICE_NAME = "service.name"
SERVICE_INSTANCE_ID = "service.instance.id"
RL_SYSTEM = "rl.system"
RL_SYSTEM_VERSION = "rl.system.version"
RL_ALGORITHM = "rl.algorithm"
RL_WORLD_SIZE = "rl.world_size"

# --- every span: back ends split long traces, so each says where it belongs
RUN_ID = "rl.run.id"
ATTEMPT = "rl.run.attempt"
ITERATION = "rl.loop.iteration"
PHASE = "rl.phase"
ROLE = "rl.role"
RANK = "rl.rank"

# --- spans
SPAN_RUN = "rl.run"
SPAN_LOOP = "rl.loop"
SPAN_WORKER = "rl.worker."
REWARD_NAME = "rl.reward.name"
OWN = "rl.telemetry.own"
CUT = "rl.telemetry.cut"
OPTIMIZER_FUSED = "rl.optimizer.fused"
DEVICE_SYNCED = "rl.device.synced"
ERROR_TYPE = "error.type"

# --- set on rl.loop before it ends (durations in seconds)
OPTIMIZER_STEP = "rl.optimizer.step"
DURATION = "rl.duration."
SAMPLES_CONSUMED = "rl.samples.consumed"
SAMPLES_VISITS = "rl.samples.visits"
UPDATES_APPLIED = "rl.updates.applied"
TOKENS = "rl.tokens"
THROUGHPUT_DEVICE = "rl.throughput.device"
WINDOW_STATUS = "rl.window.status"
WEIGHTS_VERSION = "rl.weights.version"

# --- phases
GENERATION = "generation"
REWARD = "reward"
ADV_PIPELINE = "adv_pipeline"
LOGPROB_OLD = "logprob_old"
LOGPROB_REF = "logprob_ref"
POLICY_TRAIN = "policy_train"
OPTIMIZER = "optimizer"
WEIGHT_SYNC = "weight_sync"
DATA = "data"
ROLLOUT_WAIT = "rollout_wait"
ENGINE_WAKE = "engine_wake"
ENGINE_SLEEP = "engine_sleep"
OFFLOAD = "offload"
CHECKPOINT = "checkpoint"
EVALUATION = "evaluation"
LOG = "log"

# Name of the span of each phase; a phase that is not here has the span `rl.<phase>`.
SPAN_OF_PHASE = MappingProxyType(
    {
        DATA: "rl.data",
        ROLLOUT_WAIT: "rl.wait",
        GENERATION: "rl.sample",
        REWARD: "rl.reward",
        ADV_PIPELINE: "rl.advantage",
        LOGPROB_OLD: "rl.logprob",
        LOGPROB_REF: "rl.logprob",
        POLICY_TRAIN: "rl.train",
        OPTIMIZER: "rl.optimizer_step",
        WEIGHT_SYNC: "rl.sync",
        CHECKPOINT: "rl.checkpoint",
        EVALUATION: "rl.evaluation",
        LOG: "rl.log",
    }
)

# --- metrics of the job, made by the process that makes the records (metrics/catalogue.py)
LOOP_DURATION = "rl.loop.duration"
LOOP_WINDOWS = "rl.loop.windows"
PHASE_DURATION = "rl.phase.duration"
PHASE_TIME = "rl.phase.time"
OVERLAP_TIME = "rl.overlap.time"
LOG_TIME = "rl.log.time"
UNATTRIBUTED_TIME = "rl.unattributed.time"
DEVICE_TIME = "rl.device.time"
THROUGHPUT_TOKENS = "rl.throughput.tokens"
DEVICES = "rl.devices"
SAMPLES = "rl.sample.samples"
VISITS = "rl.sample.visits"
DISCARDED = "rl.sample.discarded"
SAMPLE_LENGTH = "rl.sample.length"
POLICY_LAG = "rl.policy.lag"
TRAIN_STEPS = "rl.train.steps"
TRAIN_LOSS = "rl.train.loss"
TRAIN_GRAD_NORM = "rl.train.grad_norm"
TRAIN_KL = "rl.train.kl"
TRAIN_ENTROPY = "rl.train.entropy"
TRAIN_LEARNING_RATE = "rl.train.learning_rate"
TRAIN_NONFINITE = "rl.train.nonfinite"
REWARD_MEAN = "rl.reward.mean"
REWARD_STD = "rl.reward.std"
PUBLICATIONS = "rl.sync.publications"
WORKER_DURATION = "rl.worker.duration"

# --- metrics of each process
PHASE_ACTIVE = "rl.phase.active"
PHASE_ACTIVE_DURATION = "rl.phase.active.duration"
LOOP_ACTIVE_DURATION = "rl.loop.active.duration"
RANK_PHASE_TIME = "rl.rank.phase.time"
WORKER_TIME = "rl.worker.time"
TELEMETRY_RECORDS = "rl.telemetry.records"
TELEMETRY_SELF_TIME = "rl.telemetry.self.time"
PROCESS_MEMORY_USAGE = "process.memory.usage"

# --- labels of metrics
DURATION_KIND = "rl.duration.kind"
THROUGHPUT_KIND = "rl.throughput.kind"
KIND_OF_TOKENS = "gen_ai.token.type"
UPDATE_STATUS = "rl.update.status"
DISCARD_REASON = "rl.discard.reason"
SCALAR = "rl.scalar"
WORKER_METHOD = "rl.worker.method"
SINK = "rl.telemetry.sink"
OUTCOME = "rl.telemetry.outcome"

# --- metrics of devices
HW_ID = "hw.id"
HW_TYPE = "hw.type"
HW_TYPE_GPU = "gpu"
HW_GPU_MEMORY_USAGE = "hw.gpu.memory.usage"
HW_GPU_MEMORY_LIMIT = "hw.gpu.memory.limit"
HW_GPU_UTILIZATION = "hw.gpu.utilization"
HW_ENERGY = "hw.energy"
HW_POWER = "hw.power"
HW_TEMPERATURE = "hw.temperature"
ALLOCATOR_MEMORY = "rl.allocator.memory"
ALLOCATOR_MEMORY_PEAK = "rl.allocator.memory.peak"
ALLOCATOR_KIND = "rl.allocator.kind"
