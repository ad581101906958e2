"""The example of docs/init.md runs as it stands, at smaller sizes."""

import re
from pathlib import Path

import jax
import numpy as np

GUIDE = Path(__file__).parents[2] / "docs" / "init.md"


def test_the_guide_draws_448_factors_sharded_over_all_devices():
    example = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL).group(1)
    small = re.sub(r"\b(14336|4096|1024)\b", lambda size: str(int(size[1]) // 128), example)
    names = {}
    exec(small, names)
    factors = names["factors"]
    assert len(jax.tree.leaves(factors)) == 448
    assert all(leaf.sharding.num_devices == 8 for leaf in jax.tree.leaves(factors))
    assert not any(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(factors))
    assert factors[3]["V"]["gate"].shape == (32, 32)
    assert factors[3]["U"]["gate"].shape == (32, 112)
    values = np.stack([np.asarray(layer["V"]["down"], np.float64) for layer in factors])
    assert abs(values.std() * 112**0.5 - 1) < 0.03
