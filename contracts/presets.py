"""Choose settings that the user did not set, by rules; docs/presets.md gives the measurement behind each rule."""

import math
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from contracts.hyperparameters import Hyperparameters
from contracts.model_classes import FROM_SCRATCH
from contracts.settings.training import Preset
from contracts.spelling import counted

ABOVE_DEFAULTS: tuple[Preset, ...] = ("recommended", "best")


@dataclass(frozen=True)
class DataFacts:
    """What a rule may know about the data.

    Attributes:
        rows: of train.
        class_totals: labelled records of train of each class, by class id; with weight_name, their total weight.
        val_class_totals: the same of val.
        labelled: labelled records of train and val, without those of weight 0.
        units: number of them; with group_name, of the groups, which folds keep together.
    """

    rows: int
    class_totals: tuple[float, ...]
    val_class_totals: tuple[float, ...]
    labelled: int
    units: int

    @classmethod
    def read(cls, summary: Mapping[str, Any]) -> "DataFacts":
        """Return the facts of the summary of prepared data."""
        train, val = (summary["splits"][name] for name in ("train", "val"))
        labelled = sum(sum(split["classes"].values()) - split.get("without_weight", 0) for split in (train, val))
        units = train.get("groups", 0) + val.get("groups", 0) - val.get("groups_of_train", 0) or labelled
        of_train, of_val = (tuple(class_totals(split).values()) for split in (train, val))
        return cls(train["rows"], of_train, of_val, labelled, min(units, labelled))


def class_totals(split: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the labelled records of each class, by label; with weight_name, their total weight.

    Args:
        split: of the summary's "splits".
    """
    return split.get("class_weights") or split["classes"]


class Case(NamedTuple):
    """A condition on the settings.

    Attributes:
        words: end the sentence "because ...".
        open: settings that the user leaves open, unless all rows of train and val decide.
    """

    words: str
    holds: Callable[[Hyperparameters], bool]
    open: tuple[str, ...] = ()


class Rule(NamedTuple):
    """A value for a setting.

    Attributes:
        value: the value; or a function of the facts of the data that returns the value and its reason, or None if the
            rule does not apply to this data.
    """

    setting: str
    value: Any
    case: Case
    presets: tuple[Preset, ...] = ABOVE_DEFAULTS

    @property
    def needs_data(self) -> bool:
        return callable(self.value)


class Choice(NamedTuple):
    """A value that a preset wants for a setting, and why.

    Attributes:
        is_final: whether no rule that needs the data will replace it.
    """

    setting: str
    value: Any
    reason: str
    is_final: bool = True


def _is_pretrained(hp: Hyperparameters) -> bool:
    return any(field.tokenizer != FROM_SCRATCH for field in hp.text_fields)


def _can_share(hp: Hyperparameters) -> bool:
    undivided = hp.pp_size == 1 and hp.branch_size == 1 and hp.strategy not in ("pp", "branch")
    return undivided and len({field.tokenizer for field in hp.text_fields}) == 1


ALWAYS = Case("it helps in general", lambda _: True)
COMPLETE = Case("it helps in general, in a job that is not a draft", lambda hp: not hp.draft)
UNKNOWN_SIZE = Case("the number of rows is not known yet", lambda _: True)
PRETRAINED = Case("an encoder is pretrained", _is_pretrained)
RANDOM = Case("every encoder starts from scratch", lambda hp: not _is_pretrained(hp))
RANDOM_TRANSFORMER = Case(
    "every encoder is a transformer from scratch",
    lambda hp: not _is_pretrained(hp) and hp.architecture.encoder == "transformer",
)
NO_PIPELINE = Case("no pipeline divides the model", lambda hp: hp.pp_size == 1 and hp.strategy != "pp")
ONE_ENCODER = Case("both texts have the same pretrained encoder", lambda hp: _is_pretrained(hp) and _can_share(hp))
NO_SEARCH = Case("an average is usually better than one network", lambda hp: hp.tuning is None)
ONE_NETWORK = Case(
    "every row decides", lambda hp: hp.tuning is None and hp.ensemble == 1 and not hp.draft, ("ensemble", "choose_on")
)
RANDOM_ONE_NETWORK = ONE_NETWORK._replace(holds=lambda hp: ONE_NETWORK.holds(hp) and not _is_pretrained(hp))
PRETRAINED_ONE_NETWORK = ONE_NETWORK._replace(holds=lambda hp: ONE_NETWORK.holds(hp) and _is_pretrained(hp))
ONE_BINARY_NETWORK = ONE_NETWORK._replace(holds=lambda hp: ONE_NETWORK.holds(hp) and hp.num_classes == 2)
TABLE = Case("the model reads a table", lambda hp: hp.has_table)
NUMBERS = Case("the model reads numbers", lambda hp: hp.has_table and bool(hp.tab_field_list or hp.date_field_list))
CATEGORIES = Case("categories enter the model", lambda hp: bool(hp.encoded_categories))
BINARY = Case("there are two classes", lambda hp: hp.num_classes == 2)
MULTICLASS = Case("there are more than two classes", lambda hp: hp.num_classes > 2)

_SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 8000,
    "hidden_dropout_prob": 0.3,
}
SMALL = 2_000  # labelled rows of train and val: with fewer, every row decides, out of fold
_FOLDS = 5  # more networks would take more than three times as long as one
_FEW_ROWS = 1_500  # training takes more steps with fewer
_RARE_POSITIVE = 0.2  # share of class 1 below which F1 says more than accuracy
_RARE = 0.5  # of the rows that a class would have if all had equally many


def _epochs(facts: DataFacts) -> tuple[int, str]:
    epochs = 4 if facts.rows < 5_000 else 3 if facts.rows < 20_000 else 2
    return epochs, f"train has {facts.rows} rows"


def _if_few_rows(value: int) -> Callable[[DataFacts], tuple[int, str] | None]:
    """Return a rule's function, which gives `value` if train has fewer than 1,500 rows."""
    return lambda facts: (value, f"train has {facts.rows} rows") if facts.rows < _FEW_ROWS else None


def _calibration(facts: DataFacts) -> tuple[str, str] | None:
    present = sum(total > 0 for total in facts.val_class_totals)
    return ("temperature", f"val has {present} classes") if present > 1 else None


def _folds(facts: DataFacts) -> tuple[int, str] | None:
    """Return the number of folds of a small table; 0 if it cannot be divided."""
    groups = f" in {counted(facts.units, 'group')}" if facts.units < min(_FOLDS, facts.labelled) else ""
    reason = f"train and val have {facts.labelled} labelled rows{groups}"
    return (min(_FOLDS, facts.units) if facts.units > 1 else 0, reason) if facts.labelled < SMALL else None


def _if_small(value: Callable[[int], Any]) -> Callable[[DataFacts], tuple[Any, str] | None]:
    """Return a rule's function, which gives what `value` returns for the labelled rows of a small table with folds."""

    def choose(facts: DataFacts) -> tuple[Any, str] | None:
        folds = _folds(facts)
        return (value(facts.labelled), folds[1]) if folds is not None and folds[0] else None

    return choose


def _threshold(facts: DataFacts) -> tuple[str, str] | None:
    if facts.labelled >= SMALL or not min(*facts.class_totals, *facts.val_class_totals):
        return None
    share = facts.class_totals[1] / sum(facts.class_totals)
    return "auto_f1" if share < _RARE_POSITIVE else "auto_accuracy", f"class 1 has {share:.0%} of train"


def _if_large(value: int) -> Callable[[DataFacts], tuple[int, str] | None]:
    """Return a rule's function, which gives `value` in a table that is not small."""
    return lambda facts: (value, "an average is usually better than one network") if facts.labelled >= SMALL else None


def _weights_of_rare_classes(facts: DataFacts) -> tuple[list[float], str] | None:
    present = [total for total in facts.class_totals if total]
    fair, rarest = sum(present) / len(present), min(present)
    if rarest >= _RARE * fair:
        return None
    weights = [round(math.sqrt(fair / total), 3) if total else 1.0 for total in facts.class_totals]
    return weights, f"the rarest class has {rarest / sum(present):.2%} of train"


# A later rule replaces an earlier one.
RULES = (
    Rule("lr", 1e-4, PRETRAINED),
    Rule("head_lr", 1e-3, PRETRAINED),
    Rule("layer_lr_decay", 0.85, PRETRAINED),
    Rule("reinit_layers", 0, PRETRAINED),
    Rule("pooling", "mean", PRETRAINED),
    Rule("share_encoder", True, ONE_ENCODER),
    Rule("ema_decay", 0.998, PRETRAINED),
    Rule("lr", 2e-3, RANDOM),
    Rule("encoder_config", _SMALL, RANDOM_TRANSFORMER),
    Rule("weight_decay", 0.01, ALWAYS),
    Rule("numeric_embedding", "piecewise_linear", TABLE),
    Rule("missing_indicators", True, NUMBERS),
    Rule("smooth_rows", 3.0, CATEGORIES),
    Rule("early_stop_metric", "val/auroc", BINARY),
    Rule("companion", True, COMPLETE),
    Rule("max_epochs", 3, UNKNOWN_SIZE),
    Rule("val_check_interval", 0.5, ALWAYS),
    Rule("max_epochs", _epochs, ALWAYS),
    Rule("max_epochs", _if_few_rows(6), RANDOM),
    Rule("batch_size", _if_few_rows(8), NO_PIPELINE),
    Rule("calibration", _calibration, ALWAYS),
    Rule("class_weights", _weights_of_rare_classes, MULTICLASS),
    Rule("ensemble", _if_large(4), NO_SEARCH, ("best",)),
    Rule("cross_fit", _folds, ONE_NETWORK),
    Rule("choose_on", _if_small(lambda _: "out_of_fold"), ONE_NETWORK),
    Rule("max_epochs", _if_small(lambda _: 3), RANDOM_ONE_NETWORK),
    Rule("max_epochs", _if_small(lambda _: 2), PRETRAINED_ONE_NETWORK),
    Rule("decision_threshold", _threshold, ONE_BINARY_NETWORK),
)


def choices(hp: Hyperparameters, facts: DataFacts | None = None, *, given: Container[str] = ()) -> Iterator[Choice]:
    """Yield what the preset of `hp` wants, in the order of the rules; nothing for settings without effect.

    Args:
        facts: yield the rules that need them; None = the rules that do not.
        given: the settings that the user set.
    """
    for rule in RULES:
        applies = hp.preset in rule.presets and rule.needs_data == (facts is not None) and rule.case.holds(hp)
        applies = applies and (hp.pools_val or not any(name in given for name in rule.case.open))
        if not applies or hp.declarations()[rule.setting].obstacle(hp, ()) is not None:
            continue
        if facts is None:
            yield Choice(rule.setting, rule.value, rule.case.words, rule.case is not UNKNOWN_SIZE)
        elif (found := rule.value(facts)) is not None:
            yield Choice(rule.setting, *found)


def chosen_by_data(hp: Hyperparameters) -> set[str]:
    """Return the settings that the preset of `hp` chooses by facts of the data."""
    return {rule.setting for rule in RULES if rule.needs_data and hp.preset in rule.presets}
