"""The category of a value can be a part of it, which other rows share."""

import pyarrow as pa
import pytest

from container.preprocessing.category_parts import category_part

MAIL, URL, PORT = "Jo.B@Example.CO.uk", "https://u:p@www.Foo.com:80/x?y@z.de", "ftp://a.b.org"


@pytest.mark.parametrize(
    ("part", "values", "parts"),
    [
        ("domain", [MAIL, URL, PORT, "www.x.de", "nobody", ""], ["example.co.uk", "foo.com", "a.b.org", "x.de"]),
        ("top_level_domain", [MAIL, URL, PORT, "www.x.de", "http://localhost/a.b"], ["uk", "com", "org", "de"]),
        ("first_byte", ["10.2.3.4", "2001:DB8::1", " 7.7.7.7", "10"], ["10", "2001", "7"]),
        ("first_2", ["SW1A 1AA", "02139", "(49) 30", "x"], ["sw", "02", "49"]),
        ("first_3", ["(212) 555-5067", "+49 151", "8-1"], ["212", "491"]),
    ],
)
def test_a_value_is_reduced_to_its_part_and_one_without_it_is_missing(part, values, parts):
    found = category_part(pa.array(values), part).to_pylist()
    assert found == [*parts, *[None] * (len(values) - len(parts))]


def test_a_column_without_a_part_stays_and_numbers_have_digits():
    column = pa.chunked_array([[98101, None], [2139]])
    assert category_part(column, None) is column
    assert category_part(column, "first_2").to_pylist() == ["98", None, "21"]
