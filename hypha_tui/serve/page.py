"""The pages: the terminal in a window, and one line for those who may not come in."""

from __future__ import annotations

from html import escape
from typing import Final

# Styles are inline because xterm.js writes its own that way; scripts are not, and nothing comes from another host.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; img-src 'self' data:; "
    "connect-src 'self' ws://{host}; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)

_TERMINAL: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<link rel="stylesheet" href="static/css/xterm.css">
<link rel="icon" href="data:,">
<script src="static/js/textual.js"></script>
<script src="focus.js"></script>
<style>
@font-face {{ font-family: "Roboto Mono"; src: url("static/fonts/RobotoMono-VariableFont_wght.ttf"); }}
html, body {{ margin: 0; height: 100%; background: #12161c; overflow: hidden; }}
.textual-terminal {{ width: 100vw; height: 100vh; }}
.note {{ position: absolute; inset: 0; display: none; align-items: center; justify-content: center; z-index: 9;
  background: #12161ce0; color: #d5dbe3; font: 16px "Roboto Mono", monospace; }}
.note a {{ color: #6cb6ff; margin-left: 1ch; }}
body:not(.-first-byte) .opening, body.-closed .closed {{ display: flex; }}
body.-closed .opening {{ display: none; }}
</style>
</head>
<body>
<div class="note opening">opening the terminal ...</div>
<div class="note closed">The session has ended.<a href="./">Open it again</a></div>
<div id="terminal" class="textual-terminal" data-session-websocket-url="ws://{host}/ws" data-font-size="15"></div>
</body>
</html>
"""

FOCUS: Final = """// Keys go to the terminal from its first byte on, without a click.
new MutationObserver((_, watch) => {
  if (document.body.classList.contains("-first-byte")) {
    watch.disconnect();
    document.querySelector(".xterm-helper-textarea").focus();
  }
}).observe(document, { subtree: true, attributes: true, attributeFilter: ["class"] });
"""

_NOTICE: Final = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>hypha-tui</title>
<style>body {{ background: #12161c; color: #d5dbe3; font: 16px monospace; margin: 4em; }}</style></head>
<body><p>{words}</p></body>
</html>
"""


def terminal(host: str, title: str) -> str:
    """The terminal, for the browser that came by this host name."""
    return _TERMINAL.format(host=escape(host, quote=True), title=escape(title))


def notice(words: str) -> str:
    """A page of one line."""
    return _NOTICE.format(words=escape(words))
