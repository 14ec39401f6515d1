"""Measure the text steps and tokenizers on hostile texts: processor time by size, and how long another thread waits."""

import argparse
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from tokenizers import Tokenizer

from benchmarks.printing import print_machine, print_table
from container.text.chunk_tokenizer import ChunkTokenizer
from container.text.cleaning import run_string_step
from container.text.tokenization import TextProcessor
from testing.hostile_texts import FAMILIES, hostile_text, processor_seconds
from testing.tokenizers import KINDS, field, trained

_STRING_STEPS = ("dialogue_splitter", "html_normalizer", "emoji_remover", "text_normalizer")
_LEAST_SECONDS = 0.005  # no ratio of shorter times


class Measured(NamedTuple):
    """Processor seconds at each size, and the longest wait of another thread at the largest, in seconds."""

    family: str
    seconds: list[float]
    longest_wait: float

    @property
    def ratio(self) -> float | None:
        """Return the time at the largest size relative to the smallest, if that one can be measured."""
        return self.seconds[-1] / self.seconds[0] if self.seconds[0] >= _LEAST_SECONDS else None


def main() -> None:
    """Print a table per step, then one of all steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = _steps()
    parser.add_argument("--steps", nargs="*", choices=steps, default=list(steps), help="default: all")
    parser.add_argument("--megabytes", nargs="*", type=float, default=[0.5, 1, 2.5, 5], help="sizes, ascending")
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    print_machine()
    sizes = [f"{size:g} MB" for size in arguments.megabytes]
    summary = []
    for name in arguments.steps:
        found = [_measure(steps[name], family, arguments.megabytes) for family in FAMILIES]
        print_table(
            f"{name}, processor time", ["text", *sizes, "ratio", "longest wait"], [_cells(row) for row in found]
        )
        slowest = max(found, key=lambda row: row.seconds[-1])
        ratios = [row.ratio for row in found if row.ratio is not None]
        worst = max(row.longest_wait for row in found)
        summary.append([name, *_cells(slowest)[:-1], f"{max(ratios):.1f}" if ratios else "-", f"{worst:.2f} s"])
    title = f"The slowest text of each step, and the largest values of {len(FAMILIES)} texts"
    print_table(title, ["step", "slowest text", *sizes, "ratio", "largest ratio", "longest wait"], summary)


def _steps() -> dict[str, Callable[[str], object]]:
    steps: dict[str, Callable[[str], object]] = {step: partial(run_string_step, step) for step in _STRING_STEPS}
    for kind in (*KINDS, "whole_text"):
        processor = TextProcessor(field("dialogue_chunker"), ChunkTokenizer(Tokenizer.from_str(trained(kind))))
        steps[f"{kind}, chunks"] = lambda text, processor=processor: processor.process([text])
    return steps


def _measure(step: Callable[[str], object], family: str, megabytes: list[float]) -> Measured:
    texts = [hostile_text(family, int(size * 1e6)) for size in megabytes]
    step(texts[0][:1000])
    seconds = [processor_seconds(partial(step, text)) for text in texts[:-1]]
    with _waits() as waits:
        seconds.append(processor_seconds(partial(step, texts[-1])))
    return Measured(family, seconds, max(waits))


@contextmanager
def _waits() -> Iterator[list[float]]:
    """Sleep a millisecond at a time in another thread, and list how much longer each sleep took."""
    waits: list[float] = [0.0]
    ended = threading.Event()

    def sleep() -> None:
        while not ended.is_set():
            began = time.perf_counter()
            time.sleep(0.001)
            waits.append(time.perf_counter() - began - 0.001)

    thread = threading.Thread(target=sleep)
    thread.start()
    try:
        yield waits
    finally:
        ended.set()
        thread.join()


def _cells(row: Measured) -> list[str]:
    ratio = "-" if row.ratio is None else f"{row.ratio:.1f}"
    return [row.family, *(f"{value:.3f} s" for value in row.seconds), ratio, f"{row.longest_wait:.2f} s"]


if __name__ == "__main__":
    main()
