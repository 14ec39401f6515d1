import errno
import os

import pytest

from container.errors import PeerFailed
from container.job.failure import Failure, root_cause, write_failure
from container.job.supervisor import _RESERVED
from contracts.errors import ContractError
from contracts.paths import JobPaths


def test_the_root_cause_is_not_the_peer_that_lost_its_connection():
    echo = Failure("RuntimeError: Connection closed by peer", rank=0, echo=True, at=1.0)
    killed = Failure.from_exit(-9, who="worker rank 1 (pid 7)", rank=1, at=2.0)
    assert root_cause([echo, killed]) is killed
    assert "rank 1 (pid 7) was ended by SIGKILL" in killed.text().splitlines()[0]


def test_a_failure_text_starts_with_the_cause_then_says_what_to_change():
    try:
        raise ContractError("text_name: missing", "Set text_name.")
    except ContractError as error:
        lines = Failure.from_exception(error, rank=3).text().splitlines()
    assert lines[:2] == ["text_name: missing [rank 3]", "What to change: Set text_name."]
    assert "Traceback" in lines[3]


class OutOfMemoryError(RuntimeError):
    """As torch's, which this test does not import."""


class DistError(RuntimeError):
    """As torch's."""


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (MemoryError("Unable to allocate 8 GB"), "out of memory: Unable to allocate 8 GB"),
        (OutOfMemoryError("CUDA out of memory. Tried"), "out of memory: CUDA"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate"), "out of memory: ["),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory: "),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (Exception("I/O error: No space left on device (os error 28)"), "the disk is full"),
        (RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 704 vs 598"), "the disk is full"),
        (RuntimeError("label 'unexpected pos 704 vs 598' is unknown"), "RuntimeError: label"),
        (ContractError("row 3: label is 'out of memory'", "Fix."), "row 3: label"),
        (ValueError("could not convert 'No space left on device' to float"), "ValueError: could not"),
        (RuntimeError("label 'CUDA out of memory' is unknown"), "RuntimeError: label"),
    ],
)
def test_the_kind_of_a_failure_follows_from_its_exception_and_not_from_the_data(error, cause):
    assert Failure.from_exception(error).cause.startswith(cause)


@pytest.mark.parametrize(
    ("error", "echo"),
    [
        (RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"), True),
        (DistError("NCCL error: ncclRemoteError: remote process exited"), True),
        (ConnectionResetError("Connection reset by peer"), True),
        (PeerFailed("rank 1: ValueError"), True),
        (ContractError("row 3: label is 'connection reset'", "Fix."), False),
        (ValueError("watchdog"), False),
        (DistError("NCCL error: invalid usage"), False),
    ],
)
def test_a_text_of_the_data_does_not_look_like_a_lost_peer(error, echo):
    assert Failure.from_exception(error).echo == echo


def test_an_error_that_was_handled_does_not_explain_the_next_one():
    error = ContractError("x: too deep", "Remove brackets.")
    error.__context__, error.__suppress_context__ = MemoryError(), True  # raise ... from None
    assert Failure.from_exception(error).cause == "x: too deep"


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("\n            [Stage 3] failed to run forward:\n   args: ()", "stage 3: ValueError: too long"),
        ("\n        Failed to run stage backward:\n   Input: ()", "backward pass of a stage: ValueError: too long"),
        ("\n        Failed to run stage backward input:\n", "backward pass of a stage: ValueError: too long"),
        ("label '[Stage 3] failed to run forward:'", "RuntimeError: label"),
    ],
    ids=["forward", "backward", "input pass", "text of the data"],
)
def test_the_cause_of_a_failed_pipeline_stage_is_the_error_that_it_raised(message, cause):
    error = RuntimeError(message)
    error.__cause__ = ValueError("too long")
    assert Failure.from_exception(error).cause.startswith(cause)


@pytest.mark.parametrize("text", ["column '\ud800'", os.fsdecode(b"f\xff.csv"), "\0", "\ud83d\ude00"])
def test_a_failure_with_any_text_is_written_to_both_files(tmp_path, text):
    paths = JobPaths(tmp_path)
    write_failure(Failure.from_exception(ContractError(f"{text} is wrong", f"Rename {text}.")), *paths.failure_files)
    for path in paths.failure_files:
        assert "is wrong\nWhat to change: Rename" in path.read_text(encoding="utf-8")


def test_a_failure_file_that_cannot_be_written_does_not_prevent_the_other(tmp_path):
    (tmp_path / "file").write_text("")
    write_failure(Failure("cause"), tmp_path / "file" / "failure", tmp_path / "folder" / "failure")
    assert (tmp_path / "folder" / "failure").read_text() == "cause\n"


@pytest.mark.parametrize("letter", ["x", "€"])
def test_the_part_of_a_failure_that_the_service_shows_has_the_cause_and_the_fix(letter):
    failure = Failure.from_exception(ContractError(f"lr: {letter * 5000} is wrong", f"Set lr {letter * 5000} to 1."))
    shown = failure.text().encode()[:1024].decode(errors="ignore")
    assert shown.startswith("lr: ")
    assert "is wrong\nWhat to change: Set lr" in shown
    assert shown.splitlines()[1].endswith("to 1.")


def test_two_failure_files_fit_into_the_space_that_a_job_reserves_for_them():
    text = Failure.from_exception(ContractError("a" * 100_000, "b" * 100_000)).text()
    assert 2 * len(text.encode()) < _RESERVED


def test_an_error_whose_text_cannot_be_made_is_named_by_its_type():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert Failure.from_exception(Mute()).cause == "Mute: Mute"


def test_running_out_of_memory_names_the_settings_to_lower():
    assert "batch_size" in Failure.from_exception(MemoryError()).fix
