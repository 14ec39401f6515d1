"""Declare the data: which files and columns a job reads."""

from contracts import conditions
from contracts.declaration import Settings, declare

# Settings that name a column of the training data which a prediction does not need.
ROW_COLUMNS = ("id_name", "label_name", "weight_name", "group_name")


class DataSettings(Settings):
    """The settings of the data: which files and columns a job reads."""

    id_name: str | None = declare(None, scope="prepare")
    """Column of record ids, copied to the predictions unchanged. Default: the predictions have a column row, the number
    of the row in its channel, from 0."""

    text_name: str | list[str] | None = declare(None, scope="prepare")
    """Text column of the one-text classes, or a list of columns that are joined: one sequence, each column after a
    separator (docs/training.md). Cannot be set with primary_text_name and secondary_text_name."""

    primary_text_name: str | None = declare(None, scope="prepare")
    """First text column of the two-text classes, e.g. a chat."""

    secondary_text_name: str | None = declare(None, scope="prepare")
    """Second text column of the two-text classes, e.g. an event history."""

    label_name: str = declare(scope="prepare")
    """Column of the class label."""

    weight_name: str | None = declare(None, scope="prepare")
    """Column of record weights, numbers of at least 0, in every split. They apply to the loss, class_weights=balanced,
    the companion, the calibration and the threshold (docs/training.md)."""

    group_name: str | None = declare(None, scope="prepare")
    """Column of groups, e.g. customers. The rows of a group are in the same fold of risk tables, cross_fit and the
    companion."""

    full_field_list: list[str] | None = declare(None, scope="prepare")
    """Columns that the data must have, in addition to the columns that other settings name. Default: none."""

    cat_field_list: list[str] = declare([], scope="prepare", needs=(conditions.READS_TABLE,))
    """Categorical columns; each becomes a risk value (binary) or one per class (multiclass)."""

    tab_field_list: list[str] = declare([], scope="prepare", needs=(conditions.READS_TABLE,))
    """Numeric columns."""

    date_field_list: list[str] = declare([], scope="prepare", needs=(conditions.READS_TABLE,))
    """Columns of dates or times; each becomes seven numbers (docs/training.md)."""

    categorical_features_to_encode: list[str] | None = declare(None, scope="prepare", needs=(conditions.READS_TABLE,))
    """The columns of cat_field_list that enter the model. Default: all of them."""

    train_filename: str | None = declare(None, scope="prepare")
    """Read only this file of the train channel. Default: every data file in it."""

    val_filename: str | None = declare(None, scope="prepare")
    """Read only this file of the val channel. Default: every data file in it."""

    test_filename: str | None = declare(None, scope="after")
    """Read only this file of the test channel. Default: every data file in it."""

    drop_unlabelled: bool = declare(False, scope="prepare")
    """Drop training rows without a label instead of stopping; the number of rows is logged."""
