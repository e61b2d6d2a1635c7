"""What the page on Ray shows is run."""

from __future__ import annotations

import re
from pathlib import Path

import ray

PAGE = Path(__file__).parents[2] / "docs" / "ray.md"


def test_the_example(observed, tmp_path, monkeypatch) -> None:
    """Word by word, but for Ray, which runs already, and whose workers belong to another run."""
    (source,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    environments = []

    def init(*, runtime_env) -> None:
        environments.append(runtime_env)

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.chdir(tmp_path)
    names = {"batches": [["first"], ["second"]], "__name__": "__main__"}
    exec(compile(source, "example", "exec"), names)
    (environment,) = environments
    assert environment["env_vars"] == {"OMP_NUM_THREADS": "1"}
    for worker in names["workers"]:
        assert [call.method for call in observed.calls(worker, 2)] == ["step", "step"]
        assert len(observed.memory(worker, 2)) == 2
        joined = observed.joined(worker)
        assert joined.role == "policy"
        assert [does for _, does in joined.devices] == [["train"]]
        for span in observed.spans(worker, 2):
            assert span["parentSpanId"]
