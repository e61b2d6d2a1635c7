"""A stand-in for vLLM, so that TRL's own code around it runs here: tokens by a rule, no model is asked.

`install` before TRL is imported. `LLM` is the colocated engine, `Server` answers TRL's client over HTTP.
What was asked of them, in order, is `told`, and in which phase of ours it was `where`; `made` are the
completions, `prompts` what they follow, `pushed` the sums of the weights.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

from packaging.version import Version

# Older releases ask vLLM for other things: of the oldest one the colocated engine runs, and no client.
NEWEST = Version(importlib.metadata.version("trl")) >= Version("1.16")
VERSION = "0.31.0" if NEWEST else "0.17.1"  # the newest one that TRL takes
END = 258  # of the demo's tokenizer
LOGPROB = -1.5

told, where, made, prompts, pushed = [], [], [], [], []


def forget():
    for kept in (told, where, made, prompts, pushed):
        kept.clear()
    Rule.number = 0
    Rule.next_ids = Rule.default


class Rule:
    """What the n-th completion of all is: one to five bytes, and the end but for every third one."""

    number = 0

    @staticmethod
    def default(number, prompt):
        ids = [16 + (number * 5 + place) % 60 for place in range(1 + number % 5)]
        return ids if number % 3 == 2 else [*ids, END]

    next_ids = default


def tell(what):
    from otel_grpo.tracing.phase import _current

    phase = _current.get()
    told.append(what)
    where.append(phase.name if phase is not None and phase.open else None)


def complete(prompt):
    ids = Rule.next_ids(Rule.number, list(prompt))
    Rule.number += 1
    prompts.append(list(prompt))
    made.append(ids)
    return ids


# --- in the process that trains


class LLM:
    """The engine as TRL uses it. It loads weights and generates only while it is awake."""

    def __init__(self, enable_sleep_mode=False, **options):
        self.asleep = set()
        self.loading = []
        model = SimpleNamespace(load_weights=self._load)
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=model))
        self.llm_engine = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=2048),
            model_executor=SimpleNamespace(driver_worker=worker),
        )

    def _load(self, weights):
        assert "weights" not in self.asleep
        self.loading += [float(tensor.double().sum()) for _, tensor in weights]

    def reset_prefix_cache(self):
        """The last call of a push."""
        tell("push")
        pushed.append(sum(self.loading))
        self.loading = []

    def wake_up(self, tags=None):
        tell(f"wake {'+'.join(tags)}")
        self.asleep -= set(tags)

    def sleep(self, level=1):
        tell("sleep")
        self.asleep = {"weights", "kv_cache"}

    def collective_rpc(self, method):
        """TRL 1.9 and older reload the checkpoint."""
        tell(method)

    def generate(self, rows, sampling_params=None, use_tqdm=True):
        tell("generate")
        assert not self.asleep
        return [self._answer(row["prompt_token_ids"]) for row in rows]

    def _answer(self, prompt):
        ids = complete(prompt)
        logprobs = [{token: SimpleNamespace(logprob=LOGPROB, rank=1)} for token in ids]
        output = SimpleNamespace(token_ids=ids, logprobs=logprobs)
        return SimpleNamespace(prompt_token_ids=prompt, outputs=[output])


# --- a server


def broadcast(iterator, group, src, post_iter_func):
    """In place of NCCL: the weights go nowhere."""
    pushed.append(sum(float(post_iter_func(item).double().sum()) for item in iterator))


class Handler(BaseHTTPRequestHandler):
    """The routes that TRL's client calls."""

    def do_GET(self):
        self._answer(
            {
                "/health": {},
                "/v1/models": {"data": [{"id": "tiny"}]},
                "/server_info": {
                    "vllm_config": {
                        "model_config": {"logprobs_mode": "processed_logprobs"},
                        "weight_transfer_config": {"backend": "nccl"},
                    }
                },
            }[self.path.partition("?")[0]]
        )

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        if self.path == "/v1/completions":
            told.append("generate")
            rows = [row for row in body["prompt"] for _ in range(body["n"])]
            self._answer({"choices": [self._choice(row) for row in rows]})
            return
        told.append({"/finish_weight_update": "push"}.get(self.path, self.path))
        self._answer({"success": True})

    def _choice(self, prompt):
        ids = complete(prompt)
        words = [f"token_id:{token}" for token in ids]
        logprobs = {
            "tokens": words,
            "token_logprobs": [LOGPROB] * len(ids),
            "top_logprobs": [{word: LOGPROB} for word in words],
        }
        return {"prompt_token_ids": prompt, "token_ids": ids, "logprobs": logprobs}

    def _answer(self, body):
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Into no output of a test."""


@contextlib.contextmanager
def server():
    """One on loopback; gives its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()
        thread.join()


# --- the package


def install():
    """Make `vllm` importable in this process, with what TRL takes of it."""

    def module(name, **names):
        made = ModuleType(name)
        made.__spec__, made.__path__ = ModuleSpec(name, None, is_package=True), []
        vars(made).update(names)
        sys.modules[name] = made

    def unused(*_, **__):
        raise NotImplementedError

    params = type("SamplingParams", (SimpleNamespace,), {})
    module("vllm", __version__=VERSION, LLM=LLM, RequestOutput=object, SamplingParams=params)
    module("vllm.sampling_params", StructuredOutputsParams=unused)
    module("vllm.utils")
    module("vllm.utils.network_utils", get_ip=unused)
    module("vllm.distributed")
    module("vllm.distributed.utils", StatelessProcessGroup=unused)
    module("vllm.distributed.device_communicators")
    module("vllm.distributed.device_communicators.pynccl", PyNcclCommunicator=unused)
    module("vllm.distributed.weight_transfer")
    module("vllm.distributed.weight_transfer.nccl_common", trainer_init=unused)
    packed = {"packed_nccl_broadcast_producer": broadcast}
    module("vllm.distributed.weight_transfer.packed_tensor", **packed)
