"""Declare the table: risk values, imputation, scaling, embeddings."""

from typing import Literal

from contracts import conditions
from contracts.declaration import Settings, declare
from contracts.value_types import CategoryPart, DateFormat, Json, Number, NumberFormat


class TableSettings(Settings):
    """The settings of the table: risk values, imputation, scaling, embeddings."""

    smooth_factor: float = declare(
        0.0, scope="prepare", ge=0, le=1_000_000, needs=(conditions.CATEGORIES, conditions.FITS_RISKS)
    )
    """Risk tables: weight of the prior, as a fraction of the number of training rows."""

    smooth_rows: float = declare(
        0.0, scope="prepare", ge=0, le=1_000_000_000, needs=(conditions.CATEGORIES, conditions.FITS_RISKS)
    )
    """Risk tables: weight of the prior, as a number of rows, in addition to smooth_factor."""

    count_threshold: int = declare(
        0, scope="prepare", ge=0, le=1_000_000_000, needs=(conditions.CATEGORIES, conditions.FITS_RISKS)
    )
    """Risk tables: a category with fewer training rows gets the prior."""

    risk_table_folds: int = declare(
        5, scope="prepare", ge=0, le=100, needs=(conditions.CATEGORIES, conditions.FITS_RISKS)
    )
    """Number of folds: training rows get risk values fitted on the other folds. With 0 or 1, the values are fitted on
    the same rows.
    """

    number_format: dict[str, NumberFormat] = declare({}, scope="prepare", needs=(conditions.NUMBERS_OR_WEIGHT,))
    """Notation of the texts of a numeric column or of weight_name: 1,234.5 = a decimal point and commas, 1.234,5 = a
    decimal comma and points. Both may have blanks or apostrophes between thousands, one currency, a percent sign (12 %
    is 12), and brackets for a negative number. A model reads the texts of requests in the same way; a number of JSON is
    itself.
    """

    date_format: dict[str, DateFormat] = declare({}, scope="prepare", needs=(conditions.READS_TABLE,))
    """Notation of a column of date_field_list, e.g. %d/%m/%Y; with UTC behind it, times without a zone are in UTC.
    Default: the first known notation that reads all rows of train.
    """

    null_values: list[str] = declare([], scope="prepare", needs=(conditions.READS_TABLE,))
    """Words for a missing number or date, in any case, in addition to NA, NULL, -, ? and the like.
    """

    category_part: dict[str, CategoryPart] = declare({}, scope="prepare", needs=(conditions.CATEGORIES,))
    """Part of each value of a categorical column that becomes its category. domain and top_level_domain are for e-mail
    addresses and URLs, first_byte for IP addresses, first_2 and first_3 for phone numbers and zip codes. Requests have
    the whole value.
    """

    imputation_strategy: Literal["mean", "median", "mode"] = declare(
        "mean", scope="prepare", needs=(conditions.NUMBERS, conditions.FITS_IMPUTATION)
    )
    """Value of missing numbers, computed on train."""

    imputation_dict: dict[str, Number] | None = declare(None, scope="prepare", needs=(conditions.NUMBERS,))
    """Imputation values by numeric column; the other columns get fitted values."""

    missing_indicators: bool = declare(False, scope="prepare", needs=(conditions.NUMBERS,))
    """Add an input for each numeric column: 1 where the number is missing, else 0. A column gets one if at least 1 % of
    the training rows, and at least 3, miss the number. At least as many must have it.
    """

    risk_tables: dict[str, dict[str, Json]] | None = declare(None, scope="prepare", needs=(conditions.CATEGORIES,))
    """Risk tables by categorical column, in the format of risk_table_map.json; the other columns get fitted tables."""

    category_embedding_dim: int = declare(0, scope="prepare", ge=0, le=4_096)
    """Width of a trained vector for each category of cat_field_list, in addition to its risk values; 0 = none. For
    columns with many values, e.g. products.
    """

    category_embedding_min_count: int = declare(
        5, scope="prepare", ge=1, le=1_000_000_000, needs=(conditions.EMBEDS_CATEGORIES,)
    )
    """Categories with fewer training rows share one vector with categories that are not in train."""

    numeric_transform: Literal["standard", "quantile", "none"] = declare(
        "standard", scope="prepare", needs=(conditions.TABLE,)
    )
    """Scaling of the tabular inputs after imputation, fitted on train; part of model.pth and model.onnx."""

    numeric_embedding: Literal["none", "piecewise_linear"] = declare("none", scope="prepare")
    """Replace each tabular input by a vector, followed by a linear layer per input and ReLU (Gorishniy et al. 2022).
    piecewise_linear: the position of the value in each bin, where bins are quantiles of train.
    """

    numeric_embedding_dim: int = declare(
        16, scope="train", ge=1, le=4_096, needs=(conditions.chosen("numeric_embedding", "piecewise_linear"),)
    )
    """Width of each input's vector."""

    numeric_embedding_bins: int = declare(
        16, scope="prepare", ge=1, le=1_024, needs=(conditions.chosen("numeric_embedding", "piecewise_linear"),)
    )
    """Bins of each input; fewer if its quantiles coincide."""
