"""Join the groups of contracts/settings/ into a job's configuration; docs/hyperparameters.md is generated from them."""

from typing import Self

from pydantic import ConfigDict, model_validator

from contracts.declaration import Declaration, Scope, Settings, declaration_of
from contracts.model_classes import ModelClass, model_class
from contracts.monitored_metric import MonitoredMetric
from contracts.settings.control import ControlSettings
from contracts.settings.data import DataSettings
from contracts.settings.encoder import EncoderSettings
from contracts.settings.model import ModelSettings
from contracts.settings.outcome import OutcomeSettings
from contracts.settings.processes import ProcessSettings
from contracts.settings.table import TableSettings
from contracts.settings.text import TextSettings
from contracts.settings.tracking import TrackingSettings
from contracts.settings.training import TrainingSettings
from contracts.text_fields import ROLES, ModelTextField, resolve_text_field
from contracts.threshold_targets import ThresholdTarget, parse_threshold

GROUPS: dict[str, type[Settings]] = {
    "data": DataSettings,
    "model": ModelSettings,
    "encoder": EncoderSettings,
    "text": TextSettings,
    "table": TableSettings,
    "training": TrainingSettings,
    "control": ControlSettings,
    "outcome": OutcomeSettings,
    "processes": ProcessSettings,
    "tracking": TrackingSettings,
}


class Hyperparameters(  # pydantic collects the fields from the last base to the first
    TrackingSettings,
    ProcessSettings,
    OutcomeSettings,
    ControlSettings,
    TrainingSettings,
    TableSettings,
    TextSettings,
    EncoderSettings,
    ModelSettings,
    DataSettings,
):
    """A typed job configuration; contracts.hyperparameter_files creates it and checks it for contradictions."""

    model_config = ConfigDict(defer_build=False)

    @model_validator(mode="after")
    def _normalize(self) -> Self:
        """Derive num_layers and num_channels from each other, then mark values that equal their default as not set.

        A configuration written with its defaults (model/hyperparameters.json) is therefore the same when it is read.
        """
        fields = type(self).model_fields
        if self.model_class.endswith("_cnn"):
            if "num_layers" not in self.model_fields_set:
                object.__setattr__(self, "num_layers", len(self.num_channels))
            elif "num_channels" not in self.model_fields_set:
                object.__setattr__(self, "num_channels", self.num_channels[:1] * self.num_layers)
            self.model_fields_set.update(("num_layers", "num_channels"))
        self.model_fields_set.difference_update(
            [name for name, field in fields.items() if getattr(self, name) == field.default]
        )
        return self

    @classmethod
    def declarations(cls) -> dict[str, Declaration]:
        """Return the declaration of every hyperparameter."""
        return {name: declaration_of(field) for name, field in cls.model_fields.items()}

    @classmethod
    def names_of(cls, *scopes: Scope) -> list[str]:
        """Return the names of the hyperparameters with one of `scopes`."""
        return [name for name, declaration in cls.declarations().items() if declaration.scope in scopes]

    @property
    def architecture(self) -> ModelClass:
        return model_class(self.model_class)

    @property
    def text_fields(self) -> tuple[ModelTextField, ...]:
        """Return the text columns that the model reads, in order, with overrides resolved."""
        return tuple(resolve_text_field(self, role) for role in ROLES[self.architecture.num_texts])

    @property
    def has_table(self) -> bool:
        """Return whether a number or a category enters the model."""
        return self.architecture.uses_table and bool(
            self.tab_field_list or self.date_field_list or self.encoded_categories
        )

    @property
    def encoded_categories(self) -> list[str]:
        """Return the categorical columns that become risk values, in order."""
        chosen = self.categorical_features_to_encode
        return [name for name in self.cat_field_list if chosen is None or name in chosen]

    @property
    def num_members(self) -> int:
        """Return the number of networks that the model is made of; 1 = an ordinary training."""
        return self.cross_fit * self.cross_fit_repeats or self.ensemble

    @property
    def pools_val(self) -> bool:
        """Return whether the networks train on val as well, and out-of-fold predictions decide."""
        return self.choose_on == "out_of_fold"

    @property
    def monitored_metric(self) -> MonitoredMetric:
        """Return early_stop_metric, which chooses the best weights."""
        return MonitoredMetric.of(self.early_stop_metric)

    @property
    def threshold(self) -> float | ThresholdTarget:
        """Return decision_threshold as a number, or as the target for which it is chosen on val."""
        return parse_threshold(self.decision_threshold)

    @property
    def fusion_width(self) -> int:
        """Return F, the width of the fusion head."""
        wide = self.architecture.fusion in ("concat_mlp", "cross_attention_texts")
        default = max(128, 3 * self.hidden_common_dim // 2) if wide else self.hidden_common_dim
        return self.fusion_hidden_dim or default
