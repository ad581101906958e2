"""Rules on what is laid out over the mesh: sequences, rows, heads and widths."""

from __future__ import annotations

import math
from collections.abc import Iterator

from configs.fields import read
from configs.mesh_axes import FILL
from configs.rule import AXES, Sizes, divisors, multiples, rule, trains
from configs.schema import Config
from configs.topology import parse_topology
from configs.words import counted


@rule(*(f"mesh.{axis}" for axis in AXES))
def _one_open_axis(config: Config, _: Sizes) -> Iterator[str]:
    open_axes = [axis for axis in AXES if read(config, f"mesh.{axis}") == FILL]
    if len(open_axes) > 1:
        named = " and ".join(f"mesh.{axis}=-1" for axis in open_axes)
        yield f"{named}: one axis at most can take what is left; give the others a size"


@rule("mode", "mesh.topology", "mesh.simulate")
def _topology(config: Config, _: Sizes) -> Iterator[str]:
    name = config.mesh.topology
    if name is None:
        return
    if config.mode not in ("plan", "compile"):
        yield (
            f"mesh.topology={name}: mode={config.mode} runs on devices that are here; mode=compile "
            "and mode=plan take a topology, mesh.topology=null does without"
        )
    if config.mesh.simulate:
        yield f"mesh.topology={name} and mesh.simulate={config.mesh.simulate}: one of them at most"
    try:
        parse_topology(name)
    except ValueError as error:
        yield f"mesh.topology={name}: {error}"


@rule("mode", "data.seq_len", "mesh.context", "context_parallel.layout")
def _sequence_over_context(config: Config, sizes: Sizes) -> Iterator[str]:
    cp, layout, seq_len = sizes["context"], config.context_parallel.layout, config.data.seq_len
    if cp is None or cp == 1 or config.mode in ("generate", "export"):
        return
    chunks = 2 * cp if layout == "zigzag" else cp
    if seq_len % chunks:
        equation = f"2 * {cp} = {chunks}" if layout == "zigzag" else str(chunks)
        yield (
            f"data.seq_len={seq_len}: with mesh.context={cp} and the {layout} layout it must be a "
            f"multiple of {equation}; {multiples(seq_len, chunks)} would fit"
        )


@rule("mode", "data.batch", "train.grad_accum", "mesh.data", "mesh.fsdp", "mesh.expert")
def _batch_over_rows(config: Config, sizes: Sizes) -> Iterator[str]:
    batch, accum = config.data.batch, config.train.grad_accum if trains(config) else 1
    if config.mode in ("generate", "export"):
        return
    if batch % accum:
        yield (
            f"data.batch={batch} is not a multiple of train.grad_accum={accum}; "
            f"data.batch={multiples(batch, accum)} would fit, or train.grad_accum={divisors(batch)}"
        )
        return
    data, fsdp, expert = sizes["data"], sizes["fsdp"], sizes["expert"]
    if data is None or fsdp is None or expert is None:
        return
    ways = data * fsdp * expert
    if (batch // accum) % ways == 0:
        return
    rows = f"data.batch={batch}"
    if accum > 1:
        rows += f" / train.grad_accum={accum} = {counted(batch // accum, 'row')} in a microbatch"
    product = f"mesh.data({data}) * mesh.fsdp({fsdp})"
    if expert > 1:
        product += f" * mesh.expert({expert})"
    yield (
        f"{rows}: must be a multiple of {product} = {ways}; "
        f"data.batch={multiples(batch, ways * accum)} would fit"
    )


@rule("model.moe.num_experts", "model.moe.expert_dim", "mesh.expert", "mesh.tensor")
def _experts_over_mesh(config: Config, sizes: Sizes) -> Iterator[str]:
    experts, width = config.model.moe.num_experts, config.model.moe.expert_dim
    expert, tensor = sizes["expert"], sizes["tensor"]
    if experts and expert is not None and experts % expert:
        yield (
            f"model.moe.num_experts={experts} is not a multiple of mesh.expert={expert}; "
            f"mesh.expert={divisors(experts)} would fit"
        )
    if experts == 0 and expert is not None and expert > 1:
        yield f"mesh.expert={expert}: this model has no experts; mesh.fsdp={expert} does the same"
    if experts and tensor is not None and width % tensor:
        yield (
            f"model.moe.expert_dim={width} is not a multiple of mesh.tensor={tensor}; "
            f"mesh.tensor={divisors(width)} would fit"
        )


@rule("model.num_heads", "model.num_kv_heads", "model.mlp_dim", "mesh.tensor")
def _widths_over_tensor(config: Config, sizes: Sizes) -> Iterator[str]:
    tensor = sizes["tensor"]
    for key in ("model.num_heads", "model.num_kv_heads", "model.mlp_dim"):
        value = read(config, key)
        if tensor is not None and value % tensor:
            common = math.gcd(
                config.model.num_heads, config.model.num_kv_heads, config.model.mlp_dim
            )
            yield (
                f"{key}={value} is not a multiple of mesh.tensor={tensor}; "
                f"mesh.tensor={divisors(common)} would fit"
            )
