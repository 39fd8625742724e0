"""What has the site of `make docs` besides docs/? What its pages link to, documents and files of the project, and its API.

MkDocs runs these functions (`hooks:` in mkdocs.yml). A document outside docs/ becomes a page, a folder a page that lists its
files, and any other file a text. Links to them are rewritten in the site; in docs/ they stay as they are in the repository.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\(|^\[[^\]]+\]: )(?!\w+:)([^)\s#]+)")
SECTIONS = ("Tutorial", "How to", "Reference", "Explanation", "Decisions")
"""The order of the folders of docs/ in the navigation; what stands beside them comes before."""
API = "reference/api.md"
API_PAGE = """# API of `holdfast.client`

From its docstrings. [What a script can report](client.md) tells how it is used.

::: holdfast.client

## What a rank says

Functions of `holdfast.client`, without `self`.

::: holdfast.client.writer.Writer
    options: {show_root_heading: false, show_bases: false, members: [heartbeat, progress, section, set_limits]}

## What a rank asks for

::: holdfast.client.control
::: holdfast.client.commit.commit
    options: {show_root_heading: true}
::: holdfast.client.record.record
    options: {show_root_heading: true}

## The state in memory

::: holdfast.client.stash.Stash
    options: {show_root_heading: true}
"""


def on_files(files: Any, config: Any) -> Any:
    """Add what is linked to, and what that links to."""
    open_pages = [Path(file.abs_src_path) for file in files.documentation_pages()]
    seen: set[Path] = set()
    while open_pages:
        page = open_pages.pop()
        for target in _outside(page, page.read_text()):
            if target in seen:
                continue
            seen.add(target)
            files.append(File.generated(config, uri(target), content=_content(target)))
            if target.suffix == ".md":
                open_pages.append(target)
            elif target.is_dir():
                listed = [path for path in _listed(target) if path not in seen]
                seen.update(listed)
                for path in listed:
                    files.append(File.generated(config, uri(path), content=path.read_text()))
    files.append(File.generated(config, API, content=API_PAGE))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links, as they are in the site."""
    origin = page.file.src_uri
    source = ORIGINS.get(origin, DOCS / origin)

    def moved(link: re.Match[str]) -> str:
        target = (source.parent / link[2]).resolve()
        if not target.exists() or (target.is_relative_to(DOCS) and source.is_relative_to(DOCS)):
            return link[0]
        return link[1] + posixpath.relpath(uri(target), posixpath.dirname(origin))

    return LINK.sub(moved, markdown)


def on_nav(nav: Any, **_: Any) -> Any:
    """docs/ in the order in which it is read; what was added stands in no menu."""
    nav.items = [item for item in nav.items if item.title != "Source"]
    nav.items.sort(key=lambda item: SECTIONS.index(item.title) + 1 if item.is_section and item.title in SECTIONS else 0)
    return nav


ORIGINS: dict[str, Path] = {}
"""By its address in the site, the file that an added page was made of."""


def uri(path: Path) -> str:
    """A path's address in the site."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = f"source/{path.relative_to(ROOT).as_posix()}"
    name = f"{name}/index.md" if path.is_dir() else name if path.suffix == ".md" else f"{name}.txt"
    return ORIGINS.setdefault(name, path) and name


def _outside(page: Path, text: str) -> Iterator[Path]:
    for link in LINK.finditer(text):
        target = (page.parent / link[2]).resolve()
        if target.exists() and target.is_relative_to(ROOT) and not target.is_relative_to(DOCS):
            yield target


def _content(path: Path) -> str:
    if not path.is_dir():
        return path.read_text()
    rows = [f"- [{one.relative_to(path)}]({os.path.relpath(one, path.parent)})" for one in _listed(path)]
    return "\n".join([f"# {path.relative_to(ROOT)}", "", *rows, ""])


def _listed(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
