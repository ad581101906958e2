"""A command line whose run does nothing but note the config that reached it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from configs import Config
from configs.command_line import main
from configs.saved import write_config
from sweeps import sweep


@dataclass
class CommandLine:
    """`code = command_line("train.steps=5")`; `ran` holds the configs, `behaviour` may be set."""

    ran: list[Config] = field(default_factory=list)
    behaviour: Callable[[Config], int] = lambda config: 0

    def __call__(self, *words: str) -> int:
        return main(self._run, sweep, words)

    def _run(self, config: Config) -> int:
        self.ran.append(config)
        return self.behaviour(config)


@pytest.fixture
def command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Stands in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return CommandLine()


@pytest.fixture
def trained(tmp_path: Path) -> Callable[[Config], int]:
    """A behaviour that leaves what a finished training leaves: config.yaml and a checkpoint."""

    def leave(config: Config) -> int:
        run_dir = Path(config.run.dir)
        if config.mode == "train":
            write_config(config, run_dir / "config.yaml")
            (run_dir / "checkpoints" / str(config.train.steps)).mkdir(parents=True, exist_ok=True)
        return 0

    return leave
