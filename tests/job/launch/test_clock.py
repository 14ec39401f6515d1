"""A clock that jumps ends no job and kills no worker."""

import time

from container.job.timeline import Timeline


def test_phases_are_measured_by_a_clock_that_does_not_jump(monkeypatch):
    timeline = Timeline()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    timeline.mark("train")
    assert 0 <= timeline.seconds["train"] < 60
