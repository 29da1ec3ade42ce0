"""The page in a browser: no word on the console, light and dark, and what hover and focus show is the record's."""

import json

import browser
import html_reading as reading
import made_runs as made
import pytest

from precision_eval.report.html import write_html
from precision_eval.report.html.paper import as_policy_source

PROBE = """
<script>
addEventListener("load", () => {
  const found = {};
  const panel = document.getElementById("tip");
  const keep = (name) => { found[name] = panel.hidden ? "" : panel.innerHTML; };
  const press = (target, key) => target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const [points, lines] = ["tradeoff-", "drift-"].map((kind) => document.querySelector(`svg.chart[id^="${kind}"]`));
  const mark = points.querySelector(".mark");
  mark.dispatchEvent(new PointerEvent("pointerenter"));
  keep("hover");
  mark.dispatchEvent(new PointerEvent("pointerleave"));
  keep("left");
  points.focus();
  press(points, "ArrowRight");
  keep("first");
  press(points, "End");
  keep("last");
  found.focused = document.activeElement.dataset.fix || "";
  press(points, "Escape");
  keep("escaped");
  points.blur();
  lines.focus();
  press(lines, "Home");
  press(lines, "ArrowRight");
  keep("second");
  const box = lines.getBoundingClientRect();
  lines.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width / 2, clientY: box.top + 40 }));
  keep("middle");
  lines.dispatchEvent(new PointerEvent("pointerleave"));
  const button = document.querySelector('[data-pick="kv_to_query"] button');
  button.click();
  found.pressed = button.getAttribute("aria-pressed");
  found.picked = [...new Set([...document.querySelectorAll(".picked")].map((one) => one.dataset.fix))];
  button.click();
  found.dim = document.body.classList.contains("dim");
  const choice = document.querySelector("#fixes select");
  choice.value = "voice";
  choice.dispatchEvent(new Event("change"));
  const left = [...document.querySelectorAll("[data-case]:not([hidden])")];
  found.cases = [...new Set(left.map((one) => one.dataset.case))];
  choice.value = "";
  choice.dispatchEvent(new Event("change"));
  location.hash = "#" + document.querySelector("details.group").id;
  found.wide = document.documentElement.scrollWidth - innerWidth;
  const out = document.createElement("script");
  out.type = "application/json";
  out.id = "probed";
  out.textContent = JSON.stringify(found).replace(/</g, "\\\\u003c");
  document.body.append(out);
});
</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    run = made.Synthetic(tmp_path_factory.mktemp("run") / "made", minutes=2.0)
    run.attention("attention-decode", "metavoice", "eager")
    run.voice()
    return write_html(run.write())


@pytest.fixture(scope="module")
def probed(page):
    """What a visit finds that points, presses and picks."""
    copy = page.with_name("probed.html")
    allowed = f"script-src {as_policy_source(PROBE[PROBE.index('>') + 1 : PROBE.rindex('<')])} "
    text = page.read_text(encoding="utf-8").replace("script-src ", allowed).replace("</body>", f"{PROBE}</body>")
    copy.write_text(text, encoding="utf-8")
    visit = browser.visit(copy.as_uri(), virtual_ms=1500)
    assert visit.console == ()
    root = reading.read(visit.dom)
    (out,) = [node for node in root.walk() if node.attrs.get("id") == "probed"]
    group = root.of_class("group")[0]
    return json.loads(out.text) | {"opened": "open" in group.attrs}


def shown(content, records):
    """Hold what a panel shows to the records; return {title: text}, and how many numbers there are."""
    root = reading.read(content)
    count = reading.numbers(root, records, {})
    rows = [
        node
        for node in root.walk()
        if node.tag == "div" and [getattr(one, "tag", "") for one in node.children] == ["dt", "dd"]
    ]
    return {row.children[0].text.strip(): row.children[1].text for row in rows}, count


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(browser.find_chromium() is None, reason=browser.NO_BROWSER)
class TestInABrowser:
    @pytest.mark.parametrize("dark", [False, True])
    def test_it_opens_without_a_word_on_the_console(self, page, dark):
        visit = browser.visit(page.as_uri(), dark=dark, virtual_ms=1000)
        assert visit.console == ()
        assert visit.asked == ()
        records = reading.records_of(page.parent)
        named = [node for node in reading.read(visit.dom).having("data-v") if node.attrs["data-record"] != "answer"]
        assert len(named) > 300
        assert all(float(node.attrs["data-v"]) == reading.origin(node.attrs, records) for node in named)

    def test_pointing_at_a_mark_shows_its_records(self, probed, page):
        records = reading.records_of(page.parent)
        lines, count = shown(probed["hover"], records)
        assert count >= 10
        assert "query_to_half" in probed["hover"]
        data = records["attention-decode/query_to_half/eager@cpu:metavoice#latency"]["data"]
        assert lines["latency ratio"].startswith(f"{data['ratio']:.3f}")
        assert probed["left"] == ""

    def test_the_keyboard_walks_through_marks(self, probed, page):
        records = reading.records_of(page.parent)
        assert "query_to_half" in probed["first"]
        assert shown(probed["last"], records)[1] >= 10
        assert probed["focused"] == "autocast"
        assert probed["escaped"] == ""

    def test_lines_show_every_value_at_a_place(self, probed, page):
        records = reading.records_of(page.parent)
        for name in ("second", "middle"):
            lines, count = shown(probed[name], records)
            assert count == 7  # six fixes and a control
            assert "full_float32" in lines

    def test_fixes_are_picked_out_and_cases_chosen(self, probed):
        assert (probed["pressed"], probed["picked"], probed["dim"]) == ("true", ["kv_to_query"], False)
        assert probed["cases"] == ["voice"]

    def test_a_link_to_a_group_opens_it_and_nothing_is_too_wide(self, probed):
        assert probed["opened"]
        assert probed["wide"] <= 0
