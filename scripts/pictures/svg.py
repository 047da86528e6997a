"""Elements of the book's pictures. Each function returns lines of SVG; `picture` puts them into a file."""
from html import escape

INK, PALE, GRID = "#222", "#666", "#ddd"
BLUE, RED, FREE = "#2563a8", "#b3542d", "#eceff3"
# Pixels of a character and a line of a terminal.
COLUMN, ROW = 7.8, 17


def text(x, y, content, size=13, anchor="start", fill=INK, weight="normal"):
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" font-weight="{weight}">{escape(content)}</text>'


def rectangle(x, y, width, height, fill, stroke="none"):
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{stroke}"/>'


def line(x1, y1, x2, y2, stroke=GRID, dashes=""):
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{stroke}"{dashed}/>'


def picture(path, width, height, lines, font="sans-serif"):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="{font}">'
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *lines, "</svg>", ""]))


def terminal(path, command, output):
    """A terminal with a command and its output, as they were printed."""
    rows = [f"# {command}", *output.rstrip("\n").split("\n")]
    columns = max(len(row) for row in rows)
    lines = ['<g font-size="13" fill="#1f2933">']
    for number, row in enumerate(rows, 1):
        if row.strip():
            weight = ' font-weight="bold"' if number == 1 else ""
            lines.append(f'<text x="12" y="{ROW * number + 6:g}" textLength="{COLUMN * len(row):g}"{weight}>{escape(row).replace(" ", "&#160;")}</text>')
    picture(path, COLUMN * columns + 24, ROW * len(rows) + 20, [*lines, "</g>"], "monospace")


def panel(top, height, title, unit, points, most, seconds, fill):
    """A curve over time: points are pairs of second and value, from 0 to `most`."""
    left, width = 70, 620
    lines = [text(12, top - 10, title, 14, weight="bold")]
    for part in 0, 0.5, 1:
        y = top + height * (1 - part)
        lines += [line(left, y, left + width, y), text(left - 8, y + 4, f"{most * part:,.0f}{unit}", 12, "end", PALE)]
    path = " ".join(f"{left + width * second / seconds:.1f},{top + height * (1 - min(value / most, 1)):.1f}" for second, value in points)
    lines.append(f'<polyline fill="none" stroke="{fill}" stroke-width="2.5" points="{path}"/>')
    return lines


def cells(x, y, width, height, eighths):
    """The residency map of a file: a cell is as dark as its resident part is large."""
    lines = [rectangle(x, y, width, height, FREE)]
    each = width / max(len(eighths), 1)
    start = 0
    for end in range(1, len(eighths) + 1):
        if end == len(eighths) or eighths[end] != eighths[start]:
            if eighths[start]:
                run = rectangle(x + each * start, y, each * (end - start), height, BLUE)
                lines.append(run.replace("/>", f' opacity="{max(eighths[start], 2) / 8:g}"/>'))
            start = end
    return lines
