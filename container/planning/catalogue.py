"""Read the instance types that a plan compares: GPUs, memory, bandwidths and prices (catalogue.json)."""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from contracts.errors import ContractError
from contracts.input_files import read_object

_FILE = Path(__file__).with_name("catalogue.json")
_IMAGE_CAPABILITY = 7.5  # CUDA 13 of the image has no code for older GPUs (docs/image.md)
_BFLOAT16_CAPABILITY = 8.0
_NEAREST = 3


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
        memory_gib: that PyTorch can use.
        half_tflops, float32_tflops: dense peak of matrix products.
        bandwidth_gb: of its memory, GB/s.
    """

    name: str
    capability: float
    memory_gib: float
    half_tflops: float
    float32_tflops: float
    bandwidth_gb: float

    @property
    def has_bfloat16(self) -> bool:
        return self.capability >= _BFLOAT16_CAPABILITY

    @property
    def runs(self) -> bool:
        """Return whether the image has code for it."""
        return self.capability >= _IMAGE_CAPABILITY


@dataclass(frozen=True)
class Instance:
    """An instance type.

    Attributes:
        gpu: None for an instance without GPUs.
        link_gb: between two GPUs of the instance, GB/s in one direction.
        network_gbit: of the instance; where it has a burst rate, the sustained one.
        dollars: per hour on demand, for training on SageMaker: the price on EC2 with SageMaker's markup.
        vcpu_gflops: float32 peak of a vCPU; only without GPUs.
    """

    name: str
    gpu: Gpu | None
    gpus: int
    link_gb: float
    network_gbit: float
    vcpu: int
    ram_gib: float
    dollars: float
    vcpu_gflops: float = 0.0

    @property
    def processes(self) -> int:
        """Return the number of worker processes that a job starts by default."""
        return self.gpus or 1

    @property
    def memory_gib(self) -> float:
        """Return the memory of a process."""
        return self.gpu.memory_gib if self.gpu else self.ram_gib


@dataclass(frozen=True)
class Catalogue:
    """The instance types by name, and the circumstances of their prices.

    Attributes:
        prices: date, region, and spot_share: an assumed spot price, as a share of the price on demand.
        measurements: what a plan takes from measurements, each with its source.
        encoders: config.json of known encoders, for plans without their files.
    """

    instances: Mapping[str, Instance]
    prices: Mapping[str, Any]
    measurements: Mapping[str, Any]
    encoders: Mapping[str, Mapping[str, Any]]

    @classmethod
    def load(cls, override: Path | None = None) -> "Catalogue":
        """Return the catalogue; entries of the user's file replace those with the same name, or are new.

        Raises:
            ContractError: the user's file is not an object of this form.
        """
        content = json.loads(_FILE.read_text("utf-8"))
        for section, entries in (read_object(override, _FORM) if override else {}).items():
            if section not in content or not isinstance(entries, dict):
                raise ContractError(f"{override}: {section!r} is no section of a catalogue", _FORM)
            for name, entry in entries.items():
                known = content[section].get(name, {})
                content[section][name] = {**known, **entry} if isinstance(entry, dict) else entry
        try:
            gpus = {name: Gpu(**entry) for name, entry in content["gpus"].items()}
            instances = {name: _instance(name, entry, gpus) for name, entry in content["instances"].items()}
        except (TypeError, KeyError) as error:
            raise ContractError(f"{override}: an entry of the catalogue is not complete: {error}", _FORM) from None
        return cls(instances, content["prices"], content["measurements"], content["encoders"])

    @cached_property
    def spot_share(self) -> float:
        return self.prices["spot_share"]

    def choose(self, names: Sequence[str]) -> list[Instance]:
        """Return the instances with these names; all without a name.

        Raises:
            ContractError: an unknown name.
        """
        for name in names:
            if name not in self.instances:
                near = difflib.get_close_matches(name, self.instances, n=_NEAREST, cutoff=0)
                raise ContractError(
                    f"--instance: {name!r} is not in the catalogue; the nearest names: {', '.join(near)}",
                    "Use one of them, or describe the instance in a file for --catalogue (docs/plan.md).",
                )
        return [self.instances[name] for name in dict.fromkeys(names)] or list(self.instances.values())

    def of_gpu(self, memory_gib: float) -> Gpu:
        """Return the GPU whose memory is nearest."""
        gpus = [instance.gpu for instance in self.instances.values() if instance.gpu]
        return min(gpus, key=lambda gpu: abs(gpu.memory_gib - memory_gib))


_FORM = (
    'Write {"instances": {"ml.NAME": {...}}, "gpus": {...}, "prices": {...}} as in container/planning/catalogue.json.'
)


def _instance(name: str, entry: Mapping[str, Any], gpus: Mapping[str, Gpu]) -> Instance:
    values = dict(entry)
    dollars = values.pop("ec2_dollars") * values.pop("markup")
    gpu = values.pop("gpu")
    return Instance(name=name, gpu=None if gpu is None else gpus[gpu], dollars=round(dollars, 4), **values)
