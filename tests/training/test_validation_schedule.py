import pytest

from container.training.state import ValidationSchedule


@pytest.mark.parametrize(
    ("interval", "expected"),
    [(1.0, [10, 20]), (0.5, [5, 10, 15, 20]), (0.25, [3, 5, 8, 10, 13, 15, 18, 20]), (7, [7, 14, 20])],
)
def test_validation_falls_on_even_parts_of_an_epoch_or_every_n_steps(interval, expected):
    schedule = ValidationSchedule(records=80, steps_per_epoch=10, max_epochs=2, val_check_interval=interval)
    assert [step for step in range(21) if schedule.validation_due(step)] == expected
