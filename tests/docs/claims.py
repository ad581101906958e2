"""Who runs which command of the docs, and how. A command that nobody claims fails the test.

Commands run in the order of their page, in one folder a page that holds what inputs.py puts there.
What is made cheaper, and how, stands here and in looked_up.py, trainings.py and programs.py:

- trainings that name run.dir, and what follows from them, run for real, at the sizes of
  `trainings.smaller` and for a hundredth of their steps; XLA optimizes little;
- other trainings are checked, their data opened and their step traced in full size, not compiled;
- a sweep's first and last job are checked, and every job leaves a loss in place of training;
- benchmarks run at the sizes of `programs.BENCHMARKS`;
- what is compiled for TPUs is planned: libtpu need not be here;
- nothing is installed and no make target is run: their names are looked up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.docs import looked_up, programs, trainings
from tests.docs.pages import Command

Way = Callable[[Command], None]


@dataclass(frozen=True)
class Claim:
    """On commands that `pattern` matches from their start, and that have all of `having`."""

    pattern: str
    way: Way
    having: Sequence[str] = ()
    messages_of: str = ""
    """Only commands of this page that are shown with what they say."""

    def has(self, command: Command) -> bool:
        """Whether this claim is on the command."""
        if self.messages_of and not (command.page == self.messages_of and command.output):
            return False
        starts = re.match(self.pattern, command.text) is not None
        return starts and all(re.search(part, command.text) for part in self.having)


TRAIN = r"python train\.py\b"
SWEEP = r" --multirun\b"
TABLE = "docs/context_parallelism.md"
CLAIMS = (
    # refused, with the message that the page shows
    Claim(TRAIN, trainings.refused, messages_of="docs/troubleshooting.md"),
    # looked up, not run
    Claim(r"python train\.py \[overrides\]$", looked_up.is_a_form),
    Claim(r"python train\.py OVERRIDES run\.dir=SWEEP/<number>$", looked_up.is_a_form),
    Claim(r"(srun|mpirun) python train\.py run\.dir=DIR \.\.\.$", looked_up.is_a_form),
    Claim(r"python -m tests\.browser\.board RUNS docs/images$", looked_up.is_a_form),
    Claim(r"make (train|test|lint)\b", looked_up.make_target),
    Claim(r"source \.venv/bin/activate$", looked_up.environment),
    Claim(r"pip install (-e )?('\.\[[\w,-]+\]'|\.)$", looked_up.extras),
    Claim(r"pip install ", looked_up.known_package),
    # as they stand
    Claim(r'eval "\$\(python train\.py -sc install=bash\)"', programs.completes),
    Claim(r"(cat|head|ls|mkdir|printf) ", programs.in_bash),
    Claim(TRAIN, trainings.show, having=[r" (--help|--cfg|--info|--hydra-help)\b"]),
    Claim(TRAIN, trainings.as_it_stands, having=[r" mode=plan\b"]),
    Claim(TRAIN, trainings.planned, having=[r" mode=compile\b"]),
    Claim(r"python -m configs\.reference$", programs.prints("docs/configuration.md")),
    Claim(r"python -m training\.metric_table$", programs.prints("docs/tensorboard.md")),
    Claim(r"python -m parallelism\.attention\.(support|pictures)$", programs.prints(TABLE)),
    Claim(r"python tools/gguf_to_hf\.py ", programs.convert_gguf),
    Claim(r"tensorboard --logdir ", programs.tensorboard),
    # smaller, in part, or traced alone
    Claim(r"python -m benchmarks\.", programs.benchmark),
    Claim(TRAIN, trainings.sweep_in_processes, having=[SWEEP, r" hydra\.launcher\.jobs="]),
    Claim(TRAIN, trainings.sweep_here, having=[SWEEP]),
    Claim(TRAIN, trainings.small, having=[r" mode=(eval|generate|export)\b"]),
    Claim(TRAIN, trainings.small, having=[r" run\.dir="]),
    Claim(TRAIN, trainings.traced),
)


def way_of(command: Command) -> Way:
    """How the command is run; AssertionError where nobody claims it."""
    found = next((claim.way for claim in CLAIMS if claim.has(command)), None)
    assert found is not None, f"{command}: tests/docs/claims.py does not say how this is run"
    return found
