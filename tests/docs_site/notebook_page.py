"""Pages of notebooks: their text, their code, and what their cells have shown."""

import json
import re
from collections.abc import Iterator
from typing import Any

_STYLE = re.compile(r"<style scoped>.*?</style>\s*", re.DOTALL)
"""What pandas adds to each table; the site has a style of its own."""


def notebook_page(notebook: str) -> str:
    """Return the page, in Markdown, of a notebook (format 4, JSON)."""
    parts: list[str] = []
    for cell in json.loads(notebook)["cells"]:
        source = _text(cell["source"])
        if cell["cell_type"] != "code":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += filter(None, map(_output, cell["outputs"]))
    return "\n\n".join(parts) + "\n"


def kept_kinds(notebook: str) -> Iterator[str]:
    """Yield the kinds of data that the cells of a notebook have shown."""
    for cell in json.loads(notebook)["cells"]:
        for output in cell.get("outputs", ()):
            yield from output.get("data", ())


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{_text(output['text']).rstrip()}\n```"
    data = output.get("data", {})
    if "image/png" in data:
        png = "".join(_text(data["image/png"]).split())
        return f'<img alt="what the cell draws" src="data:image/png;base64,{png}">'
    if "text/html" in data:
        return _STYLE.sub("", _text(data["text/html"])).strip()
    return f"```text\n{_text(data.get('text/plain', ''))}\n```"


def _text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)
