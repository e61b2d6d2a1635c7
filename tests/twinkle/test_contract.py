"""The hooks fit the Twinkle that is installed: a release that moves one of them fails here first."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

from otel_grpo import instrumentation
from otel_grpo.instrumentation.twinkle import contract

MODULES = (contract.MODULE, contract.RAY, *contract.CLASSES)


def order(source, *patterns):
    """Whether the patterns occur in the source in this order."""
    return re.search(".*".join(map(re.escape, patterns)), source, re.DOTALL) is not None


@pytest.mark.parametrize("name", MODULES)
def test_every_hook_fits(twinkle, name):
    """Classes, methods and their parameters, of each module."""
    assert contract.drifts(importlib.import_module(name)) == []


def test_a_drifted_method_is_named(twinkle, monkeypatch):
    """Gone, or with other parameters."""
    module = importlib.import_module("twinkle.sampler.vllm_sampler.vllm_sampler")
    theirs = ("self", "inputs", "sampling_params")
    monkeypatch.setattr(module.vLLMSampler, "sample", lambda self, requests: None)
    monkeypatch.delattr(module.vLLMSampler, "sleep")
    assert contract.drifts(module) == [
        f"vLLMSampler.sample takes ('self', 'requests'), expected {theirs}",
        "vLLMSampler.sleep is gone",
    ]


def test_a_drifted_class_is_left_and_the_rest_observed(twinkle, monkeypatch, caplog):
    """One line names it; what fits is patched."""
    module = importlib.import_module("twinkle.advantage.grpo")
    model = importlib.import_module("twinkle.model.transformers.transformers")

    def call(self, scores):
        """With another name."""

    monkeypatch.setattr(module.GRPOAdvantage, "__call__", call)
    step = model.TransformersModel.step
    instrumentation.instrument()
    try:
        assert module.GRPOAdvantage.__call__ is call
        assert model.TransformersModel.step.__wrapped__ is step
    finally:
        instrumentation.uninstrument()
    (record,) = caplog.records
    assert "twinkle.advantage.grpo is not observed: GRPOAdvantage.__call__ takes" in (
        record.getMessage()
    )


def test_a_release_outside_the_gate_is_not_patched(twinkle, monkeypatch, caplog, model_id):
    """One message says what is installed and what is supported; the training goes on."""
    import importlib.metadata

    from local import Script

    module = importlib.import_module("twinkle.model.transformers.transformers")
    before = dict(vars(module.TransformersModel))
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata,
        "version",
        lambda package: "0.6.0" if package == "twinkle-kit" else version(package),
    )
    instrumentation.instrument()
    try:
        assert dict(vars(module.TransformersModel)) == before
        script = Script(model_id)
        weights = script.weights()
        script.train(script.samples())
        assert script.weights() != weights
    finally:
        instrumentation.uninstrument()
    (message,) = [r.getMessage() for r in caplog.records if r.name == "otel_grpo"]
    assert "twinkle-kit 0.6.0 is installed and >=0.5.1,<0.6 is supported" in message


def test_uninstrument_restores_every_attribute(twinkle):
    """The same objects as before, on each class and module, after two rounds."""
    import ray

    modules = [importlib.import_module(name) for name in MODULES]
    places = [*modules[:1], ray, modules[1].RayHelper]
    places += [
        getattr(module, each.name)
        for module in modules
        for each in contract.CLASSES.get(module.__name__, ())
    ]
    before = [dict(vars(place)) for place in places]
    for _ in range(2):
        instrumentation.instrument()
        instrumentation.instrument()
        changed = {
            name
            for place, attributes in zip(places, before, strict=True)
            for name, value in vars(place).items()
            if value is not attributes.get(name)
        }
        hooked = {m.name for each in contract.CLASSES.values() for c in each for m in c.methods}
        hooked |= {each.name for each in (*contract.RAY_HELPER, *contract.INFRA)} | {"init"}
        assert changed == hooked
        instrumentation.uninstrument()
        assert [dict(vars(place)) for place in places] == before


def test_patched_methods_look_like_the_originals(twinkle, observed):
    """Name, signature, and what Twinkle's dispatch reads from them."""
    from twinkle.model import TransformersModel

    method = TransformersModel.forward_backward
    theirs = method.__wrapped__
    assert (method.__name__, method.__doc__) == ("forward_backward", theirs.__doc__)
    assert inspect.signature(method) == inspect.signature(theirs)
    for name in ("_execute", "_collect", "_dispatch", "_lazy_collect", "_sync"):
        assert getattr(method, name) is getattr(theirs, name)


# --- what the hooks rely on inside Twinkle's methods ----------------------------------------------


def source(name):
    """Of a class, a function or a method, by its path."""
    module, _, path = name.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return inspect.getsource(found)


def test_a_call_is_submitted_then_made_a_result(twinkle):
    """On the driver each call goes through `execute_all_async` and `do_get_and_collect_func`."""
    text = source("twinkle.infra:remote_function")
    assert order(text, "execute_method(func.__name__", "RayHelper.do_get_and_collect_func(")
    assert "if not hasattr(self, '_actors')" in text
    assert "return ray.get(RayHelper.execute_all_async(" in source(f"{contract.RAY}:RayHelper")


def test_a_lazy_result_is_made_by_one_method(twinkle):
    """Its class is made anew for each call and keeps what was collected."""
    helper = importlib.import_module(contract.RAY).RayHelper
    made = [helper.do_get_and_collect_func(lambda *_, **__: 1, "none", [], None) for _ in range(2)]
    assert type(made[0]) is not type(made[1])
    assert made[0]._result is None
    assert made[0]() == 1
    assert made[0]._result == 1


def test_components_are_made_remote_in_one_place(twinkle):
    """And their environment is a copy of the driver's."""
    text = source(f"{contract.RAY}:RayHelper.create_workers")
    assert order(text, "RayHelper._get_remote_component(worker_cls)", "os.environ.copy()")
    assert "'WORKER_NAME'" in text


def test_backward_counts_the_step_and_asks_its_rule(twinkle):
    """As our group for models in workers does, which is one of Twinkle's."""
    text = source("twinkle.model.transformers.transformers:TransformersModel.backward")
    assert order(text, "cur_step += 1", "do_grad_sync(kwargs.get('gradient_accumulation_steps'))")
    for name in ("step", "clip_grad_norm", "zero_grad", "lr_step"):
        text = source(f"twinkle.model.transformers.transformers:TransformersModel.{name}")
        assert "do_grad_sync(" in text


def test_the_default_group_is_the_only_or_the_newest(twinkle):
    """Our rule for models in workers."""
    text = source("twinkle.model.transformers.transformers:TransformersModel._get_default_group")
    assert "len(self.optimizer_group) == 1" in text
    assert "self.active_group" in text
    text = source("twinkle.model.transformers.transformers:TransformersModel._patch_adapter")
    assert "self.active_group = adapter_name" in text


def test_labels_lie_one_to_the_left(twinkle, model_id):
    """Where a prompt ends is read from them."""
    from twinkle.template import Template

    template = Template(model_id=model_id, max_length=400)
    feature = template.encode(
        {"messages": [{"role": "user", "content": "1"}]}, add_generation_prompt=True
    )
    n = len(feature["input_ids"])
    made = template.concat_input_feature(dict(feature), [7, 8])
    assert list(made["labels"]) == [-100] * (n - 1) + [7, 8, -100]


def test_the_scaler_forgets_what_it_found(twinkle):
    """So an overflow is seen by the scale, and not by Twinkle's flag."""
    text = source("twinkle.model.transformers.transformers:TransformersModel.step")
    assert order(text, "scaler.step(", "scaler.update()", "scaler_has_nan = ")
