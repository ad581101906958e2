"""The command line: Hydra's, with every refusal before anything is made on disk.

    train.py:  sys.exit(command_line.main(run, sweep))        run(config) -> exit code

Training writes into its run directory, a sweep into runs/sweeps/<unique>/<job>; the other modes
leave no trace, and neither does a run that is refused later, unless run.dir is given. Exit codes:
0 done, 2 refused, 1 an unexpected error or a sweep with failed jobs, else what `run` returns.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import NoReturn

from configs.compose import groups
from configs.directories import make_run_dir, remove_untrained
from configs.errors import ConfigError
from configs.flags import flag_problems
from configs.help import help_text
from configs.launch import REFUSED, Run, call_hydra, guarded
from configs.loading import load_with_overrides
from configs.overrides import prepare, quote, to_hydra, with_defaults
from configs.processes import refuse_directories_apart
from configs.schema import Config

Sweep = Callable[[Run, Namespace, Sequence[str]], int]
Complete = Callable[[Config], Config]
_SILENT = ("hydra/job_logging=none", "hydra/hydra_logging=none")  # training has a log of its own


def main(
    run: Run,
    sweep: Sweep,
    arguments: Sequence[str] | None = None,
    complete: Complete = lambda config: config,
) -> int:
    """Does what the command line asks for; returns the exit code of the process.

    `sweep` is called for --multirun, with the parsed command line and its flags; `complete` fills
    in the model of init.from_hf, or raises ConfigError, before a directory is made.
    """
    if arguments is None:
        _speak_utf8()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        asked = _parsed(words)
        flags = _without(words, asked.overrides)
        _refuse_flags(asked)
        if asked.help:
            print(help_text(asked.config_dir))
            return 0
        if asked.hydra_help or asked.cfg or asked.info:
            return call_hydra(_nothing, _translated(asked), flags)
        if asked.shell_completion:
            return call_hydra(_nothing, asked.overrides, flags)
        if asked.multirun:
            return sweep(run, asked, flags)
        return _single(run, complete, asked, flags)
    except ConfigError as error:
        print(error.report(), file=sys.stderr)
        return REFUSED


def _parsed(words: Sequence[str]) -> Namespace:
    """Hydra's reading of the words; raises ConfigError that says what unknown flags stand for."""
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        wrong = flag_problems(words, parser._option_string_actions, groups(None))
        raise ConfigError(wrong or [message])

    parser.error = refuse  # type: ignore[method-assign]
    return parser.parse_intermixed_args(list(words))


def _speak_utf8() -> None:
    """Starts this process over in Python's UTF-8 mode, if the locale cannot name every file."""
    if sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _single(run: Run, complete: Complete, asked: Namespace, flags: Sequence[str]) -> int:
    given = [re.sub(r"^hydra\.run\.dir=", "run.dir=", word) for word in asked.overrides]
    loaded = load_with_overrides(given, asked.config_dir, asked.config_name or "config")
    config = loaded.config
    if loaded.inherited:
        print(f"From {config.run.dir}: {' '.join(loaded.inherited)}", flush=True)
    is_new = config.mode == "train" and not loaded.run_dir_is_given
    place = ["hydra.run.dir=.", "hydra.output_subdir=null"]
    if config.mode == "train":
        refuse_directories_apart(loaded.run_dir_is_given)
        if config.init.from_hf is not None:
            config = complete(config)
        config = make_run_dir(config, new=is_new)
        place = [f"hydra.run.dir={quote(config.run.dir)}"]
    codes: list[int] = []
    left_with = call_hydra(
        lambda _: codes.append(guarded(run, config)),
        with_defaults(loaded.overrides, [*place, *_SILENT]),
        flags,
    )
    code = codes[0] if codes else left_with
    if is_new and code == REFUSED:
        remove_untrained(config.run.dir)
    return code


def _nothing(_: object) -> None:
    """The task of flags that only show something."""


def _translated(asked: Namespace) -> list[str]:
    good, problems = prepare(asked.overrides, groups(asked.config_dir))
    if problems:
        raise ConfigError(problems)
    return [to_hydra(override) for override in good]


def _refuse_flags(asked: Namespace) -> None:
    if asked.config_path:
        raise ConfigError(["--config-path: FoldText's own configs stay; --config-dir adds to them"])
    if asked.experimental_rerun:
        raise ConfigError(
            ["--experimental-rerun: --config-dir RUN/.hydra --config-name config runs RUN again"]
        )


def _without(words: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The words that are no overrides, in their order."""
    left, flags = list(overrides), []
    for word in words:
        if word in left:
            left.remove(word)
        else:
            flags.append(word)
    return flags
