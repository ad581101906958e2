"""What TensorBoard shows about a run beside its curves: texts, pictures, groups of charts."""

from __future__ import annotations

import logging

from PIL import Image
from tensorboardX import summary as summaries

from configs.saved import to_yaml
from parallelism import Layout
from training.compile import Compiled
from training.compile_report import compile_report
from training.hparams import session_start
from training.metric_table import METRICS
from training.metrics import MetricsLog
from training.pictures import bar_chart, image_summary, mesh_map
from training.plan import plan_markdown, rank_pairs
from training.setup import Setup

log = logging.getLogger("foldtext")

# Group, chart, metrics.
_CHARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "loss": {"loss": ("loss", "eval_loss"), "perplexity": ("perplexity", "eval_perplexity")},
    "speed": {
        "tokens per second": ("tokens_per_second",),
        "TFLOP/s per device": ("per_device_tflops_per_second",),
        "MFU, causal and full square": ("mfu", "mfu_full_square"),
    },
    "time split": {
        "step": ("step_time_seconds", "data_wait_seconds", "device_seconds", "logging_seconds"),
        "pauses": ("checkpoint_seconds", "eval_seconds"),
    },
    "memory": {"bytes": ("bytes_in_use", "peak_bytes_in_use")},
}


def show_run(metrics: MetricsLog, setup: Setup, step: Compiled, new: bool) -> None:
    """Writes config, plan, compile report, pictures and groups; hyperparameters of a new run."""
    metrics.text("config", f"```yaml\n{to_yaml(setup.config)}\n```")
    metrics.text("plan", plan_markdown(setup))
    metrics.text("compile", _compile_report(step))
    metrics.summary(summaries.custom_scalars(_chart_groups()))
    metrics.summary(image_summary("attended_pairs", _balance_chart(setup)))
    metrics.summary(image_summary("mesh", mesh_map(setup.mesh)))
    if new:
        metrics.summary(session_start(setup.config))


def _compile_report(step: Compiled) -> str:
    """A compiler whose output cannot be read ends no run."""
    try:
        return compile_report(step)
    except (KeyError, ValueError, AttributeError, NotImplementedError, RuntimeError) as error:
        log.warning("there is no compile report: %r", error)
        return f"there is none: {error!r}"


def _balance_chart(setup: Setup) -> Image.Image:
    """The attention's layout beside the contiguous one; if it is that itself, beside zigzag."""
    layout = setup.model.placement.attention.layout
    layouts = [layout.name, _other_layout(layout, setup.config.data.seq_len)]
    pairs = {name: rank_pairs(setup, Layout(name, layout.cp)) for name in layouts}
    return bar_chart("attended pairs a row and layer, by context rank", pairs)


def _other_layout(layout: Layout, seq_len: int) -> str:
    if layout.name != "contiguous":
        return "contiguous"
    halves = seq_len % (2 * layout.cp) == 0
    return "zigzag" if halves else "striped"


def _chart_groups() -> dict[str, dict[str, tuple[str, list[str]]]]:
    """As tensorboardX takes them; tags are regular expressions."""
    return {
        group: {
            chart: ("Multiline", [f"^{METRICS[name].tag}$" for name in names])
            for chart, names in charts.items()
        }
        for group, charts in _CHARTS.items()
    }
