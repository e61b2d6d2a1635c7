"""*Fleet*: many runs beside each other, their ranks, workers and devices."""

from __future__ import annotations

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel

from dashboards.frame import Section, dashboard, event, source, values, window
from dashboards.panels import Query, bars, lines, states, table
from dashboards.promql import grown, quantile, ratio, total

RUNS = 'rl_run_id=~"$run"'
WALL = f'{RUNS}, rl_duration_kind="wall"'
END_TO_END = f'{RUNS}, rl_throughput_kind="end_to_end"'
PHASE = f'{RUNS}, rl_phase=~"$phase"'
RANK = "rl_run_id, rl_phase, rl_rank"
GPU = "host_name, hw_id"
NAME_OF_GPU = "{{host_name}} {{hw_id}}"


def build() -> Dashboard:
    return dashboard(
        "otel-grpo-fleet",
        "otel-grpo: fleet",
        "Many runs beside each other: their pace, their stragglers, their devices.",
        variables=[
            source("prometheus"),
            values("run", "Run", "label_values(rl_loop_windows_total, rl_run_id)", many=True),
            values(
                "phase",
                "Phase",
                f"label_values(rl_rank_phase_time_seconds_total{{{RUNS}}}, rl_phase)",
                many=True,
            ),
            window(),
        ],
        annotations=[
            event(
                "Alert",
                "orange",
                f'max by (alertname, rl_run_id) (ALERTS{{alertstate="firing", {RUNS}}})',
                "{{alertname}} {{rl_run_id}}",
            )
        ],
        sections=[_runs(), _ranks(), _workers(), _devices()],
    )


def _runs() -> Section:
    run = "rl_run_id"
    return "Runs", [
        table(
            "Runs",
            "short",
            "One line for each run; totals since it began, exact. Time of an iteration: mean wall"
            " time. Throughput: tokens / (work time x devices).",
            {
                "Iterations": total("rl_loop_windows_total", RUNS, run),
                "Time of an iteration": ratio(
                    total("rl_loop_duration_seconds_sum", WALL, run),
                    total("rl_loop_duration_seconds_count", WALL, run),
                ),
                "Tokens": total("rl_tokens_total", RUNS, run),
                "Tokens per second and device": ratio(
                    total("rl_throughput_tokens_total", END_TO_END, run),
                    total("rl_device_time_seconds_total", END_TO_END, run),
                ),
                "Updates": total("rl_train_steps_total", RUNS, run),
                "Unattributed": ratio(
                    total("rl_unattributed_time_seconds_total", RUNS, run),
                    total("rl_loop_duration_seconds_sum", WALL, run),
                ),
            },
            units={"Time of an iteration": "s", "Unattributed": "percentunit"},
            links={
                "rl_run_id": {
                    "Open the run": "/d/otel-grpo-run?var-run=${__value.raw}&from=${__from}&to=${__to}"
                }
            },
        ),
        table(
            "What they run",
            "string",
            "System, algorithm and model of each run. The value is how many processes report.",
            {
                "Processes": "count by (rl_run_id, rl_system, rl_algorithm, rl_model_name)"
                f" (last_over_time(rl_loop_active_duration_seconds{{{RUNS}}}[$__range]))"
            },
            units={"Processes": "short"},
        ),
        lines(
            "Time of an iteration",
            "s",
            "Mean wall time of the iterations that ended in the window, by run.",
            Query(
                ratio(
                    grown("rl_loop_duration_seconds_sum", WALL, run),
                    grown("rl_loop_duration_seconds_count", WALL, run),
                ),
                "{{rl_run_id}}",
            ),
        ),
        lines(
            "Tokens per second and device",
            "short",
            "Growth of tokens / growth of device time, end to end, by run.",
            Query(
                ratio(
                    grown("rl_throughput_tokens_total", END_TO_END, run),
                    grown("rl_device_time_seconds_total", END_TO_END, run),
                ),
                "{{rl_run_id}}",
            ),
        ),
        lines(
            "Unattributed share",
            "percentunit",
            "Wall time of iterations that no span explains / wall time, by run.",
            Query(
                ratio(
                    grown("rl_unattributed_time_seconds_total", RUNS, run),
                    grown("rl_loop_duration_seconds_sum", WALL, run),
                ),
                "{{rl_run_id}}",
            ),
            top=1,
        ),
        lines(
            "Age of the open iteration",
            "s",
            "How long the open iteration of each run has lasted; 0: none is open.",
            Query(
                f"max by (rl_run_id) (rl_loop_active_duration_seconds{{{RUNS}}})", "{{rl_run_id}}"
            ),
        ),
    ]


def _ranks() -> Section:
    own = grown("rl_rank_phase_time_seconds_total", PHASE, RANK)
    group = "rl_run_id, rl_phase"
    typical = f"quantile by ({group}) (0.5, {own})"
    name = "{{rl_run_id}} {{rl_phase}}, rank {{rl_rank}}"
    return "Ranks", [
        lines(
            "Stragglers",
            "none",
            "A rank's own busy time in a phase / the median of the ranks of its run; the ten"
            " largest. 1: like the others.",
            Query(f"topk(10, {ratio(own, typical, on=group)})", name),
        ),
        lines(
            "Busy time by rank",
            "s",
            "Each rank's own busy time in a phase, in the window.",
            Query(own, name),
        ),
        states(
            "What each rank is in",
            "Phases that are open, by process: one that waits for another is seen while it waits.",
            Query(
                f"max by ({RANK}) (rl_phase_active{{{PHASE}}})",
                "{{rl_run_id}} rank {{rl_rank}}: {{rl_phase}}",
            ),
        ),
        lines(
            "Longest open phases",
            "s",
            "How long the oldest open phase of each process has lasted; the ten largest.",
            Query(f"topk(10, max by ({RANK}) (rl_phase_active_duration_seconds{{{PHASE}}}))", name),
        ),
    ]


def _workers() -> Section:
    method = "rl_run_id, rl_worker_method"
    return "Workers", [
        lines(
            "Duration of calls",
            "s",
            "95 % of the calls of each method in the window, to the width of a bucket.",
            Query(
                quantile(0.95, "rl_worker_duration_seconds", RUNS, method),
                "{{rl_run_id}} {{rl_worker_method}}",
                exemplars=True,
            ),
        ),
        bars(
            "Time of workers by method",
            "s",
            "What each worker process spent in calls of each method. Totals, exact.",
            Query(
                total(
                    "rl_worker_time_seconds_total",
                    RUNS,
                    "rl_run_id, rl_worker_method, rl_role, rl_rank",
                ),
                "{{rl_run_id}} {{rl_worker_method}} {{rl_role}} {{rl_rank}}",
            ),
        ),
    ]


def _devices() -> Section:
    def gpu(
        title: str, unit: str, about: str, metric: str, top: float | None = None
    ) -> Builder[Panel]:
        query = Query(f"max by ({GPU}) ({metric}{{{RUNS}}})", NAME_OF_GPU)
        return lines(title, unit, about, query, width=8, top=top)

    return "Devices", [
        lines(
            "Devices",
            "short",
            "Distinct physical devices by run and by what they do.",
            Query(
                f"max by (rl_run_id, rl_role) (rl_devices{{{RUNS}}})", "{{rl_run_id}} {{rl_role}}"
            ),
            width=8,
        ),
        gpu(
            "GPU at work",
            "percentunit",
            "Fraction of time in which a kernel ran, as the driver tells it.",
            "hw_gpu_utilization_ratio",
            top=1,
        ),
        lines(
            "GPU memory",
            "percentunit",
            "Used / size, as the driver tells it.",
            Query(
                f"max by ({GPU}) (hw_gpu_memory_usage_bytes{{{RUNS}}})"
                f" / max by ({GPU}) (hw_gpu_memory_limit_bytes{{{RUNS}}})",
                NAME_OF_GPU,
            ),
            width=8,
            top=1,
        ),
        gpu("GPU power", "watt", "Power that the device takes.", "hw_power_watts"),
        gpu("GPU temperature", "celsius", "Of the device.", "hw_temperature_celsius"),
        lines(
            "GPU energy",
            "joule",
            "Energy that each device took in the window.",
            Query(grown("hw_energy_joules_total", RUNS, GPU), NAME_OF_GPU),
            width=8,
        ),
        lines(
            "Memory of processes",
            "bytes",
            "Resident memory by process; the twenty largest.",
            Query(
                "topk(20, sum by (rl_run_id, rl_role, rl_rank, instance)"
                f" (process_memory_usage_bytes{{{RUNS}}}))",
                "{{rl_run_id}} {{rl_role}} {{rl_rank}}",
            ),
            width=24,
        ),
    ]
