"""Read the instance types that a plan compares: GPUs, memory, bandwidths and prices (catalogue.json)."""

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from contracts.declaration import StrictModel
from contracts.errors import ContractError, shown
from contracts.input_files import checked, read_object

_FILE = Path(__file__).with_name("catalogue.json")
_FORM = (
    'Write {"instances": {"ml.NAME": {...}}, "gpus": {...}, "prices": {...}} as in container/planning/catalogue.json.'
)
_IMAGE_CAPABILITY = 7.5  # CUDA 13 of the image has no code for older GPUs (docs/image.md)
_BFLOAT16_CAPABILITY = 8.0
_NEAREST = 3

Positive = Annotated[float, Field(gt=0, le=1e12)]
NotNegative = Annotated[float, Field(ge=0, le=1e12)]


class Gpu(StrictModel):
    """A GPU.

    Attributes:
        memory_gib: that PyTorch can use.
        half_tflops, float32_tflops: dense peak of matrix products.
        bandwidth_gb: of its memory, GB/s.
    """

    name: str
    capability: Positive
    memory_gib: Positive
    half_tflops: Positive
    float32_tflops: Positive
    bandwidth_gb: Positive

    @property
    def has_bfloat16(self) -> bool:
        return self.capability >= _BFLOAT16_CAPABILITY

    @property
    def runs(self) -> bool:
        """Return whether the image has code for it."""
        return self.capability >= _IMAGE_CAPABILITY


class Instance(StrictModel):
    """An instance type.

    Attributes:
        gpu: None for an instance without GPUs.
        link_gb: between two GPUs of the instance, GB/s in one direction.
        network_gbit: of the instance; where it has a burst rate, the sustained one.
        ec2_dollars: per hour on demand.
        markup: of SageMaker.
    """

    name: str
    gpu: Gpu | None
    gpus: int = Field(ge=0, le=1_024)
    link_gb: NotNegative
    network_gbit: NotNegative
    vcpu: int = Field(gt=0, le=100_000)
    ram_gib: Positive
    ec2_dollars: NotNegative
    markup: Positive

    @property
    def dollars(self) -> float:
        """Return the price per hour on demand, for training on SageMaker."""
        return round(self.ec2_dollars * self.markup, 4)

    @property
    def processes(self) -> int:
        """Return the number of worker processes that a job starts by default."""
        return self.gpus or 1

    @property
    def memory_gib(self) -> float:
        """Return the memory of a process."""
        return self.gpu.memory_gib if self.gpu else self.ram_gib


class Prices(StrictModel):
    """The circumstances of the prices.

    Attributes:
        spot_share: an assumed spot price, as a share of the price on demand.
    """

    date: str
    region: str
    spot_share: float = Field(ge=0, le=1)


class Catalogue(StrictModel):
    """The instance types by name.

    Attributes:
        measurements: what a plan takes from measurements, each with its source.
        encoders: config.json of known encoders, for plans without their files.
    """

    prices: Prices
    gpus: Mapping[str, Gpu]
    instances: Mapping[str, Instance]
    measurements: Mapping[str, Mapping[str, NotNegative | str]]
    encoders: Mapping[str, Mapping[str, Any]]

    @classmethod
    def load(cls, override: Path | None = None) -> "Catalogue":
        """Return the catalogue; entries of the user's file replace those with the same name, or are new.

        Raises:
            ContractError: the user's file has an unknown key, a missing one, or a value that is not possible.
        """
        content = json.loads(_FILE.read_text("utf-8"))
        place = override or _FILE
        for section, entries in (read_object(override, _FORM) if override else {}).items():
            if not isinstance(entries, dict):
                raise ContractError(f"{place}: {section!r} is not an object: {shown(entries)}", _FORM)
            known = content.setdefault(section, {})
            for name, entry in entries.items():
                if section == "measurements" and not (
                    isinstance(entry, dict) and set(entry) <= set(known.get(name, ()))
                ):
                    raise ContractError(f"{place}: unknown key in measurements.{name}: {shown(entry)}", _FORM)
                if section == "measurements" and any(
                    not key.startswith("source") and not (isinstance(value, (int, float)) and value > 0)
                    for key, value in entry.items()
                ):
                    raise ContractError(
                        f"{place}: measurements.{name}: not only numbers above 0: {shown(entry)}", _FORM
                    )
                known[name] = {**known.get(name, {}), **entry} if isinstance(entry, dict) else entry
        for name, entry in content["instances"].items():
            if isinstance(entry, dict):
                entry["name"] = name
                gpu = entry.get("gpu")
                if isinstance(gpu, str) and gpu not in content["gpus"]:
                    among = ", ".join(content["gpus"])
                    raise ContractError(f"{place}: instances.{name}.gpu: {gpu!r} is not one of {among}", _FORM)
                if isinstance(gpu, str):
                    entry["gpu"] = content["gpus"][gpu]
        return checked(content, cls, place, _FORM)

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

    def with_gpu(self, memory_gib: float) -> list[Instance]:
        """Return the instances with the GPU whose memory is nearest."""
        gpus = [instance.gpu for instance in self.instances.values() if instance.gpu]
        nearest = min(gpus, key=lambda gpu: abs(gpu.memory_gib - memory_gib))
        return [instance for instance in self.instances.values() if instance.gpu == nearest]
