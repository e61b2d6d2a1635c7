"""A GRPO training over Ray as Twinkle's own examples are written; says what it did and what it made.

over_ray.py OUT.json WORKERS {together|lazy} FOLDER_OF_THE_MODEL

`together`: each call is waited for; after three iterations one with a step that fails on worker 1, one
with a scaler that overflows, and one that is right again. `lazy`: Twinkle's default, no call is
waited for that the script does not wait for, with a reference model beside the policy.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import ray
import stand_ins
from ray.actor import ActorMethod

OUT, WORKERS, MODE, MODEL = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
HERE = Path(__file__).parent
LAZY = MODE == "lazy"
PROMPTS = COMPLETIONS = 8

events = []  # what is asked of the workers, and waited for, in order
told = {"events": events, "history": [], "failures": []}
method_of = {}  # a result -> the method that gives it


def watched(submit, get):
    def remote(self, *args, **kwargs):
        result = submit(self, *args, **kwargs)
        events.append(["submit", self._method_name])
        if isinstance(result, ray.ObjectRef):
            method_of[result.hex()] = self._method_name
        return result

    def getting(refs, **options):
        if isinstance(refs, ray.ObjectRef) and method_of.get(refs.hex()) == "forward_only":
            events.append(["wait", "forward_only"])
        return get(refs, **options)

    return remote, getting


def main():
    stand_ins.setup()
    import twinkle
    from twinkle import DeviceGroup, DeviceMesh
    from twinkle.advantage import GRPOAdvantage
    from twinkle.checkpoint_engine import CheckpointEngineManager
    from twinkle.data_format import SamplingParams
    from twinkle.model import TransformersModel
    from twinkle.processor import InputProcessor
    from twinkle.sampler import vLLMSampler

    actors = WORKERS + 1 + LAZY
    ray.init(
        num_cpus=4 * actors,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=200 * 2**20,
        runtime_env={
            "env_vars": {
                "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
            },
            "worker_process_setup_hook": "stand_ins.setup",
        },
    )
    groups = [DeviceGroup(name="model", ranks=WORKERS, device_type="CPU")]
    groups += [DeviceGroup(name="sampler", ranks=1, device_type="CPU")]
    groups += [DeviceGroup(name="reference", ranks=1, device_type="CPU")] if LAZY else []
    twinkle.initialize(
        mode="ray",
        nproc_per_node=actors,
        ncpu_proc_per_node=actors,
        groups=groups,
        lazy_collect=LAZY,
    )

    def mesh(n):
        return DeviceMesh.from_sizes(world_size=n, dp_size=n, device_type="CPU")

    def policy(group, n):
        # Of a group of CPUs Twinkle does not say where its workers meet.
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(stand_ins.free_port()))
        model = TransformersModel(
            model_id=MODEL,
            mixed_precision="no",
            grad_scaler_config={"device": "cpu"},
            device_mesh=mesh(n),
            remote_group=group,
        )
        model.set_processor(InputProcessor)
        model.set_template("Template", model_id=MODEL)
        return model

    model = policy("model", WORKERS)
    model.set_optimizer("AdamW", lr=1e-3)
    model.set_loss("GRPOLoss", epsilon=0.2)
    reference = policy("reference", 1) if LAZY else None
    if reference is not None:
        reference.set_loss("GRPOLoss", epsilon=0.2)
    sampler = vLLMSampler(model_id=MODEL, device_mesh=mesh(1), remote_group="sampler")
    sampler.set_template("Template", model_id=MODEL)
    manager = CheckpointEngineManager(model=model, sampler=sampler)
    advantage = GRPOAdvantage()
    parameters = SamplingParams(max_tokens=6, num_samples=1)
    manager.sync_weights()
    ActorMethod.remote, ray.get = watched(ActorMethod.remote, ray.get)

    def iteration(number):
        prompts = [
            {"messages": [{"role": "user", "content": f"{number}+{i}="}]}
            for i in range(PROMPTS)
            for _ in range(COMPLETIONS)
        ]
        responses = sampler.sample(prompts, parameters)
        sequences = [sequence for response in responses for sequence in response.sequences]
        features = [sequence.new_input_feature for sequence in sequences]
        counted = {
            "prompt_tokens": sum(len(response.prompt_token_ids) for response in responses),
            "completion_tokens": sum(len(sequence.tokens) for sequence in sequences),
        }
        rewards = [float(sum(sequence.tokens) % 7) for sequence in sequences]
        advantages = advantage(rewards, num_generations=COMPLETIONS).tolist()
        more = {}
        if LAZY:
            old = model.forward_only(inputs=features)
            ref = reference.forward_only(inputs=features)
            more = {"old_logps": old()["logps"], "ref_logps": ref()["logps"]}
        model.forward_backward(inputs=features, advantages=advantages, **more)
        model.clip_grad_and_step()
        metric = model.calculate_metric(is_training=True)
        manager.sync_weights()
        told["history"].append({**counted, **{k: metric.get(k) for k in ("loss", "grad_norm")}})

    for number in range(3):
        iteration(number)
    if not LAZY:
        fails = stand_ins.folder() / stand_ins.FAILS
        fails.touch()
        try:
            iteration(3)
        except Exception as error:
            cause = getattr(error, "cause", None)
            told["failures"] = [type(error).__name__, repr(cause), list(map(str, error.args[:1]))]
        fails.unlink()
        model.zero_grad()
        model.set_grad_scaler(init_scale=3e38)
        iteration(4)
        model.set_grad_scaler(init_scale=1.0)
        iteration(5)


if __name__ == "__main__":
    try:
        main()
    finally:
        told["observed"] = "otel_grpo.tracing" in sys.modules
        OUT.write_text(json.dumps(told))
