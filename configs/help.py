"""What `python train.py --help` says: two screens, from the groups that are really there."""

from __future__ import annotations

import os
import textwrap

from configs.compose import groups
from configs.fields import leaves

_GROUPS = {
    "model": "what is trained; any field of it can be set: model.num_layers=12",
    "mesh": "the devices: mesh.data, mesh.fsdp, mesh.context, mesh.tensor, mesh.expert",
    "context_parallel": "how a sequence is laid out and shared over the context ranks",
    "data": "where the tokens come from: data.path, data.seq_len, data.batch",
    "adapter": "low-rank factors on a frozen model: adapter.rank, adapter.alpha, adapter.targets",
    "optimizer": "the update rule: optimizer.lr, optimizer.weight_decay, optimizer.clip_norm",
    "schedule": "the shape of the learning rate: schedule.warmup_steps, schedule.total_steps",
    "experiment": "whole recipes on top of the rest; each file starts with its command",
}
_COMMANDS = (
    ("python train.py", "train the small default model here"),
    ("python train.py mode=plan model=llama3_8b mesh.fsdp=8 mesh.context=16", "what it would take"),
    ("python train.py mesh.simulate=8 mesh.fsdp=2 mesh.context=4", "eight simulated devices"),
    ("python train.py run.dir=RUN", "a new run in RUN, or the one there resumed"),
    ("python train.py --multirun optimizer.lr=1e-4,1e-3,1e-2", "a sweep that ends in a table"),
)
_WIDTH = 100


def help_text(config_dir: str | os.PathLike[str] | None) -> str:
    """The help, with the groups and options of `config_dir` as well."""
    parts = [
        "FoldText trains language models on long sequences with JAX.",
        "  python train.py [flag ...] [group=option ...] [key=value ...]",
        "",
        "Commands to copy",
        *(line for command, does in _COMMANDS for line in (f"  {command}", f"      {does}")),
        "",
        f"mode=  {', '.join(leaves()['mode'].choices)}",
        "",
        "Groups: group=option",
        *(line for name, options in groups(config_dir).items() for line in _group(name, options)),
        "",
        "Flags",
        "  --multirun, -m     run one job for every combination of comma-separated values",
        "  --cfg job          show every key with its value; --resolve computes what follows",
        "  --info defaults    show where the values come from",
        "  --config-dir DIR   groups and options of your own, beside these",
        "  --hydra-help       the other flags, tab completion (-sc install=bash) among them",
        "",
        "docs/quickstart.md begins, docs/configuration.md says what every key means,",
        "docs/sweeps.md how sweeps work, docs/troubleshooting.md what a message means.",
    ]
    return "\n".join(parts)


def _group(name: str, options: list[str]) -> list[str]:
    """`  mesh              how devices ...`, then the options, wrapped."""
    first = f"  {name:18}{_GROUPS.get(name, 'your own')}"
    indent = " " * 20
    wrapped = textwrap.wrap(
        ", ".join(options), _WIDTH, initial_indent=indent, subsequent_indent=indent
    )
    return [first, *wrapped]
