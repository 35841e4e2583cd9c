import pytest
from .test_contents_decide import SCENARIOS
pytestmark = pytest.mark.workflow
@pytest.mark.parametrize("s", SCENARIOS.values(), ids=SCENARIOS)
def test_s(smoke, s):
    with s.change(smoke):
        p = smoke.planned()
        assert sum(p.values()) == s.planned, p
