"""Of *Run*: what came of it, and what it took."""

from __future__ import annotations

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from dashboards.frame import Section
from dashboards.panels import Query, bars, heat, lines, signed
from dashboards.promql import FEW, ITERATIONS, RUN, grown, quantile, ratio, total


def sections() -> list[Section]:
    return [_throughput(), _samples(), _learning(), _memory()]


def _throughput() -> Section:
    kind = "rl_throughput_kind"
    return "Throughput", [
        lines(
            "Throughput by kind",
            "short",
            "Tokens per second and device: growth of tokens / growth of device time. end_to_end: all tokens / (work time"
            " x devices). generation: completion tokens / (busy generation x generating devices)."
            " train: visited tokens / (busy policy_train x training devices). " + FEW,
            Query(
                ratio(
                    grown("rl_throughput_tokens_total", RUN, kind),
                    grown("rl_device_time_seconds_total", RUN, kind),
                ),
                "{{rl_throughput_kind}}",
            ),
        ),
        bars(
            "Throughput by kind, whole run",
            "short",
            "Tokens per second and device of the whole run: quotients of exact totals.",
            Query(
                ratio(
                    total("rl_throughput_tokens_total", RUN, kind),
                    total("rl_device_time_seconds_total", RUN, kind),
                ),
                "{{rl_throughput_kind}}",
            ),
            width=6,
        ),
        lines(
            "Last iteration alone",
            "short",
            "Tokens per second and device of the last iteration. Never averaged: a mean of"
            " quotients is no throughput.",
            Query(f"rl_throughput_device_per_second{{{RUN}}}", "{{rl_throughput_kind}}"),
            width=6,
        ),
        lines(
            "Tokens of an iteration",
            "short",
            "Mean of the iterations in the window. Input: prompts. Output: completions. " + FEW,
            Query(
                f"{grown('rl_tokens_total', RUN, 'gen_ai_token_type')} / {ITERATIONS}",
                "{{gen_ai_token_type}}",
            ),
        ),
        lines(
            "Devices",
            "short",
            "Distinct physical devices of the job by what they do; one that does two things counts"
            " in both.",
            Query(f"max by (rl_role) (rl_devices{{{RUN}}})", "{{rl_role}}"),
        ),
    ]


def _samples() -> Section:
    return "Samples, updates, publications", [
        bars(
            "Samples",
            "short",
            "Consumed: each once. Visits: how often samples were trained on. Discarded: by reason."
            " Totals of the run, exact.",
            Query(total("rl_sample_samples_total", RUN), "consumed"),
            Query(total("rl_sample_visits_total", RUN), "visits"),
            Query(
                total("rl_sample_discarded_total", RUN, "rl_discard_reason"),
                "discarded: {{rl_discard_reason}}",
            ),
            width=8,
        ),
        bars(
            "Updates by status",
            "short",
            "Attempted optimizer steps. Skipped: overflow or a gradient that is not finite. Failed:"
            " a failure was reported. Unconfirmed: a rank has not spoken. Totals, exact.",
            Query(total("rl_train_steps_total", RUN, "rl_update_status"), "{{rl_update_status}}"),
            width=8,
        ),
        bars(
            "Iterations by status",
            "short",
            "Complete, partial (a tail or dropped batch), aborted (an exception or a stop)."
            " Totals, exact.",
            Query(total("rl_loop_windows_total", RUN, "rl_window_status"), "{{rl_window_status}}"),
            width=8,
        ),
        heat(
            "Length of completions",
            "short",
            "Tokens of a consumed sample's completion: samples in each bucket, in each window.",
            grown(
                "rl_sample_length_bucket",
                f'{RUN}, gen_ai_token_type="output"',
                "le",
            ),
            width=8,
        ),
        lines(
            "Lengths",
            "short",
            "Quantiles of tokens per sample, to the width of a histogram's bucket. " + FEW,
            *(
                Query(
                    quantile(q, "rl_sample_length", RUN, "gen_ai_token_type"),
                    f"{{{{gen_ai_token_type}}}} {100 * q:.0f} %",
                )
                for q in (0.5, 0.95)
            ),
            width=8,
        ),
        lines(
            "Policy lag",
            "short",
            "Version of the trainer that consumed a sample - version that generated it. Mean over"
            " the samples of the window, and 95 %. " + FEW,
            Query(
                ratio(grown("rl_policy_lag_sum", RUN), grown("rl_policy_lag_count", RUN)), "mean"
            ),
            Query(quantile(0.95, "rl_policy_lag", RUN, ""), "95 %"),
            width=8,
        ),
        lines(
            "Publications",
            "short",
            "Versions that were handed to the generator in the window.",
            Query(grown("rl_sync_publications_total", RUN), "publications"),
        ),
        lines(
            "Version of the weights",
            "none",
            "The last one that was published.",
            Query(f"max (rl_weights_version{{{RUN}}})", "version"),
        ),
    ]


def _learning() -> Section:
    def gauge(title: str, about: str, *names: str) -> Builder[Panel]:
        queries = [Query(f"max ({name}{{{RUN}}})", name) for name in names]
        return signed(title, "none", about + " Of the last update that told it.", *queries)

    return "Learning, as the trainer tells it", [
        gauge("Loss", "The trainer's loss.", "rl_train_loss"),
        gauge("Reward", "Mean and deviation of the reward.", "rl_reward_mean", "rl_reward_std"),
        gauge("Gradient norm", "Before it was clipped.", "rl_train_grad_norm"),
        gauge("KL, entropy", "Of the policy.", "rl_train_kl", "rl_train_entropy"),
        gauge("Learning rate", "Of the optimizer.", "rl_train_learning_rate"),
        bars(
            "Values that were not finite",
            "short",
            "NaN or infinity among the trainer's scalars, by scalar. Totals of the run, exact.",
            Query(total("rl_train_nonfinite_total", RUN, "rl_scalar"), "{{rl_scalar}}"),
            width=18,
        ),
    ]


def _memory() -> Section:
    return "Memory", [
        lines(
            "Of processes",
            "bytes",
            "Resident memory of each process that is observed.",
            Query(
                f"sum by (rl_role, rl_rank, instance) (process_memory_usage_bytes{{{RUN}}})",
                "{{rl_role}} {{rl_rank}}",
            ),
            width=8,
        ),
        lines(
            "Of the allocator",
            "bytes",
            "What the trainer's allocator holds on each device. The peak is since the process"
            " started or the trainer reset it.",
            Query(
                f"max by (hw_id, rl_allocator_kind) (rl_allocator_memory_bytes{{{RUN}}})",
                "{{hw_id}} {{rl_allocator_kind}}",
            ),
            Query(
                f"max by (hw_id, rl_allocator_kind) (rl_allocator_memory_peak_bytes{{{RUN}}})",
                "{{hw_id}} {{rl_allocator_kind}}, peak",
            ),
            width=8,
        ),
        lines(
            "Of devices",
            "bytes",
            "Used as the driver tells it: other processes and inference engines are in it.",
            Query(f"max by (hw_id) (hw_gpu_memory_usage_bytes{{{RUN}}})", "{{hw_id}}"),
            Query(f"max by (hw_id) (hw_gpu_memory_limit_bytes{{{RUN}}})", "{{hw_id}}, size"),
            width=8,
        ),
    ]
