"""Every test process has 8 simulated CPU devices; nothing needs to be set up outside."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax

jax.config.update("jax_num_cpu_devices", 8)
