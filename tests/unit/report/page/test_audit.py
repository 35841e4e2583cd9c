from __future__ import annotations

import pytest

from lever_pipe.base.errors import RecordError
from lever_pipe.report.page.audit import audit_html, audit_markdown

SPOKEN = {"table:a": ["Title 1", "57.00", "-0.5"], "prose": ["at 95 %"]}
PAGE = (
    '<html><head><style>a{width:9px}</style><script>let x = 8;</script></head><body><div data-place="table:a">'
    '<h3>Title 1</h3><br><td>57.00</td><td>-0.5</td></div><p data-place="prose" title="7">at 95&nbsp;%</p>'
    "</body></html>"
)


def test_a_page_with_the_numbers_of_its_files_passes() -> None:
    audit_html(PAGE, SPOKEN)


@pytest.mark.parametrize(
    ("was", "becomes", "fault"),
    [
        ("<td>57.00</td>", "<td>57.01</td>", r"table:a: expected only numbers.*57.01 in '57.01'"),
        ("<td>57.00</td>", "<td>57.00</td><td>57.00</td>", r"table:a: expected only numbers.*57.00"),  # once too often
        ("<td>57.00</td>", "", r"table:a: expected every number.*57.00"),
        ("<td>-0.5</td>", "<td>0.5</td>", r"table:a: .*0.5"),
        ("</body>", "<p>3</p></body>", r"outside of every place: .*3 in '3'"),
        ("at 95", "at 95 of 57.00", "prose: .*57.00"),  # the number of another place
    ],
)
def test_a_changed_number_is_named_with_its_place(was: str, becomes: str, fault: str) -> None:
    assert was in PAGE
    with pytest.raises(RecordError, match=fault):
        audit_html(PAGE.replace(was, becomes), SPOKEN)


def test_markdown_is_held_against_all_places_without_its_links() -> None:
    text = "# Title 1\n\n| -0.5 | 57.00 |\n\nat 95 % [CSV](a/000-1.csv)\n"
    audit_markdown(text, SPOKEN)
    with pytest.raises(RecordError, match=r"report.md: expected only .*2 in 'and 2'"):
        audit_markdown(f"{text}and 2\n", SPOKEN)
