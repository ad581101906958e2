"""Learning rates step by step, against tables worked out by hand."""

import pytest

from configs.schema import ScheduleConfig
from training.schedule import learning_rate


def _rates(steps: int, **changes: object) -> list[float]:
    values = {
        "name": "cosine",
        "warmup_steps": 0,
        "total_steps": None,
        "decay_steps": None,
        "final_fraction": 0.1,
        **changes,
    }
    schedule = ScheduleConfig(**values)
    return [learning_rate(step, 1.0, schedule, steps) for step in range(1, steps + 1)]


def test_warmup_wastes_no_step_and_linear_decay_ends_at_the_fraction() -> None:
    rates = _rates(10, name="linear", warmup_steps=4)
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1])


def test_cosine_is_half_way_down_in_the_middle() -> None:
    rates = _rates(9, warmup_steps=1)
    assert rates[0] == 1.0
    assert rates[4] == pytest.approx(0.55)  # step 5 is half of 1..9
    assert rates[-1] == pytest.approx(0.1)


def test_wsd_is_flat_and_then_decays_over_its_last_steps() -> None:
    rates = _rates(10, name="wsd", warmup_steps=2, decay_steps=4, final_fraction=0.0)
    assert rates == pytest.approx([0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0.0])


def test_constant_stays() -> None:
    assert _rates(4, name="constant", warmup_steps=2) == [0.5, 1.0, 1.0, 1.0]


def test_total_steps_rules_the_length_not_train_steps() -> None:
    assert _rates(20, name="linear", total_steps=10)[9:12] == pytest.approx([0.1] * 3)
    assert _rates(5, total_steps=20) == _rates(20)[:5]


@pytest.mark.parametrize("name", ["cosine", "linear", "wsd", "constant"])
def test_warmup_as_long_as_the_run_and_runs_of_one_step(name: str) -> None:
    assert _rates(4, name=name, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0]
    assert len(_rates(1, name=name)) == 1
    assert all(0 < rate <= 1 for rate in _rates(1, name=name, final_fraction=0.1))
