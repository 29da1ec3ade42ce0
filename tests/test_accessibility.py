"""The HTML report, the dashboard and the site hold no fault that axe calls serious: ``make a11y``, which fetches axe.

Conventions: each page is opened at 1280 pixels on light paper and at 390 on dark, with axe put into a copy of it.
"""

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from precision_eval.report.html.writing import render_html
from tests.support.browser import NO_BROWSER, find_chromium, visit

ROOT = Path(__file__).resolve().parents[1]
AXE = os.environ.get("AXE", "")
ASK = """
<script>addEventListener("load", () => setTimeout(async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  const found = violations.map((one) => [one.impact, one.id, one.nodes.map((node) => node.html.slice(0, 120))]);
  document.body.innerHTML = "<pre id='axe'></pre>";
  document.getElementById("axe").textContent = JSON.stringify(found);
}, 500))</script>
"""
PAGES = (
    "index",
    "ten-minutes",
    "own-model",
    "results",
    "validation",
    "dashboard",
    "evidence",
    "studies",
    "404",
    "reference/python",
    "example-kv-cache",
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason=NO_BROWSER),
    pytest.mark.skipif(not AXE, reason="AXE names no axe.min.js; `make a11y` fetches one"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(built)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    (built / "report.html").write_text(render_html(ROOT / "results" / "machines" / "torch-2.13.0"), encoding="utf-8")
    return built


def faults(page, *, width, dark):
    """Return what axe finds: impact, rule, elements."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    script = Path(AXE).read_text(encoding="utf-8").replace("</script", r"<\/script")
    copy = page.with_name(f"axe-{page.name}")
    head, end, rest = text.rpartition("</body>")
    copy.write_text(f"{head}<script>{script}</script>{ASK}{end}{rest}", encoding="utf-8")
    seen = visit(copy.as_uri(), width=width, dark=dark, virtual_ms=30_000)
    return json.loads(html.unescape(re.search(r'<pre id="axe">(.*?)</pre>', seen.dom, re.DOTALL)[1]))


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
@pytest.mark.parametrize("name", ["report", *PAGES])
def test_nothing_serious(folder, name, width, dark):
    found = faults(folder / f"{name}.html", width=width, dark=dark)
    assert [fault for fault in found if fault[0] in ("serious", "critical")] == []


def test_a_planted_fault_is_found(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        "<html lang=en><title>t</title><body><main><h1>t</h1><p style='color:#aaa'>faint</p></main></body></html>"
    )
    assert [(impact, rule) for impact, rule, _ in faults(page, width=800, dark=False)] == [
        ("serious", "color-contrast")
    ]
