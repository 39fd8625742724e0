"""Does `make docs` build a site in which every link leads somewhere, with pages that load at once?

With the MkDocs that `make docs` has installed, or the one in MKDOCS; without either the tests are skipped.
"""

from __future__ import annotations

import gzip
import html
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from kit import ROOT

MKDOCS = os.environ.get("MKDOCS") or str(Path(sys.executable).parents[1] / "site" / "bin" / "mkdocs")
MOST_BYTES = 200_000

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not os.access(MKDOCS, os.X_OK), reason="MkDocs is not installed: make docs"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [MKDOCS, "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def pages(site: Path) -> dict[Path, str]:
    """404.html aside, whose links begin where the site is put."""
    return {path: path.read_text() for path in site.rglob("*.html") if path.name != "404.html"}


def links(text: str) -> set[str]:
    return {html.unescape(link) for link in re.findall(r'(?:href|src)="([^"]*)"', text)}


def test_every_page_of_docs_is_there_and_found_by_search(site: Path) -> None:
    made = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert made <= {path.relative_to(site) for path in pages(site)}
    assert "ft_launcher" in (site / "search" / "search_index.json").read_text()


def test_every_link_leads_somewhere_to_files_outside_docs_too(site: Path) -> None:
    """And to a place in the page that is there."""
    there = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages(site).items()}
    lost = []
    for path, text in pages(site).items():
        for link in sorted(link for link in links(text) if not re.match(r"\w+:|//", link)):
            name, _, anchor = unquote(link).partition("#")
            target = (path.parent / name).resolve() if name else path
            if not target.is_file() or (anchor and target in there and anchor not in there[target]):
                lost.append(f"{path.relative_to(site)}: {link}")
    assert not lost
    assert (site / "source" / "ARCHITECTURE.html").exists() and (site / "source" / "examples" / "train.py.txt").exists()


def test_a_page_with_its_pictures_is_small_and_names_no_script_style_or_picture_of_other_hosts(site: Path) -> None:
    """The theme's own script fetches Mermaid where a page has a diagram."""
    for path, text in pages(site).items():
        pictures = [
            (path.parent / link).resolve() for link in links(text) if link.endswith((".svg", ".png")) and ":" not in link
        ]
        size = len(gzip.compress(text.encode())) + sum(len(gzip.compress(one.read_bytes())) for one in pictures)
        assert size < MOST_BYTES, f"{path.relative_to(site)}: {size:,} bytes"
        assert not re.search(r'<(?:script|img|iframe)[^>]*src="https?:|<link[^>]*rel="?stylesheet"?[^>]*href="https?:', text)


def test_what_a_script_can_call_is_told_from_its_docstrings(site: Path) -> None:
    api = (site / "reference" / "api.html").read_text()
    for name in ("heartbeat", "section", "set_limits", "commit", "run_in_place", "exclude_this_node", "Stash"):
        assert re.search(rf'id="holdfast\.client\.[\w.]*{name}"', api), name
