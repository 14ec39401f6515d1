import math

from container.training.state import EarlyStopping, TrainingState


def test_patience_counts_epochs_not_validations():
    early, state = EarlyStopping("val_auroc", patience=1), TrainingState()
    history = [(0.25, 0.9), (0.5, 0.8), (1.0, 0.8), (1.25, 0.8)]
    stopped = []
    for progress, value in history:
        early.update(state, {"val/auroc": value}, progress=progress)
        stopped.append(state.stopped_early)
    assert stopped == [False, False, False, True]
    assert state.best_progress == 0.25


def test_a_lower_loss_is_better_and_a_higher_score_is():
    for metric, better in (("val/loss", 0.1), ("val/auroc", 0.9)):
        early, state = EarlyStopping(metric, patience=9), TrainingState()
        assert early.update(state, {metric: 0.5}, progress=1)
        assert early.update(state, {metric: better}, progress=2)
        assert not early.update(state, {metric: 0.5}, progress=3)


def test_an_undefined_metric_is_never_the_best():
    early, state = EarlyStopping("val/auroc", patience=1), TrainingState()
    assert not early.update(state, {"val/auroc": None}, progress=5)
    assert (state.best_step, state.stopped_early) == (None, False)


def test_a_loss_that_is_no_number_is_never_the_best():
    early, state = EarlyStopping("val/loss", patience=1), TrainingState()
    assert not early.update(state, {"val/loss": math.nan}, progress=1)
    assert early.update(state, {"val/loss": 0.7}, progress=2)
