"""What pip is told is handed to uv, or the work is left to pip."""

from tools.install import settings_of, uv_arguments

LISTED = r"""
:env:.find-links='/wheels'
:env:.disable-pip-version-check='1'
download.no-binary=':all:'
global.extra-index-url='https://a/simple\nhttps://b/simple'
global.find-links='/other'
install.constraint='caps.txt'
global.cert='ca.pem'
"""


def test_settings_go_on_to_uv_the_nearest_first():
    settings = settings_of(LISTED.splitlines())
    assert (settings["find-links"], settings["cert"], "no-binary" in settings) == ("/wheels", "ca.pem", False)
    assert set(uv_arguments(settings)) == {
        "--index-strategy=unsafe-best-match", "--index=https://a/simple", "--index=https://b/simple",
        "--find-links=/wheels", "--constraint=caps.txt",
    }  # fmt: skip


def test_a_setting_that_uv_has_no_word_for_leaves_the_work_to_pip():
    assert uv_arguments(settings_of(["global.proxy='http://inside:3128'"])) is None
    assert uv_arguments({}) == ["--index-strategy=unsafe-best-match"]
