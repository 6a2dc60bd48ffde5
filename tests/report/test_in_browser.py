"""The page in a real browser: it draws, answers pointer and keys, and asks for nothing."""

from collections import Counter

import chromium
import pytest

from draftlab.report.load import ReportedRun
from draftlab.report.page import write_page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium.program() is None, reason="no chromium on the PATH"),
]
READY = "document.documentElement?.dataset.ready === ''"
ALL_FILLED = "document.querySelectorAll('.text').length === 3"


@pytest.fixture(scope="module")
def page(written, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    write_page([ReportedRun.load(written.path)], path)
    with chromium.Chromium() as browser:
        browser.open(path, READY)
        browser.wait(ALL_FILLED)
        yield browser


def fates(evaluation):
    """How many tokens of each kind, from the record alone."""
    found = Counter(f=len(evaluation.tokens))
    width = evaluation.run.conditions.drafted_per_round
    for rounds, cut in zip(evaluation.run.chain.committed, evaluation.run.chain.cut, strict=True):
        for number, committed in enumerate(rounds, start=1):
            whole = not (cut and number == len(rounds))
            found["a"] += committed - whole
            if whole:
                found["b" if committed == width + 1 else "d"] += 1
    return found


def count(page, selector):
    return page.ask(f"document.querySelectorAll({selector!r}).length")


def set_control(page, selector, value):
    page.ask(
        f"(() => {{ const c = document.querySelector({selector!r}); c.value = {value!r};"
        "c.dispatchEvent(new Event(c.type === 'search' ? 'input' : 'change')); })()"
    )


def test_it_draws_everything_and_asks_for_nothing(page, written):
    assert count(page, ".chart canvas") == 4
    wanted = fates(written.evaluation)
    assert min(wanted[kind] for kind in "adbf") > 0
    assert {kind: count(page, f".text > .t.{kind}") for kind in "adbf"} == dict(wanted)
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("file:", "about:"))] == []
    assert len([url for url in page.requests if url.startswith("file:")]) == 1


def test_hostile_text_stays_text(page):
    assert page.ask("document.title").endswith("draftlab")
    assert count(page, ".text script, .text img, .text b") == 0
    assert "<script>" in page.ask("document.querySelector('.cards').textContent")


def test_pointer_and_keys_show_the_round(page, written):
    page.point(".card:nth-of-type(1) .text .t:nth-of-type(2)")
    rounds = len(written.evaluation.run.chain.committed[0])
    assert f"Round 1 of {rounds}" in page.ask("document.querySelector('.panel').textContent")
    drafted = page.ask("document.querySelectorAll('.panel tbody tr').length")
    assert drafted >= 1 + 5  # the anchor and five slots
    page.point(".card:nth-of-type(1) .text .t:nth-of-type(2)", click=True)
    page.press("ArrowDown")
    assert f"Round 2 of {rounds}" in page.ask("document.querySelector('.panel').textContent")
    page.press("Home")
    assert "first token" in page.ask("document.activeElement.getAttribute('aria-label')")
    page.press("Escape")
    assert count(page, ".panel .hint") == 1


def test_filter_order_and_search(page):
    domain = page.ask("document.querySelectorAll('.domain option')[1].value")
    set_control(page, ".domain", domain)
    assert count(page, ".card") == 2
    set_control(page, ".domain", "")
    set_control(page, ".order", "worst")
    taus = page.ask(
        "[...document.querySelectorAll('.card b')].map(b => Number(b.textContent.slice(2)))"
    )
    assert taus == sorted(taus)
    set_control(page, ".find", "W")
    page.wait("document.querySelector('.hit')")
    hits = page.ask("[...document.querySelectorAll('.hit')].map(t => t.textContent)")
    assert all("w" in text for text in hits)
    set_control(page, ".find", "no such text")
    page.wait("document.querySelector('.count').textContent === 'no completion matches'")
    set_control(page, ".find", "")
    page.wait("document.querySelectorAll('.card').length === 3")


def test_dark_follows_the_system_until_the_reader_chooses(page):
    theme = "document.documentElement.dataset.theme"
    page.prefer("dark")
    page.wait(f"{theme} === 'dark'")
    page.point("#theme", click=True)
    assert page.ask(theme) == "light"
    assert page.complaints == []
