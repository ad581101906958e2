"""Words that other trainers understand, and what is written here instead.

--lr 1e-3             settings have no dashes: optimizer.lr=1e-3
--resume runs/mine    run.dir=runs/mine goes on with that run
train.steps = 10      no spaces around =: train.steps=10
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from configs.directories import run_at
from configs.fields import did_you_mean, keys_named, leaves

_NO_ANSWER = ("--config-path", "--experimental-rerun", "-e")  # Hydra's flags that are refused here


def goes_on(word: str | None) -> str:
    """`; run.dir=runs/mine goes on with that run` where the word is a path into one, or nothing."""
    run = run_at(word) if word else None
    return f"; run.dir={run} goes on with that run" if run else ""


def flag_problems(
    words: Sequence[str], known: Collection[str], groups: Collection[str]
) -> list[str]:
    """One problem for each word that looks like a flag and is none of the `known` ones."""
    problems = []
    for word, after in zip(words, [*words[1:], None], strict=True):
        flag, is_given, value = word.partition("=")
        if not flag.startswith("-") or flag in known:
            continue
        follows = after is not None and not after.startswith("-") and "=" not in after
        given = value if is_given else after if follows else None
        problems.append(f"{flag}{_instead(flag, given, known, groups)}")
    return problems


def join_spaced(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words without those of `train.steps = 10`, and one problem for each such setting."""
    left, problems, at = [], [], 0
    while at < len(words):
        size = _spaced(words[at : at + 3])
        if size:
            shown = words[at : at + size]
            problems.append(f"{' '.join(shown)}: no spaces around =; write {''.join(shown)}")
        else:
            left.append(words[at])
        at += size or 1
    return left, problems


def _instead(flag: str, value: str | None, known: Collection[str], groups: Collection[str]) -> str:
    hint = goes_on(value)
    if hint:
        return f": there is no such flag{hint}"
    name = flag.lstrip("-").replace("-", "_")
    flags = [word for word in known if word not in _NO_ANSWER]
    keys = keys_named(name, groups)
    if keys == ["checkpoint.resume"] and value not in leaves()["checkpoint.resume"].choices:
        return f": there is no such flag; run.dir={value or 'RUN'} goes on with a run"
    if keys and not difflib.get_close_matches(flag, flags, n=1, cutoff=0.85):
        written = " or ".join(f"{key}={value or 'VALUE'}" for key in keys)
        return f": settings have no dashes: {written}"
    return f": there is no such flag{did_you_mean(flag, flags)}"


def _spaced(words: Sequence[str]) -> int:
    """How many of the words are one setting with spaces around its `=`; 0 for none."""
    first, second, third = (*words, "", "")[:3]
    key, is_given, value = first.partition("=")
    if key not in leaves() or value:
        return 0
    if is_given:
        return 2 if second and "=" not in second else 0
    if second == "=":
        return 3 if third and "=" not in third else 2
    return 2 if second.startswith("=") else 0
