"""Launchers and sweepers of other packages: what to install where one is asked for and missing."""

from __future__ import annotations

import re

from configs.fields import did_you_mean

# Option of hydra/launcher or hydra/sweeper, and the extra of pyproject.toml that brings it.
_EXTRAS = {
    "launcher": {
        "joblib": "joblib",
        "ray": "ray",
        "submitit_local": "submitit",
        "submitit_slurm": "submitit",
    },
    "sweeper": {"optuna": "optuna"},
}
_NOT_FOUND = re.compile(
    r"Could not find 'hydra/(launcher|sweeper)/([^']*)'; Available options in '[^']*': (.*)"
)


def missing_plugin(complaint: str) -> str | None:
    """What to do about Hydra's complaint, on one line, that an option is missing; None if none is.

    `hydra/launcher=joblib` names the extra to install, `hydra/launcher=jobli` the nearest name.
    """
    found = _NOT_FOUND.search(complaint)
    if not found:
        return None
    group, option, here = found[1], found[2], found[3].split("; ")
    extras = _EXTRAS[group]
    if option in extras:
        return (
            f"hydra/{group}={option} needs a package that is not installed; "
            f"pip install -e '.[{extras[option]}]' brings it"
        )
    known = [*here, *(name for name in extras if name not in here)]
    hint = did_you_mean(option, known)
    return (
        f"hydra/{group}={option}: there is no such option{hint or ';'} "
        f"{'I' if hint else 'i'}t takes {', '.join(known)}"
    )
