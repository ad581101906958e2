"""Loss over a whole eval split: a sum over tokens divided by their number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from data import Dataset, batches
from training.compile import Compiled
from training.feed import Feed
from training.signals import StopSignal


def evaluate(
    step: Compiled, parameters: Any, dataset: Dataset, feed: Feed, stop: StopSignal
) -> dict[str, float] | None:
    """Returns `eval_loss` (nats per token) and `eval_tokens` over every row of the split once.

    The mean is over tokens, so it does not depend on the batch size or on rows of padding. None
    when a signal asked the run to stop before the end, or the split is empty.
    """
    total = weight = 0.0
    prefetch = 2
    with batches(dataset, 0, prefetch, feed) as feeding:
        for batch in feeding:
            sums = step.call(parameters, batch)
            total, weight = total + float(np.asarray(sums[0])), weight + float(np.asarray(sums[1]))
            if stop.agreed():
                return None
    if weight == 0:
        return None
    mean = total / weight
    return {"eval_loss": mean if math.isfinite(mean) else math.nan, "eval_tokens": weight}
