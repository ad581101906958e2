"""From a config to everything that is known before any array exists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from configs import ConfigError
from configs.attention_rules import attention_problems
from configs.schema import Config
from configs.validate import resolve
from model import Placement, Transformer, build_model, parameter_roles, parameter_specs
from model.lora import trained_part
from parallelism import AXES, DEFAULT_RULES, AttentionSetup, Layout, Rules, make_mesh
from training.layer_stats import LayerStats
from training.optimizer import Rule, hyperparameters, update_rule
from training.state import TrainState, train_state_specs


@dataclass(frozen=True)
class Setup:
    """A run's declarations: the mesh, the model, its update rule and the specs of its state."""

    config: Config
    mesh: Any
    rules: Rules
    model: Transformer
    rule: Rule
    specs: TrainState

    @property
    def layout(self) -> Layout:
        """The order in which rows are dealt out over the context axis."""
        return self.model.placement.row_layout

    @property
    def layer_stats(self) -> LayerStats | None:
        """What is measured of each layer, if the config asks for anything."""
        stats = LayerStats(self.config.log, self.specs.parameters)
        return stats if stats.enabled else None

    def abstract_state(self) -> TrainState:
        """Shape, dtype and sharding of every array of the train state."""
        return jax.tree.map(self._abstract, self.specs)

    def _abstract(self, spec: Any) -> jax.ShapeDtypeStruct:
        sharding = self.rules.sharding(self.mesh, spec.axes, spec.shape)
        return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)


def open_setup(config: Config, devices: list[jax.Device]) -> Setup:
    """Declares a run on these devices; raises ConfigError when the mesh does not fit them.

    Or when their platform has not the attention kernel that the config names.
    """
    config = resolve(config, len(devices))
    problems = attention_problems(config, axis_sizes(config), devices[0].platform)
    if problems:
        raise ConfigError(problems)
    return declare_run(config, make_mesh(axis_sizes(config), devices))


def axis_sizes(config: Config) -> dict[str, int]:
    """The mesh's axis sizes, in the order of the mesh."""
    return {axis: getattr(config.mesh, axis) for axis in AXES}


def declare_run(config: Config, mesh: Mesh | AbstractMesh, rules: Rules = DEFAULT_RULES) -> Setup:
    """Declares model, optimizer and state of a config whose mesh sizes are resolved.

    An abstract mesh, without devices, is enough for everything but running.
    """
    platform = mesh.devices.flat[0].platform if isinstance(mesh, Mesh) else "tpu"
    placement = _placement(config, mesh, rules)
    model = build_model(config.model, placement, platform, config.adapter)
    specs, roles = parameter_specs(model), parameter_roles(model)
    trained = trained_part(specs, roles)
    rule = update_rule(config.optimizer, trained, trained_part(roles, roles))
    numbers = hyperparameters(config.optimizer, config.optimizer.lr)
    state = train_state_specs(specs, rule(numbers), trained)
    return Setup(config, mesh, rules, model, rule, state)


def _placement(config: Config, mesh: Any, rules: Rules) -> Placement:
    return Placement(
        attention=AttentionSetup(
            mesh=mesh if mesh.size > 1 else None,
            layout=_attention_layout(config),
            strategy=config.context_parallel.strategy,
            kernel=config.attention.kernel,
            block_size=config.attention.block_size,
            batch_axes=tuple(rules.table["batch"] or ()),
        ),
        rules=rules,
        reorder=config.context_parallel.reorder,
        packed=config.data.pack,
    )


def _attention_layout(config: Config) -> Layout:
    """The order in which attention gets its tokens.

    Under ulysses every rank attends to all tokens, and there is nothing to balance: a model that
    runs in contiguous order need not fold around attention.
    """
    parallel = config.context_parallel
    stays = parallel.strategy == "ulysses" and parallel.reorder == "attention"
    return Layout("contiguous" if stays else parallel.layout, config.mesh.context)
