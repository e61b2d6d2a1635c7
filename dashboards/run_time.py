"""Of *Run*: how far it is, and where the time of an iteration goes."""

from __future__ import annotations

from dashboards.frame import Section
from dashboards.panels import Query, bars, lines, number, stacked, states, table
from dashboards.promql import FEW, ITERATIONS, RUN, grown, quantile, ratio, total

WALL = f'{RUN}, rl_duration_kind="wall"'
PHASE = f'{RUN}, rl_phase=~"$phase"'


def sections() -> list[Section]:
    return [_now(), _time()]


def _now() -> Section:
    return "Now", [
        number(
            "Iterations",
            "short",
            "Windows that ended, whatever their status, since the run began.",
            total("rl_loop_windows_total", RUN),
        ),
        number(
            "Time of an iteration",
            "s",
            "Mean wall time of all iterations of the run.",
            ratio(
                total("rl_loop_duration_seconds_sum", WALL),
                total("rl_loop_duration_seconds_count", WALL),
            ),
        ),
        number(
            "Tokens per second and device",
            "short",
            "Prompt and completion tokens of consumed samples / (work time x devices), over the"
            " whole run: a quotient of sums, never a mean of quotients.",
            ratio(
                total("rl_throughput_tokens_total", f'{RUN}, rl_throughput_kind="end_to_end"'),
                total("rl_device_time_seconds_total", f'{RUN}, rl_throughput_kind="end_to_end"'),
            ),
        ),
        number(
            "Tokens",
            "short",
            "Prompt and completion tokens, each consumed sample once. Exact.",
            total("rl_tokens_total", RUN),
        ),
        number(
            "Updates applied",
            "short",
            "Optimizer steps that changed the weights. Exact.",
            total("rl_train_steps_total", f'{RUN}, rl_update_status="applied"'),
        ),
        number(
            "Version",
            "none",
            "The last one that was published to the generator.",
            f"max (last_over_time(rl_weights_version{{{RUN}}}[$__range]))",
        ),
    ]


def _time() -> Section:
    duration = "rl_loop_duration_seconds"
    parts = [
        Query(
            f"({grown('rl_phase_time_seconds_total', RUN, 'rl_phase')} > 0) / {ITERATIONS}",
            "{{rl_phase}}",
        ),
        Query(f"{grown('rl_overlap_time_seconds_total', RUN)} / {ITERATIONS}", "overlapped"),
        Query(f"{grown('rl_log_time_seconds_total', RUN)} / {ITERATIONS}", "log"),
        Query(f"{grown('rl_unattributed_time_seconds_total', RUN)} / {ITERATIONS}", "unattributed"),
    ]
    wall = Query(ratio(grown(f"{duration}_sum", WALL), grown(f"{duration}_count", WALL)), "wall")
    whole = f"scalar({total(f'{duration}_sum', WALL)} > 0)"
    return "Where an iteration's time goes", [
        stacked(
            "Time of an iteration by phase",
            "s",
            "Mean of the iterations that ended in the window. A phase: time that only it explains,"
            " children counted as their uppermost parent. Overlapped: two or more phases at once."
            " Unattributed: no span explains it. The parts add up to the wall time, the line. "
            + FEW,
            *parts,
            wall,
            whole="wall",
            width=16,
        ),
        bars(
            "Share of the wall time",
            "percentunit",
            "The same parts over the whole run; they add up to 1. Exact.",
            Query(
                f"({total('rl_phase_time_seconds_total', RUN, 'rl_phase')} > 0) / {whole}",
                "{{rl_phase}}",
            ),
            Query(f"{total('rl_overlap_time_seconds_total', RUN)} / {whole}", "overlapped"),
            Query(f"{total('rl_log_time_seconds_total', RUN)} / {whole}", "log"),
            Query(f"{total('rl_unattributed_time_seconds_total', RUN)} / {whole}", "unattributed"),
            width=8,
        ),
        states(
            "Open phases",
            "When a phase was open, in any process. A wait is seen while it lasts. What is shorter"
            " than the export interval can be missed here: the trace has it.",
            Query(f"max by (rl_phase) (rl_phase_active{{{PHASE}}})", "{{rl_phase}}"),
        ),
        lines(
            "Age of what is open",
            "s",
            "How long the oldest open phase of each kind, and the open iteration, have lasted;"
            " 0: none is open. A line that climbs without end is a hang.",
            Query(
                f"max by (rl_phase) (rl_phase_active_duration_seconds{{{PHASE}}})", "{{rl_phase}}"
            ),
            Query(f"max (rl_loop_active_duration_seconds{{{RUN}}})", "iteration"),
        ),
        lines(
            "Duration of an iteration",
            "s",
            "Quantiles of the wall time in the window, to the width of a histogram's bucket. Each"
            " point opens the trace of its iteration. " + FEW,
            Query(quantile(0.5, "rl_loop_duration_seconds", WALL, ""), "median", exemplars=True),
            Query(quantile(0.95, "rl_loop_duration_seconds", WALL, ""), "95 %"),
        ),
        lines(
            "Busy time of a phase in an iteration",
            "s",
            "Median over the iterations of the window of each phase's busy time (its spans united;"
            " phases may overlap, so these do not add up). " + FEW,
            Query(
                quantile(
                    0.5,
                    "rl_phase_duration_seconds",
                    f'{PHASE}, rl_duration_kind="busy"',
                    "rl_phase",
                ),
                "{{rl_phase}}",
                exemplars=True,
            ),
        ),
        table(
            "Busy, exposed, logical",
            "s",
            "Totals of the run by phase. Busy: union of its spans. Exposed: time that nothing but"
            " it explains. Logical: busy without blocking log. Exact.",
            {
                kind.capitalize(): total(
                    "rl_phase_duration_seconds_sum",
                    f'{PHASE}, rl_duration_kind="{kind}"',
                    "rl_phase",
                )
                for kind in ("busy", "exposed", "logical")
            },
        ),
    ]
