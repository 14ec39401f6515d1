"""The environment of a job's workers."""

from container.launch.workers import DEFAULTS, _defaults


def test_waiting_threads_follow_the_policy_of_the_user() -> None:
    assert _defaults({}) == dict(DEFAULTS)
    assert "GOMP_SPINCOUNT" not in _defaults({"OMP_WAIT_POLICY": "PASSIVE"}), "the number would replace the policy"


def test_the_allocator_follows_the_settings_of_the_user_under_their_older_name() -> None:
    assert "PYTORCH_ALLOC_CONF" not in _defaults({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"})
