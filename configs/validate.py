"""All rules on a typed config, every problem at once. No JAX: the device count is a number here."""

from __future__ import annotations

import math
from collections.abc import Collection, Set
from dataclasses import replace
from typing import Any

from configs import attention_rules, data_rules, mesh_rules, model_rules, run_rules  # noqa: F401  (they add their rules)
from configs.errors import ConfigError
from configs.fields import leaves, read
from configs.mesh_axes import FILL, resolve_axes
from configs.ranges import range_problems
from configs.rule import AXES, RULES, Sizes
from configs.schema import Config
from configs.topology import num_known_devices


def validate(
    config: Config, wrong: Collection[str] = (), *, model_is_known: bool = True
) -> list[str]:
    """Every problem that needs no devices; with mesh.simulate or mesh.topology
    the device count is known.

    `wrong` are keys that were refused already: rules that read them are not asked. Neither are
    those that read the model if it is not known, because a folder that is yet to be read names it.
    """
    problems = {key: text for key, text in range_problems(config) if key not in wrong}
    unknown = () if model_is_known else (key for key in leaves() if key.startswith("model."))
    bad = {*wrong, *problems, *unknown}
    return [*problems.values(), *_rule_problems(config, bad)]


def validate_mesh(config: Config, num_devices: int) -> list[str]:
    """The problems of a config that is in range otherwise, on this many devices."""
    sizes, problem = _sizes(config, num_devices)
    if problem:
        return [problem]
    return [text for rule in RULES for text in rule.check(config, sizes)]


def resolve(config: Config, num_devices: int) -> Config:
    """Returns the config with the -1 axis filled in.

    Raises ConfigError when the mesh does not fit the devices, or the rest does not fit the mesh.
    """
    problems = validate_mesh(config, num_devices)
    if problems:
        raise ConfigError(problems)
    sizes: dict[str, Any] = {**resolve_axes(axis_sizes(config), num_devices)}
    return replace(config, mesh=replace(config.mesh, **sizes))


def axis_sizes(config: Config) -> dict[str, int]:
    """The configured size of every mesh axis; one may be -1."""
    return {axis: read(config, f"mesh.{axis}") for axis in AXES}


def _rule_problems(config: Config, bad: Set[str]) -> list[str]:
    num_devices = None if "mesh.simulate" in bad else num_known_devices(config)
    mesh_is_bad = any(f"mesh.{axis}" in bad for axis in AXES)
    sizes, problem = _sizes(config, None if mesh_is_bad else num_devices)
    return [problem] * bool(problem) + [
        text for rule in RULES if bad.isdisjoint(rule.keys) for text in rule.check(config, sizes)
    ]


def _sizes(config: Config, num_devices: int | None) -> tuple[Sizes, str]:
    """The axis sizes, None where unknown, and what is wrong with them on these devices."""
    configured = axis_sizes(config)
    known: Sizes = {axis: None if size == FILL else size for axis, size in configured.items()}
    if num_devices is None or list(configured.values()).count(FILL) > 1:
        return known, ""
    try:
        return resolve_axes(configured, num_devices), ""
    except ValueError as error:
        return known, _misfit(config, configured, num_devices, error)


def _misfit(config: Config, configured: dict[str, int], num_devices: int, error: ValueError) -> str:
    """What does not fit, and mesh.simulate as a way out where there are too few real devices."""
    asked = [f"mesh.{axis}={size}" for axis, size in configured.items() if size != 1]
    if config.mesh.topology is not None:
        return f"{' '.join([*asked, f'mesh.topology={config.mesh.topology}'])}: {error}"
    if config.mesh.simulate:
        return f"{' '.join([*asked, f'mesh.simulate={num_devices}'])}: {error}"
    needed = math.prod(size for size in configured.values() if size != FILL)
    simulated = f"; mesh.simulate={needed} simulates {needed}" if needed > num_devices else ""
    return f"{' '.join(asked)}: {error}{simulated}"
