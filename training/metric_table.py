"""Every metric: its name in the code, TensorBoard tag, unit, meaning, and when it is written.

docs/tensorboard.md shows the table; `python -m training.metric_table` writes it there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

When = Literal["each logged step", "each save", "each evaluation", "once a process"]
PAGE = Path(__file__).parents[1] / "docs" / "tensorboard.md"
_BLOCK = re.compile(r"(<!-- metrics: .*? -->\n).*?(<!-- /metrics -->)", re.DOTALL)


@dataclass(frozen=True)
class Metric:
    """One measured quantity; `in_jsonl` if it is a field of metrics.jsonl as well."""

    tag: str
    unit: str
    meaning: str
    in_jsonl: bool = False
    when: When = "each logged step"


METRICS: dict[str, Metric] = {
    "loss": Metric(
        "learning/loss", "nats per token", "Mean training loss of the step's batch.", True
    ),
    "perplexity": Metric("learning/perplexity", "", "exp(loss)."),
    "grad_norm": Metric(
        "learning/grad_norm", "", "Global norm of the gradient before clipping.", True
    ),
    "index_loss": Metric(
        "learning/index_loss",
        "nats per token",
        "Cross entropy of the indexer's shares of the chosen keys against the attention's, mean "
        "over layers; where `model.indexer.loss` trains it.",
    ),
    "param_norm": Metric("learning/param_norm", "", "Global norm of the parameters."),
    "learning_rate": Metric(
        "learning/current_learning_rate", "", "Learning rate of this step's update.", True
    ),
    "step_tokens": Metric("learning/total_weights", "tokens", "Tokens scored in this step."),
    "tokens": Metric("learning/total_tokens", "tokens", "Tokens scored since the start.", True),
    "step_time_seconds": Metric(
        "perf/step_time_seconds",
        "s",
        "Wall time from one step's end to the next's; no save, evaluation or compilation.",
        True,
    ),
    "tokens_per_second": Metric(
        "perf/tokens_per_sec", "tokens/s", "Tokens scored a second, all devices.", True
    ),
    "per_device_tokens_per_second": Metric(
        "perf/per_device_tokens_per_sec", "tokens/s", "Tokens scored a second and device."
    ),
    "per_device_tflops_per_second": Metric(
        "perf/per_device_tflops_per_sec", "TFLOP/s", "Model FLOPs (causal) a second and device."
    ),
    "mfu": Metric(
        "perf/mfu",
        "fraction",
        "Model FLOPs over the device's peak, counting the pairs that causal attention needs; "
        "only where the peak is known.",
    ),
    "mfu_full_square": Metric(
        "perf/mfu_full_square",
        "fraction",
        "The same with all pairs of the square counted, as many reports do.",
    ),
    "data_wait_seconds": Metric(
        "perf/data_wait_seconds",
        "s",
        "Part of the step time in which the loop waited for a batch.",
        True,
    ),
    "device_seconds": Metric(
        "perf/device_seconds",
        "s",
        "Part of the step time in which the loop waited for the devices.",
    ),
    "logging_seconds": Metric(
        "perf/logging_seconds",
        "s",
        "Part of the step time in which the numbers of a step were written.",
    ),
    "bytes_in_use": Metric(
        "memory/bytes_in_use",
        "bytes",
        "Memory of the fullest device of the first process; only where the backend reports it.",
    ),
    "peak_bytes_in_use": Metric(
        "memory/peak_bytes_in_use", "bytes", "The most that it has been since the start."
    ),
    "padding_fraction": Metric(
        "data/padding_fraction", "fraction", "Slots of the step's batch that are padding."
    ),
    "epoch": Metric("data/epoch", "epochs", "Passes over the data so far."),
    "eval_loss": Metric(
        "eval/avg_loss",
        "nats per token",
        "Mean loss over all tokens of the eval split.",
        True,
        "each evaluation",
    ),
    "eval_perplexity": Metric("eval/avg_perplexity", "", "exp(eval_loss).", when="each evaluation"),
    "eval_tokens": Metric(
        "eval/total_weights", "tokens", "Tokens of the eval split.", True, "each evaluation"
    ),
    "eval_seconds": Metric(
        "perf/eval_seconds",
        "s",
        "Training stood still for this evaluation, its compilation not counted.",
        when="each evaluation",
    ),
    "checkpoint_seconds": Metric(
        "perf/checkpoint_seconds", "s", "Training stood still for this save.", when="each save"
    ),
    "balance": Metric(
        "context_parallel/balance",
        "ratio",
        "Attended pairs per context rank, max over mean; 1 is perfect.",
        when="once a process",
    ),
    "init_seconds": Metric(
        "perf/init_seconds", "s", "Making a new train state.", when="once a process"
    ),
    "restore_seconds": Metric(
        "perf/restore_seconds", "s", "Restoring a saved train state.", when="once a process"
    ),
    "compile_init_seconds": Metric(
        "perf/compile_seconds/init", "s", "Compiling what draws the state.", when="once a process"
    ),
    "compile_train_step_seconds": Metric(
        "perf/compile_seconds/train_step", "s", "Compiling the train step.", when="once a process"
    ),
    "compile_eval_step_seconds": Metric(
        "perf/compile_seconds/eval_step",
        "s",
        "Compiling the eval step, before the first evaluation.",
        when="once a process",
    ),
}


def markdown() -> str:
    """The table as Markdown, one row a metric."""
    rows = [f"| `{m.tag}` | {m.meaning} | {m.unit} | {m.when} |\n" for m in METRICS.values()]
    return "| scalar | meaning | unit | when |\n| --- | --- | --- | --- |\n" + "".join(rows)


def with_table(page: str) -> str:
    """The page with the table between its two comments, in place of the one there."""
    return _BLOCK.sub(lambda match: f"{match[1]}{markdown()}{match[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
