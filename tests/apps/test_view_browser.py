"""The page of `draftwood view` in a real Chromium, driven by mouse and keyboard (`make test-browser`)."""

import copy
import itertools
import json
import math

import pytest

from draftwood.apps.view import page
from draftwood.apps.view.reading import read
from tests.apps.browser import Browser, chromium

pytestmark = pytest.mark.browser

PROMPTS = ("Dear Sir, I write to you about", "Question: What is 3 times 12?\nAnswer:")
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    driver = chromium(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture
def opened(driver, tmp_path):
    """Opens the page of a trace at its first round; whatever the page complains of fails the test."""
    browser = Browser(driver)

    def open_page(document, *, at_first=True):
        file = tmp_path / "trace.json"
        file.write_text(json.dumps(document), encoding="utf-8")
        shown = read(file)
        where = tmp_path / "page.html"
        where.write_text(page.html(shown, file.name), encoding="utf-8")
        browser.errors()
        driver.get(where.as_uri())
        if at_first:
            browser.press("HOME")
        return browser, shown["rows"]

    yield open_page
    assert browser.errors() == []
    assert browser.run("return performance.getEntriesByType('resource').length") == 0


@pytest.fixture(scope="module")
def document(trace_of):
    return trace_of(*PROMPTS, budget=8, new=14)


@pytest.fixture(scope="module")
def large(trace_of):
    return trace_of("It was a cold morning in the month of March, and", budget=768, new=22)


def overlapping(boxes):
    def apart(a, b):
        return a[2] <= b[0] + 0.5 or b[2] <= a[0] + 0.5 or a[3] <= b[1] + 0.5 or b[3] <= a[1] + 0.5

    return [pair for pair in itertools.combinations(boxes, 2) if not apart(*pair)]


def opening(row):
    """Returns the place of the round that a row opens on."""
    several = [place for place, one in enumerate(row["rounds"]) if len(one["path"]) > 2]
    drafted = [place for place, one in enumerate(row["rounds"]) if len(one["tree"]["tokens"]) > 1]
    return next(iter(several or drafted), 0)


def test_it_opens_on_a_round_with_something_to_see(opened, document):
    browser, rows = opened(document, at_first=False)
    place = opening(rows[0])
    assert place > 0  # the first round has no tree
    assert browser.place == f"{place + 1} of {len(rows[0]['rounds'])}"
    assert len(browser.find("#tree .node.lit")) == len(rows[0]["rounds"][place]["path"]) + 1


def test_keys_and_clicks_step_through_the_rounds(opened, document):
    browser, rows = opened(document)
    count = len(rows[0]["rounds"])
    assert count > 2
    seen = []
    for place in range(count):
        assert browser.place == f"{place + 1} of {count}"
        now = "".join(e.get_attribute("textContent") for e in browser.find("#text .now"))
        assert now.replace("↵", "").replace("·", "") == "".join(rows[0]["rounds"][place]["texts"]).replace(
            "↵", ""
        )
        assert len(browser.find("#tree .node")) == len(rows[0]["rounds"][place]["tree"]["tokens"]) + 1
        assert len(browser.find("#time .now")) == 1
        seen.append(browser.text("#summary"))
        browser.press("ARROW_RIGHT")
    assert browser.place == f"{count} of {count}"
    assert len(set(seen)) == count
    for keys, at in (("HOME", 1), ("END", count), ("ARROW_LEFT", count - 1)):
        browser.press(keys)
        assert browser.place == f"{at} of {count}"
    for button, at in (("#first", 1), ("#next", 2), ("#last", count), ("#previous", count - 1)):
        browser.click(button)
        assert browser.place == f"{at} of {count}"
    browser.press("HOME")
    assert browser.find("#previous")[0].get_attribute("disabled")
    browser.click("#time .bar:nth-child(2)")
    assert browser.place == f"2 of {count}"
    browser.click("#text .token:nth-last-child(2)")  # the last child says why the text ended
    assert browser.place == f"{count} of {count}"
    browser.press("HOME")
    browser.run("document.querySelector('#slider').focus()")
    browser.press("ARROW_RIGHT")  # the slider's own key; one step, not two
    assert browser.place == f"2 of {count}"


def test_every_token_is_coloured_by_how_it_came(opened, document):
    browser, rows = opened(document)
    for number, row in enumerate(rows):
        if number:
            browser.run(
                "const chooser = document.querySelector('#row'); chooser.value = '1';"
                "chooser.dispatchEvent(new Event('change'))"
            )
        kinds = []
        for one in row["rounds"]:
            accepted = [f"accepted d{min(depth, 8)}" for depth in range(1, len(one["path"]))]
            kinds += [*accepted, "bonus" if one["extra"]["bonus"] else "residual"][: len(one["texts"])]
        found = [e.get_attribute("class") for e in browser.find("#text .token:not(.prompt)")]
        assert [" ".join(c for c in name.split() if c not in ("token", "now")) for name in found] == kinds
        assert browser.text("#text .prompt") == row["prompt"]


def test_hover_and_focus_show_a_node_s_numbers(opened, document):
    browser, rows = opened(document)
    round_ = rows[0]["rounds"][1]  # the first has no tree
    browser.click("#next")
    assert browser.card == {}
    for node in (1, 2):
        browser.hover(f"#node-{node}")
        card = browser.card
        assert card["token id"] == str(round_["tree"]["tokens"][node])
        for name in ("draft", "target"):
            assert math.isclose(float(card[f"{name} probability"]), round_["tree"][name][node], abs_tol=6e-4)
    extra = len(round_["tree"]["tokens"])
    browser.hover(f"#node-{extra}")
    assert "draft probability" not in browser.card
    browser.hover("h1")
    assert browser.card == {}
    browser.hover("#text .now")
    assert "target probability" in browser.card


def test_the_tree_is_walked_by_keyboard(opened, document):
    browser, rows = opened(document)
    rounds = rows[0]["rounds"]
    place = next(i for i, one in enumerate(rounds) if len(one["path"]) > 1)
    browser.press(*["ARROW_RIGHT"] * place)
    for _ in range(30):
        browser.press("TAB")
        if browser.run("return document.activeElement.id") == "tree":
            break
    active = "return document.querySelector('#tree').getAttribute('aria-activedescendant')"
    assert browser.run(active) == "node-0"
    for node in rounds[place]["path"][1:]:
        browser.press("ARROW_RIGHT")
        assert browser.run(active) == f"node-{node}"
        assert browser.card["token id"] == str(rounds[place]["tree"]["tokens"][node])
    browser.press("ARROW_LEFT")
    assert browser.run(active) == f"node-{rounds[place]['path'][-2]}"
    assert browser.place == f"{place + 1} of {len(rounds)}"
    browser.press("ESCAPE")
    assert browser.card == {}
    browser.press("HOME")
    assert browser.place == f"1 of {len(rounds)}"


def test_a_screen_reader_is_told_the_same(opened, document):
    browser, rows = opened(document)
    tree = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in tree if "role" in n]
    items = [name for role, name in roles if role == "treeitem"]
    one = rows[0]["rounds"][0]
    assert len(items) == len(one["tree"]["tokens"]) + 1
    assert all("target probability" in name for name in items if "root" not in name)
    assert not [name for role, name in roles if role in ("button", "slider", "combobox") and not name]
    status = browser.find("[role=status][aria-live=polite]")[0].text
    assert status.startswith(f"Round 1 of {len(rows[0]['rounds'])}: {len(one['path']) - 1} of")
    browser.press("t")
    assert not browser.find("#frame")[0].is_displayed()
    assert len(browser.find("#table tbody tr")) == len(one["tree"]["tokens"]) + 1
    assert len(browser.find("#table tr.lit")) == len(one["path"]) + 1
    assert {e.get_attribute("scope") for e in browser.find("#table thead th")} == {"col"}
    browser.press("t")
    assert browser.find("#frame")[0].is_displayed()


def test_help_opens_and_closes(opened, document):
    browser, _ = opened(document)
    browser.press("?")
    assert browser.find("#help")[0].is_displayed()
    browser.press("ARROW_RIGHT", "ESCAPE")
    assert not browser.find("#help")[0].is_displayed()
    assert browser.place.startswith("1 of")


def test_rows_are_chosen(opened, document):
    browser, rows = opened(document)
    browser.run("document.querySelector('#row').focus()")
    browser.press("END")  # the list's own key: its last row, not the last round
    assert browser.text("#text .prompt") == rows[1]["prompt"]
    assert browser.place == f"{opening(rows[1]) + 1} of {len(rows[1]['rounds'])}"


def test_one_row_needs_no_chooser_and_no_round_is_no_error(opened, document):
    alone = copy.deepcopy(document)
    alone["prompts"], alone["outputs"], alone["rounds"] = document["prompts"][:1], document["outputs"][:1], []
    browser, _ = opened(alone)
    assert not browser.find("#row")[0].is_displayed()
    assert browser.place == "none"
    browser.press("ARROW_RIGHT", "END", "p", "+", "0", "t", "t", "d")
    assert browser.text("#summary") == "This row has no round."


def test_token_text_is_text(opened, document):
    from selenium.common.exceptions import JavascriptException, NoAlertPresentException

    hostile = copy.deepcopy(document)
    hostile["prompts"][0]["text"] = f"</script>{HOSTILE}<img src=x onerror=alert(2)>\u2028"
    for one in hostile["rounds"]:
        for row in one["rows"]:
            row["texts"] = [HOSTILE for _ in row["texts"]]
            row["tree"]["texts"] = [HOSTILE for _ in row["tree"]["texts"]]
            row["outcome"]["extra_text"] = "<img src=x onerror=alert(3)>\u202e"
    hostile["settings"]["policy"] = HOSTILE
    browser, _ = opened(hostile)
    browser.press("t", "t", "END")
    browser.hover("#text .now")
    assert browser.text("#text .prompt") == hostile["prompts"][0]["text"]
    assert browser.text("#text .token:nth-child(2)") == HOSTILE
    assert browser.text("#card strong") in (HOSTILE, "<img␣src=x␣onerror=alert(3)>⟨202E⟩")
    assert len(browser.find("script")) == 2
    assert not browser.find("img")
    with pytest.raises(NoAlertPresentException):
        browser.driver.switch_to.alert  # noqa: B018
    assert browser.errors() == []
    # And if the page did write markup, its policy would stop it.
    with pytest.raises(JavascriptException, match="TrustedHTML"):
        browser.run("document.body.innerHTML = '<b>'")
    assert len(browser.errors()) == 1


def test_a_tree_of_768_nodes_is_readable(opened, large):
    browser, rows = opened(large)
    sizes = [len(one["tree"]["tokens"]) for one in rows[0]["rounds"]]
    place = sizes.index(max(sizes))
    assert sizes[place] > 700
    browser.press(*["ARROW_RIGHT"] * place)
    left, top, right, bottom = browser.boxes("#frame")[0]
    nodes = browser.boxes("#tree .node")
    assert len(nodes) == sizes[place] + 1
    assert all(left <= n[0] and n[2] <= right and top <= n[1] and n[3] <= bottom for n in nodes)
    path = browser.boxes("#tree .node.lit .box")
    assert len(path) == len(rows[0]["rounds"][place]["path"]) + 1
    assert overlapping(path) == []

    browser.press("p")  # near, where all have labels
    labels = browser.boxes("#tree .node .box")
    assert len(labels) == sizes[place] + 1
    assert overlapping(labels) == []
    # Where a label is cut, it is cut to its box.
    beyond = browser.run(
        "return [...document.querySelectorAll('#tree .node')].filter(n => {"
        "const box = n.querySelector('.box').getBBox();"
        "return [...n.querySelectorAll('text')].some(t => t.getBBox().x + t.getBBox().width > box.width)"
        "}).map(n => n.textContent)"
    )
    assert beyond == []
    lit = browser.boxes("#tree .node.lit")
    assert all(top <= (n[1] + n[3]) / 2 <= bottom for n in lit)

    before = browser.boxes("#node-0")[0]
    browser.run(
        "const t = document.querySelector('#tree'), b = t.getBoundingClientRect();"
        "const at = (type, dy) => t.dispatchEvent(new PointerEvent(type, {bubbles: true, pointerId: 1,"
        " clientX: b.left + 300, clientY: b.top + 100 + dy}));"
        "t.setPointerCapture = () => {}; at('pointerdown', 0); at('pointermove', 40); at('pointerup', 40);"
    )
    assert browser.boxes("#node-0")[0][1] == pytest.approx(before[1] + 40, abs=0.5)
    browser.press("0")
    assert browser.boxes("#tree .node") == nodes


def test_a_long_chain_fits(opened, trace_of):
    browser, rows = opened(trace_of(PROMPTS[0], policy="chain", new=130, length=120))
    sizes = [len(one["tree"]["tokens"]) for one in rows[0]["rounds"]]
    assert max(sizes) > 100
    left, _, right, _ = browser.boxes("#frame")[0]
    for _ in sizes:
        assert all(left <= n[0] and n[2] <= right for n in browser.boxes("#tree .node"))
        browser.press("ARROW_RIGHT")


CONTRAST = """
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgb = (...layers) => {
      for (const one of layers) { canvas.fillStyle = one; canvas.fillRect(0, 0, 1, 1); }
      return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => {
        const c = v / 255;
        return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
      });
    };
    const bright = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b;
    const found = {};
    const all = ".token, .mark, #summary span, .legend li, #totals, h1, td, button:enabled";
    for (const one of document.querySelectorAll(all)) {
      const behind = [];
      for (let e = one; e; e = e.parentElement) behind.unshift(getComputedStyle(e).backgroundColor);
      const paper = bright(rgb(...behind));
      const ink = bright(rgb(getComputedStyle(one).color));
      const ratio = (Math.max(paper, ink) + 0.05) / (Math.min(paper, ink) + 0.05);
      const name = one.className || one.id || one.tagName;
      found[name] = Math.min(found[name] ?? 99, ratio);
    }
    return [found, bright(rgb(getComputedStyle(document.documentElement).backgroundColor))];
"""


def test_light_and_dark_are_readable_and_follow_the_system_or_the_switch(opened, document):
    browser, _ = opened(document)
    browser.press("t")
    papers = {}
    for scheme in ("light", "dark"):
        browser.medium(scheme)
        contrasts, papers[scheme] = browser.run(CONTRAST)
        assert {name: ratio for name, ratio in contrasts.items() if ratio < 4.5} == {}
        assert len(contrasts) > 12
    assert papers["dark"] < 0.05 < 0.8 < papers["light"]
    switched = []
    for _ in range(3):  # light, dark, and the system's again, which is dark here
        browser.press("d")
        switched.append(browser.run(CONTRAST)[1])
    assert switched == [papers["light"], papers["dark"], papers["dark"]]
    assert browser.find("#theme")[0].text.endswith("Auto")


def test_a_narrow_window_scrolls_down_only(opened, document):
    browser, _ = opened(document)
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        wide = browser.run("return document.documentElement.scrollWidth")
        assert wide <= 400
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
