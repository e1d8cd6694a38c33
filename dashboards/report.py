"""A run as one HTML file: the live page with its data inside, to be opened offline and passed on.

The page's modules become data URLs under an import map, the library and the styles are put in place, and the answers of
the sidecar stand in an element that the page reads instead of asking. A content policy lets it load nothing else.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

from daf.dashboards import assets

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
_IMPORT = re.compile(r'from "\./(\w+\.js)"')


def render(document: Mapping[str, Any]) -> str:
    """Return the report of `document`: what `/v1/report` answers, and `tables` to be shown before all else, if any.

    A table is `{"title": str, "columns": [str, ...], "rows": [[str, ...], ...]}`.
    """
    page = _text("index.html")
    page = re.sub(r'<link rel="icon"[^>]*href="page/([^"]+)">', lambda m: _icon(m[1]), page)
    page = re.sub(r'<link rel="stylesheet" href="page/([^"]+)">', lambda m: f"<style>{_text(m[1])}</style>", page)
    page = re.sub(
        r'<script defer src="page/([^"]+)"></script>', lambda m: f"<script>{_inert(_text(m[1]))}</script>", page
    )
    page = re.sub(r'<script type="module" src="page/([^"]+)"></script>', lambda m: _modules(m[1]), page)
    page = page.replace(
        "<meta charset", f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n  <meta charset', 1
    )
    data = json.dumps(document, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return page.replace("</body>", f'<script type="application/json" id="daf-recording">{data}</script>\n</body>', 1)


def _text(name: str) -> str:
    return assets.page_files()[name].read_text()


def _inert(script: str) -> str:
    return script.replace("</script", "<\\/script")


def _icon(name: str) -> str:
    return f'<link rel="icon" type="image/svg+xml" href="{_data_url("image/svg+xml", _text(name))}">'


def _modules(entry: str) -> str:
    """Return an import map with every module of the page in it, and a script that starts the first."""
    files = assets.page_files().items()
    names = [name for name, path in files if name.endswith(".js") and path.is_relative_to(assets.PAGE_DIR)]
    imports = {
        f"daf/{name}": _data_url("text/javascript", _IMPORT.sub(r'from "daf/\1"', _text(name))) for name in names
    }
    return (
        f'<script type="importmap">{json.dumps({"imports": imports})}</script>\n'
        f'  <script type="module">import "daf/{entry}";</script>'
    )


def _data_url(media_type: str, text: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(text.encode()).decode()}"
