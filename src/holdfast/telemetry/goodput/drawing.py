"""Where did the workers' time go, drawn: as a trace for Perfetto or chrome://tracing, and as a picture (SVG, PNG)."""

from __future__ import annotations

import json
from html import escape
from io import BytesIO
from typing import Any
from xml.etree import ElementTree

from holdfast.core.errors import UsageError
from holdfast.telemetry.goodput.accounting import LOST, MISSING, PRODUCTIVE, STATES, Goodput, Span
from holdfast.telemetry.report.phrasing import span as words
from holdfast.telemetry.report.safe_text import one_line

WIDE, LABEL, HIGH, GAP, AXIS = 1000, 140, 22, 6, 60
"""Pixels: of the time axis, of the nodes' names before it, of a node's bar, between two, and of what stands below."""

FINER = 2  # A PNG's pixels, to a side, for one of these: sharp on the screens that there are.
MOST_NODES = 200  # Bars of a picture; of more nodes, those with the least productive time are drawn.

OTHERS = ("#8e6bbf", "#5b8fd9", "#4bb3b8", "#7a9e3f", "#c9a227", "#d98032", "#b5651d", "#9aa0a6", "#6d7f8c", "#bdbdbd")
COLOURS = {PRODUCTIVE: "#2e9e5b", LOST: "#a3d9b1", MISSING: "#e6e6e6"}
COLOURS |= {"hang": "#c0392b", "detect": "#e57368", "stop": "#e8a29b"}
COLOURS |= dict(zip([state for state in STATES if state not in COLOURS], OTHERS))
"""What trained is green, trouble red."""


def trace(job: str, found: Goodput) -> str:
    """In the format of Chrome's trace events (JSON): a process for the job, a thread for each node. Microseconds."""
    begin = _begin(found)
    threads = {name: number for number, name in enumerate(dict.fromkeys(span.node for span in found.spans))}
    events: list[dict[str, object]] = [{"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": job}}]
    for name, number in threads.items():
        events.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": number, "args": {"name": name or MISSING}})
    for span in found.spans:
        at = {"ts": round((span.begin - begin) * 1e6), "dur": round((span.end - span.begin) * 1e6)}
        where = {"ph": "X", "cat": "worker", "pid": 0, "tid": threads[span.node], "args": {"workers": span.workers}}
        events.append({"name": span.state, **at, **where})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def picture(job: str, found: Goodput) -> str:
    """A bar for each node, over time, with what the colours mean: an SVG document."""
    begin, rows = _begin(found), _rows(found)
    scale = WIDE / max(found.until - begin, 1e-9)
    high = 30 + len(rows) * (HIGH + GAP) + AXIS
    size = f'width="{LABEL + WIDE + 20}" height="{high}" viewBox="0 0 {LABEL + WIDE + 20} {high}"'
    title = f"{one_line(job)}: {found.goodput:.1%} of {words(sum(found.worker_s.values()))} of workers' time was productive"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="4" y="18" font-size="14">{escape(title)}</text>',
    ]
    for number, (node, spans) in enumerate(rows.items()):
        y = 30 + number * (HIGH + GAP)
        parts.append(f'<text x="{LABEL - 6}" y="{y + HIGH - 6}" text-anchor="end">{escape(one_line(node) or MISSING)}</text>')
        parts += [_bar(span, y, LABEL + (span.begin - begin) * scale, scale) for span in spans]
    parts += _legend(found, 30 + len(rows) * (HIGH + GAP) + 18)
    return "\n".join((*parts, "</svg>\n"))


def png(job: str, found: Goodput) -> bytes:
    """The same for whatever shows no SVG: its rectangles and words, FINER. Raises UsageError where Pillow is not installed."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise UsageError("a PNG needs Pillow, which is not installed", hint="pip install 'holdfast[png]', or --svg") from error

    def font(size: int) -> Any:
        try:
            return ImageFont.truetype("DejaVuSans.ttf", size)
        except OSError:
            return ImageFont.load_default(size)  # its own, which has ASCII: images of training jobs often have no font at all

    drawn = ElementTree.fromstring(picture(job, found))
    image = Image.new("RGB", (int(drawn.attrib["width"]) * FINER, int(drawn.attrib["height"]) * FINER), "white")
    pen = ImageDraw.Draw(image)
    for part in drawn:
        match part.attrib:
            case {"x": x, "y": y, "width": wide, "height": high, "fill": colour}:
                left, right = round(float(x) * FINER), round((float(x) + float(wide)) * FINER)
                top, under = round(float(y) * FINER), round((float(y) + float(high)) * FINER)
                pen.rectangle((left, top, max(left, right - 1), under - 1), fill=colour)  # both ends count
            case {"x": x, "y": y, **how}:
                size = int(how.get("font-size", drawn.attrib["font-size"])) * FINER
                anchor = "rs" if how.get("text-anchor") == "end" else "ls"
                pen.text((float(x) * FINER, float(y) * FINER), part.text or "", "black", font(size), anchor)
    with BytesIO() as file:
        image.save(file, "PNG")
        return file.getvalue()


def _begin(found: Goodput) -> float:
    return min((span.begin for span in found.spans), default=found.until)


def _rows(found: Goodput) -> dict[str, list[Span]]:
    rows: dict[str, list[Span]] = {}
    for span in found.spans:
        rows.setdefault(span.node, []).append(span)
    worst = sorted(rows, key=lambda node: sum(span.worker_s for span in rows[node] if span.state == PRODUCTIVE))[:MOST_NODES]
    return {node: spans for node, spans in rows.items() if node in worst}


def _bar(span: Span, y: float, x: float, scale: float) -> str:
    tip = f"{span.state}: {words(span.end - span.begin)}, {span.workers} of its workers"
    box = f'x="{x:.2f}" y="{y}" width="{max((span.end - span.begin) * scale, 0.2):.2f}" height="{HIGH}"'
    return f'<rect {box} fill="{COLOURS[span.state]}"><title>{escape(tip)}</title></rect>'


def _legend(found: Goodput, y: float) -> list[str]:
    parts, x = [], 4.0
    for state, worker_s in found.worker_s.items():
        if worker_s <= 0:
            continue
        text = f"{state} {words(worker_s)}"
        if x + 24 + 7 * len(text) > LABEL + WIDE:
            x, y = 4.0, y + 18
        parts.append(f'<rect x="{x:.0f}" y="{y - 10}" width="12" height="12" fill="{COLOURS[state]}"/>')
        parts.append(f'<text x="{x + 16:.0f}" y="{y}">{escape(text)}</text>')
        x += 24 + 7 * len(text)
    return parts
