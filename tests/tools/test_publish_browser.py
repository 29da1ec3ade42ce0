"""The published page in a real browser without a network: graphs, plots, no error, no other host."""

import re

import browser
import made_versions as made
import pytest

from precision_eval.history.upstream import load_upstream
from tools.torch_versions.publish import publish

RATIO = "eager.metavoice_decode.track_latency_ratio"
VERSIONS = ("2.8.0", "2.9.0", "2.10.0")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(browser.find_chromium() is None, reason=browser.NO_BROWSER),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Address of a served site over three torch versions."""
    root = tmp_path_factory.mktemp("site")
    (root / "results").mkdir()
    half = {"2.8.0": [26.0, 27.0, 28.0], "2.9.0": [26.0, 27.0, 28.0], "2.10.0": [0.9, 0.91, 0.92]}
    cells = {name: {("query_to_half", "tiny"): half[name], ("kv_to_query", "tiny"): [1.4]} for name in VERSIONS}
    made.write_runs(root / "results", [made.Run(torch=name, values={RATIO: cells[name]}) for name in VERSIONS])
    dates = {name: day for name, day in load_upstream().releases.items() if day}
    done = publish(root / "results", root / "site", dates=dates)
    with browser.served(done.html) as found:
        yield found


def test_a_graph_over_torch_versions(address):
    visit = browser.visit(f"{address}/index.html#{RATIO}")
    assert visit.console == ()
    assert visit.other_hosts == set()
    graph = visit.dom[visit.dom.index('id="main-graph"') :]
    assert re.search(r'<canvas class="flot-base"[^>]*width="\d{3,}"', graph)
    tags = re.findall(r"left:(\d+)px;top: -2ex[^>]*>(v[\d.]+)<", graph)  # names of the torch versions along the axis
    assert [tag for _, tag in sorted(tags, key=lambda one: int(one[0]))] == [f"v{name}" for name in VERSIONS]
    assert "fix-query_to_half" in graph


def test_the_helper_sees_errors_and_other_hosts(tmp_path):
    page = "<script>console.error('planted'); missing()</script><script src='https://cdn.example.org/x.js'></script>"
    (tmp_path / "index.html").write_text(page)
    with browser.served(tmp_path) as address:
        visit = browser.visit(f"{address}/index.html", virtual_ms=1000)
    assert visit.other_hosts == {"cdn.example.org"}
    assert len(visit.console) == 2
    assert "planted" in visit.console[0]
    assert "missing is not defined" in visit.console[1]
