import time

import pytest

from container.job.job import Job, Scratch
from container.job.timeline import Timeline
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.paths import JobPaths
from testing.jobs import CONFIGURATION


@pytest.fixture
def clock(monkeypatch):
    """Returns a function that sets the time, in seconds since the timeline began at 100."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, 100.0 + seconds)


def test_each_part_begins_where_the_one_before_it_ended(clock):
    timeline = Timeline(100.0)
    for seconds, name in ((0.3, "read contracts"), (2.3, "prepare data"), (6.3, "start workers")):
        clock(seconds)
        timeline.mark(name)
    assert str(timeline) == "read contracts 0.3 s (5%), prepare data 2.0 s (32%), start workers 4.0 s (63%)"
    assert timeline.elapsed() == pytest.approx(6.3)


def test_a_part_that_occurs_again_adds_to_its_time(clock):
    timeline = Timeline(100.0)
    for seconds, name in ((1.0, "train"), (1.5, "validate"), (3.5, "train"), (5.0, "validate")):
        clock(seconds)
        timeline.mark(name)
    assert timeline.seconds == {"train": 3.0, "validate": 2.0}


def test_a_job_carries_the_timeline_to_the_workers(clock, tmp_path):
    job = Job(JobPaths(tmp_path), parse_hyperparameters(CONFIGURATION), Scratch(tmp_path), tmp_path, Timeline(100.0))
    clock(1.0)
    job.timeline.mark("prepare data")
    job.write()
    read = Job.read(job.scratch)
    clock(3.0)
    read.timeline.mark("start workers")
    assert read.timeline.seconds == {"prepare data": 1.0, "start workers": 2.0}
