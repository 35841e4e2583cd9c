"""A sample of the long checks leaves no stratum out, and in the long run no check."""

from __future__ import annotations

import pytest

from tests.sampling import STRATA, file_of, function_of, sample

TESTS = ["a.py::one[1]", "a.py::one[2]", "a.py::two", "b.py::three[x]", "b.py::three[y]", "b.py::three[z]"]


@pytest.mark.parametrize(
    ("by", "strata"), [("function", {"a.py::one", "a.py::two", "b.py::three"}), ("file", {"a.py", "b.py"})]
)
def test_one_of_each_stratum(by: str, strata: set[str]) -> None:
    for digest in map(str, range(20)):
        chosen = sample(TESTS, STRATA[by], digest)
        assert {STRATA[by](name) for name in chosen} == strata
        assert len(chosen) == len(strata)


def test_the_digest_alone_decides() -> None:
    assert sample(TESTS, file_of, "7") == sample(TESTS[::-1], file_of, "7")


def test_every_test_has_its_turn() -> None:
    """Of three, none of 60 digests choosing one of them has a chance of (2/3)^60 = 3e-11."""
    assert set().union(*(sample(TESTS, function_of, str(digest)) for digest in range(60))) == set(TESTS)
