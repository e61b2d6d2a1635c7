"""Models and their optimizer groups: which model is trained, and which of its steps are updates."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

_GROUP = "twinkle.model.optimizer_group"
_GA = "gradient_accumulation_steps"


class Accumulation:
    """One optimizer group: Twinkle's own, or where that lies in the workers one like it.

    Whether a step is an update is asked of Twinkle's own rule, `do_grad_sync`, in both cases.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.scale: float | None = None  # of the gradients, after the last update
        # Samples of passes forward that no backward pass has used.
        self.forwarded: list[tuple[int, int]] = []


class Groups:
    """The models of a script; each has a group by default, and one for each of its adapters."""

    def __init__(self) -> None:
        self._policies: WeakSet[Any] = WeakSet()
        self._of: WeakKeyDictionary[Any, dict[str, Accumulation]] = WeakKeyDictionary()

    def will_train(self, model: Any) -> None:
        self._policies.add(model)

    def trains(self, model: Any) -> bool:
        return model in self._policies

    def is_policy(self, module: Any) -> bool:
        """Whether this is the module of transformers inside a model that is trained here."""
        return any(module in _modules(model) for model in self._policies if hasattr(model, "model"))

    def of(self, model: Any, kwargs: Mapping[str, Any]) -> Accumulation:
        """The group that a call with these arguments means, by Twinkle's rule for the default."""
        name = kwargs.get("adapter_name")
        groups = self._of.setdefault(model, {})
        if not hasattr(model, "_actors"):
            name = model._get_default_group() if name is None else name
            if name not in groups:
                groups[name] = Accumulation(model.optimizer_group[name])
            groups[name].group = model.optimizer_group[name]
            return groups[name]
        if name is None:
            name = next(reversed(groups), "")
        if name not in groups:
            groups[name] = Accumulation(_like_theirs(name))
        return groups[name]

    def add(self, model: Any, name: str, kwargs: Mapping[str, Any]) -> None:
        """A new adapter, which is the default from now on."""
        groups = self._of.setdefault(model, {})
        groups.pop(name, None)
        if hasattr(model, "_actors"):
            groups[name] = Accumulation(_like_theirs(name, kwargs.get(_GA, 1)))

    def passed(self, model: Any, kwargs: Mapping[str, Any]) -> None:
        """A backward pass: a group in the workers counts it there, the one like it here."""
        self.will_train(model)
        group = self.of(model, kwargs).group
        if hasattr(model, "_actors"):
            group.cur_step += 1
            group.do_grad_sync(kwargs.get(_GA))

    def fires(self, model: Any, kwargs: Mapping[str, Any]) -> bool:
        """Whether a step now changes the weights; the step itself asks the same right after."""
        return bool(self.of(model, kwargs).group.do_grad_sync(kwargs.get(_GA)))

    def accumulation(self, model: Any, kwargs: Mapping[str, Any]) -> int:
        return int(kwargs.get(_GA) or self.of(model, kwargs).group.gradient_accumulation_steps)

    def overflowed(self, model: Any, kwargs: Mapping[str, Any]) -> bool:
        """Whether the scaler let the step pass by: it then made the scale smaller.

        Twinkle's own flag for it is read after the scaler has forgotten what it found. The step has
        waited for the device, so the scale is there.
        """
        of = self.of(model, kwargs)
        scaler = of.group.scaler
        if scaler is None:
            return False
        before, of.scale = of.scale, float(scaler.get_scale())
        return of.scale < (scaler._init_scale if before is None else before)

    def rescaled(self, model: Any, kwargs: Mapping[str, Any]) -> None:
        """The group has another scaler."""
        self.of(model, kwargs).scale = None

    def resumed(self, model: Any, kwargs: Mapping[str, Any], state: Mapping[str, Any]) -> int:
        """A checkpoint was loaded; gives the number of updates that it stands for."""
        step, every = int(state["cur_step"]), int(state[_GA])
        of = self.of(model, kwargs)
        group, of.scale = of.group, None
        if hasattr(model, "_actors"):
            group.cur_step, group.gradient_accumulation_steps = step, every
        return step if every == 1 else max(0, step - 1) // every


def _like_theirs(name: str, accumulation: int = 1) -> Any:
    group = sys.modules[_GROUP].BaseOptimizerGroup
    return group(adapter_name=name, gradient_accumulation_steps=accumulation)


def _modules(model: Any) -> tuple[Any, ...]:
    """The model itself, and what an adapter has been put around."""
    unwrapped = model.strategy.unwrap_model(model.model)
    base = getattr(unwrapped, "get_base_model", None)
    return (unwrapped,) if base is None else (unwrapped, base())
