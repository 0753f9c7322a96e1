"""What the pages need to be a site: links that lead out of `docs/` name the file in the repository instead.

Pages are written to be read in the repository, too, where those links work.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\[]+)\]\((?P<target>[^)\s#]*)(?P<fragment>#[^)]*)?\)")
_FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: object) -> str:
    """The page's text, with links that a site can follow."""
    docs = Path(config["docs_dir"])
    here = (docs / page.file.src_uri).parent

    def link(found: re.Match[str]) -> str:
        text, target, fragment = found["text"], found["target"], found["fragment"] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        path = (here / target).resolve()
        if path.is_relative_to(docs):
            if path.is_dir():
                return f"[{text}]({target.rstrip('/')}/README.md{fragment})"
            return f"`{path.name}`" if path.suffix == ".json" else found[0]
        name = f"`{path.relative_to(docs.parent)}`"
        return name if text.strip("`") in name else f"{text} ({name})"

    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in _FENCE.split(markdown))
