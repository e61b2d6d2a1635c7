"""The patches of Twinkle: which method tells the session what, and when a run starts and ends."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.metadata
import inspect
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from otel_grpo.instrumentation import base
from otel_grpo.instrumentation.base import Hook, Patches, Providers, Steps, around, when_imported
from otel_grpo.instrumentation.twinkle import calls, contract
from otel_grpo.instrumentation.twinkle.session import Session
from otel_grpo.tracing import lifecycle
from otel_grpo.tracing.guard import Guard, logger

_REWARDS = "twinkle.reward."
_ADVANTAGES = "twinkle.advantage."
_SERVER = "twinkle.server"
_MEGATRON = "twinkle.model.megatron.megatron"


class Hooks:
    """The patches in one process, and its session from the first hooked call on."""

    def __init__(self, providers: Callable[[], Providers] = Providers) -> None:
        self._providers = providers
        self._patches = Patches()
        self._active = False
        self._infra: Any = None
        self._waiting: list[tuple[str, Callable[[Any], None]]] = []
        self._session: Session | None = None
        self._inside = threading.local()  # a hooked call runs on this thread
        self._before_run = Guard()

    # --- patching

    def apply(self, module: ModuleType) -> None:
        """Patch what is imported of Twinkle, and the rest when it is."""
        if os.environ.get(contract.WORKER):
            return  # a worker: what is timed in it came with its class
        reason = base.unsupported_version(contract.PACKAGE, contract.SUPPORTED)
        if reason is not None:
            logger.warning(
                "otel-grpo: Twinkle is not observed: %s. %s %s is supported.",
                reason,
                contract.PACKAGE,
                contract.SUPPORTED,
            )
            return
        self._active = True
        self._infra = module
        self._patch(self._patch_infra, module)
        self._when("ray", self._patch_ray)
        self._when(contract.RAY, self._patch_calls)
        for name in contract.CLASSES:
            self._when(name, self._patch_classes)
        self._when(_MEGATRON, self._tell_megatron)

    def remove(self) -> None:
        """Put every attribute back; of a training that goes on nothing more is seen."""
        self._active = False
        self._patches.restore()
        self._end(None)

    def _when(self, name: str, patch: Callable[[Any], None]) -> None:
        half = getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False)
        if half:
            # It imports the module that we start with, and is not complete before that one is.
            self._waiting.append((name, patch))
        else:
            when_imported(name, functools.partial(self._patch, patch))

    def _patch_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for name, patch in waiting:
            self._when(name, patch)

    def _patch(self, patch: Callable[[Any], None], module: ModuleType) -> None:
        if not self._active:
            return
        self._patch_waiting()
        drifts = contract.drifts(module)
        if not drifts:
            patch(module)
            return
        logger.warning(
            "otel-grpo: %s is not observed: %s. %s %s is supported.",
            module.__name__,
            "; ".join(drifts),
            contract.PACKAGE,
            contract.SUPPORTED,
        )

    def _wrap(self, owner: Any, name: str, hook: Hook) -> None:
        self._patches.wrap(owner, name, lambda original: around(original, hook, self._fault))

    def _fault(self, place: str, error: Exception) -> None:
        session = self._session
        guard = self._before_run if session is None else session.run.guard
        guard.fault(f"twinkle.{place}", error)

    def _patch_classes(self, module: Any) -> None:
        for kind in contract.CLASSES[module.__name__]:
            owner = getattr(module, kind.name)
            for method in kind.methods:
                told = method.name
                if module.__name__.startswith(_REWARDS):
                    told = "reward"
                elif module.__name__.startswith(_ADVANTAGES):
                    told = "advantage"
                self._wrap(owner, method.name, self._tells(told))

    def _patch_infra(self, infra: Any) -> None:
        self._wrap(infra, "initialize", self._initialize)
        package = sys.modules.get("twinkle")
        if package is not None and "initialize" in vars(package):  # it keeps what was asked for
            self._wrap(package, "initialize", self._initialize)
        self._patches.wrap(infra, "_capture_caller", lambda _: self._caller)

    def _patch_ray(self, ray: Any) -> None:
        from otel_grpo.ray.environment import observed

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            init = observed(original)

            @functools.wraps(original)
            def started(*args: Any, **kwargs: Any) -> Any:
                # The server of Twinkle starts Ray, too, and trains for others.
                if _SERVER in sys.modules:
                    return original(*args, **kwargs)
                self._begin(remotely=True)
                return init(*args, **kwargs)

            return started

        self._patches.wrap(ray, "init", make)

    def _patch_calls(self, module: Any) -> None:
        calls.patch(self._patches, module.RayHelper, lambda: self._session, self._fault)

    def _tell_megatron(self, _: Any) -> None:
        logger.warning(
            "otel-grpo: MegatronModel is not observed yet: of a training with it only generation, "
            "rewards, advantages and weight synchronisation are"
        )

    # --- the run

    def _begin(self, *, remotely: bool) -> Session | None:
        if self._session is not None or not self._active:
            return self._session
        try:
            self._session = self._started(remotely=remotely)
        except Exception as error:
            self._fault("start", error)
        return self._session

    def _started(self, *, remotely: bool) -> Session | None:
        from otel_grpo import __version__, start_run

        run = lifecycle.current_run()
        if run is not None:
            return Session(run, owned=False)
        world = os.environ.get("WORLD_SIZE", "1")
        if not remotely and world.isdigit() and int(world) > 1:
            self._active = False
            logger.warning(
                "otel-grpo: Twinkle under a launcher of %s processes is not observed yet: in one "
                "process, or over Ray, it is",
                world,
            )
            return None
        # A driver of Ray trains nothing: its workers have the devices, and tell their memory.
        nothing: dict[str, Any] = {"devices": [], "readings": list} if remotely else {}
        providers = self._providers()
        run = start_run(
            trainer="twinkle",
            trainer_version=importlib.metadata.version(contract.PACKAGE),
            adapter_version=__version__,
            algorithm="grpo",
            tracer_provider=providers.tracer,
            meter_provider=providers.meter,
            **nothing,
        )
        if not run.live:
            return None
        # After the run's own exit was registered, so it comes before it.
        atexit.register(self._exit)
        return Session(run, owned=True)

    def _exit(self) -> None:
        self._end(sys.exc_info()[1] or getattr(sys, "last_value", None))

    def _end(self, error: BaseException | None) -> None:
        session, self._session = self._session, None
        if session is not None:
            try:
                session.finish(error)
            except Exception as fault:
                session.run.guard.fault("twinkle.end", fault)
        atexit.unregister(self._exit)

    # --- hooks

    def _tells(self, name: str) -> Hook:
        """The hook around a method: the session's method of the same name, in outermost calls."""
        method = getattr(Session, name)

        def hook(*args: Any, **kwargs: Any) -> Steps | None:
            if not self._active or getattr(self._inside, "call", False):
                return None
            if self._waiting:
                self._patch_waiting()
            session = self._session
            if session is None and name != "generate":  # others generate with transformers, too
                session = self._begin(remotely=self._infra._mode == "ray")
            if session is None or not session.run.live:
                return None
            steps: Steps | None = method(session, *args, **kwargs)
            return None if steps is None else self._outermost(session, steps)

        return hook

    def _outermost(self, session: Session, steps: Steps) -> Steps:
        self._inside.call = True
        try:
            next(steps)
            outcome = yield
            with contextlib.suppress(StopIteration):
                steps.send(outcome)
        finally:
            self._inside.call = False
        session.after(outcome.error)

    def _initialize(self, mode: str = "local", *_: Any, **__: Any) -> None:
        self._patch_waiting()
        self._begin(remotely=mode == "ray")

    def _caller(self) -> str | None:
        """Who called Twinkle: neither its own frame nor one of ours, which are put around it.

        It stands in the text of exceptions, which must be what they are without us.
        """
        frame = inspect.currentframe()
        between = (self._infra.__file__, base.__file__, __file__)
        while frame is not None and frame.f_code.co_filename in between:
            frame = frame.f_back
        return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
