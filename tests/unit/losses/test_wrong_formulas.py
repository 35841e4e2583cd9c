"""The neighboring tests, all without arguments, detect a wrong formula in place of the right one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import test_advantages
import test_credit
import test_grpo
import test_kl
import test_on_policy
import test_rce
import test_schedules
import test_tokens
import test_vocabulary

TEST_MODULES = (
    *(test_advantages, test_credit, test_grpo, test_kl, test_on_policy, test_rce),
    *(test_schedules, test_tokens, test_vocabulary),
)
WRONG = [(tests, *change) for tests in TEST_MODULES for change in tests.WRONG]


def plain(tests: ModuleType) -> Iterator[Callable[[], None]]:
    for name, test in vars(tests).items():
        if name.startswith("test_") and not hasattr(test, "hypothesis") and not inspect.signature(test).parameters:
            yield test


@pytest.mark.parametrize(("tests", "owner", "name", "broken"), WRONG, ids=lambda of: of if isinstance(of, str) else "")
def test_a_wrong_formula_is_told(
    tests: ModuleType, owner: object, name: str, broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        for test in plain(tests):
            test()
