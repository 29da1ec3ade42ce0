"""Tags that load from other hosts: found, replaced by shipped files, or named."""

import hashlib
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from precision_eval.core.errors import IntegrityError
from tools.torch_versions.publish_offline import VENDOR, PageError, content_of, make_offline, remote_urls, vendored

ASV_PAGE = Path(find_spec("asv").origin).parent / "www" / "index.html"


def write(folder, text, name="index.html"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ('<script src="https://a.org/x.js"></script>', ["https://a.org/x.js"]),
        ("<script SRC=//a.org/x.js></script>", ["//a.org/x.js"]),
        ('<link rel="stylesheet" href=" HTTP://a.org/x.css">', ["HTTP://a.org/x.css"]),
        ('<img srcset="a.png 1x, https://a.org/b.png 2x">', ["https://a.org/b.png"]),
        ('<iframe src="https://a.org/"></iframe><video poster="//a.org/p"></video>', ["https://a.org/", "//a.org/p"]),
        ("<style>@import 'https://a.org/x.css'; a { b: url(//a.org/i) }</style>", ["https://a.org/x.css", "//a.org/i"]),
        ('<a href="https://a.org/">a link to click on</a>', []),
        ('<script src="vendor/x.js"></script><img src="data:image/png;base64,//8=">', []),
        ('<!-- <script src="https://a.org/x.js"></script> -->', []),
    ],
)
def test_what_loads_from_another_host(text, urls):
    assert remote_urls(text) == urls


def test_asvs_own_page_becomes_local(tmp_path):
    before = ASV_PAGE.read_text(encoding="utf-8")
    assert len(remote_urls(before)) == 10
    scripts = make_offline(write(tmp_path, before))
    after = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert remote_urls(after) == []
    assert set(scripts) == {one["file"] for one in vendored()}
    assert [line for line in before.splitlines() if "https://c" not in line] == [
        line for line in after.splitlines() if "vendor/" not in line
    ]
    assert "integrity" not in after
    assert after.count('onerror="js_load_failure()"') == before.count('onerror="js_load_failure()"')
    for one in vendored():
        assert (tmp_path / "vendor" / one["file"]).read_bytes() == content_of(one)
        assert (tmp_path / "vendor" / one["licence"]).is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<script src="https://a.org/react-18.2.0.js"></script>', r"loads <script> https://a\.org/react-18\.2\.0\.js"),
        (
            '<script src="https://a.org/jquery-3.7.1.min.js"></script>',
            r"jquery\.min\.js is here for version 3\.3\.1 only",
        ),
        ('<script src="https://a.org/jquery.min.js"></script>', "no shipped file stands for it"),
        ('<img src="https://a.org/jquery-3.3.1.min.js">', r"<img> https://a\.org"),
        ("<style>@import '//a.org/x.css'</style>", r"loads //a\.org/x\.css"),
    ],
)
def test_what_has_no_stand_in_is_named_and_nothing_is_changed(tmp_path, text, message):
    text = '<script src="https://code.jquery.com/jquery-3.3.1.min.js"></script>' + text
    with pytest.raises(PageError, match=message):
        make_offline(write(tmp_path, text))
    assert (tmp_path / "index.html").read_text() == text
    assert not (tmp_path / "vendor").exists()


class TestVendored:
    def test_every_file_is_in_the_manifest_and_has_its_hash_and_licence(self):
        files = vendored()
        shipped = {p.name for p in VENDOR.iterdir() if p.suffix in (".js", ".css")}
        assert {one["file"] for one in files} == shipped
        for one in files:
            assert hashlib.sha256(content_of(one)).hexdigest() == one["sha256"]
            words = (VENDOR / one["licence"]).read_text(encoding="utf-8")
            assert "without restriction" in words.replace("\n", " ")
        assert sum(p.stat().st_size for p in VENDOR.rglob("*") if p.is_file()) < 1_000_000

    def test_a_changed_file_is_refused(self, tmp_path):
        folder = tmp_path / "vendor"
        shutil.copytree(VENDOR, folder)
        with (folder / "jquery.min.js").open("ab") as file:
            file.write(b" ")
        site = write(tmp_path / "site", ASV_PAGE.read_text(encoding="utf-8"))
        with pytest.raises(IntegrityError, match=r"jquery\.min\.js has SHA-256"):
            make_offline(site, folder=folder)
        (folder / "jquery.min.js").unlink()
        with pytest.raises(IntegrityError, match=r"jquery\.min\.js cannot be read"):
            make_offline(site, folder=folder)
