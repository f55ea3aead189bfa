"""Record `realm-lab demo` and a question as an animated picture: `make recording`.

The commands run in a pseudo-terminal, in a new project. docs/demo.svg shows the lines as they came, with shorter
waits. It has no script: CSS shows one line after the other, so that it also moves in a README.
"""

from __future__ import annotations

import fcntl
import html
import os
import pty
import re
import struct
import subprocess
import tempfile
import termios
from pathlib import Path
from typing import NamedTuple

COLUMNS = 92
COMMANDS = ["realm-lab demo", 'realm-lab ask --run demo/realm-s50 -k 3 "what is the capital of vovzib ?"']
TYPING_SECONDS, THINKING_SECONDS, LINE_SECONDS, READING_SECONDS = 1.2, 0.9, 0.12, 2.5
CHARACTER, LINE, MARGIN, BAR = 8.0, 18, 16, 30  # pixels
STYLES = {"1": "b", "2": "d", "7": "r"}  # bold, dim, reversed: the codes that the commands print
ESCAPE = re.compile(r"\x1b\[([0-9;]*)m")


class Line(NamedTuple):
    seconds: float  # when it appears
    pieces: list[tuple[str, str]]  # style and text
    typed: bool = False


def printed(command: str, folder: Path) -> list[str]:
    """Run a command in a pseudo-terminal. Returns its lines, with the codes of styles."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm", "COLUMNS": str(COLUMNS)}
    with subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=environment, stdin=end, stdout=end, stderr=subprocess.DEVNULL
    ) as process:
        os.close(end)
        output = b""
        while chunk := _read(terminal):
            output += chunk
    os.close(terminal)
    if process.returncode:
        raise SystemExit(f"'{command}' ended with exit code {process.returncode}")
    return [line.rstrip("\r") for line in output.decode().splitlines()]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux raises it when the last process has closed the terminal
        return b""


def pieces(line: str) -> list[tuple[str, str]]:
    """Split a line by the codes of styles. Returns (style, text) pairs."""
    style, found, start = "", [], 0
    for match in [*ESCAPE.finditer(line), None]:
        found.append((style, line[start : match.start() if match else None]))
        if match:
            style, start = "".join(STYLES.get(code, "") for code in match[1].split(";")), match.end()
    return [(style, text) for style, text in found if text]


def record(folder: Path) -> tuple[list[Line], float]:
    """Run all commands. Returns the lines and the length of the film in seconds."""
    lines, now = [], 0.5
    for command in COMMANDS:
        lines.append(Line(now, [("p", "$ "), ("", command)], typed=True))
        now += TYPING_SECONDS + THINKING_SECONDS
        for line in printed(command, folder):
            lines.append(Line(now, pieces(line)))
            now += LINE_SECONDS
        lines.append(Line(now, []))
        now += READING_SECONDS
    return lines[:-1], now + 2 * READING_SECONDS


def picture(lines: list[Line], length: float) -> str:
    """Draw the lines as an animated SVG."""
    width, height = round(COLUMNS * CHARACTER + 2 * MARGIN), len(lines) * LINE + BAR + 2 * MARGIN
    rules, body = [], []
    film = f"{length:.1f}s {2 * READING_SECONDS - length:.1f}s"  # it starts at the end, with all lines
    for row, line in enumerate(lines):
        y = BAR + MARGIN + row * LINE
        shown = 100 * line.seconds / length
        rules.append(
            f"@keyframes k{row}{{0%,{shown:.2f}%{{opacity:0}}{shown + 0.01:.2f}%,99%{{opacity:1}}100%{{opacity:0}}}}"
            f"#l{row}{{animation:k{row} {film} infinite}}"
        )
        column, marks, spans = 0, "", ""
        for style, text in line.pieces:
            if "r" in style:
                marks += f'<rect class="m" x="{MARGIN + column * CHARACTER:.0f}" y="{y}" '
                marks += f'width="{len(text) * CHARACTER:.0f}" height="{LINE}"/>'
            if words := text.strip():  # without blanks at the ends, which some browsers drop
                x = MARGIN + (column + len(text) - len(text.lstrip())) * CHARACTER
                spans += (
                    f'<text x="{x:.0f}" y="{y + 13}" textLength="{len(words) * CHARACTER:.0f}"'
                    f' class="{" ".join(style)}">{html.escape(words)}</text>'
                )
            column += len(text)
        cover = ""
        if line.typed:  # a cover that moves to the right, one character after the other
            end = shown + 100 * TYPING_SECONDS / length
            rules.append(
                f"@keyframes t{row}{{0%,{shown:.2f}%{{transform:none}}"
                f"{end:.2f}%,100%{{transform:translateX({column * CHARACTER:.0f}px)}}}}"
                f"#t{row}{{animation:t{row} {film} steps({column}) infinite}}"
            )
            cover = f'<rect id="t{row}" class="c" x="{MARGIN + 16}" y="{y}" width="{width}" height="{LINE}"/>'
        body.append(f'<g id="l{row}">{marks}{spans}{cover}</g>')
    dots = "".join(f'<circle cx="{MARGIN + 4 + 18 * n}" cy="{BAR // 2 + 2}" r="5" fill="#56606b"/>' for n in range(3))
    title = "Terminal: " + ", then ".join(COMMANDS)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"
 xml:space="preserve">
<title>{html.escape(title)}</title>
<style>
text{{font:13px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#e6e9ed;white-space:pre}}
.b{{font-weight:bold}}.d{{fill:#9aa5b1}}.p{{fill:#7fd1a0}}.r{{fill:#1f2933}}.m{{fill:#e6e9ed}}.c{{fill:#1f2933}}
{"".join(rules)}
@media (prefers-reduced-motion){{g,.c{{animation:none!important}}.c{{display:none}}}}
@media print{{g,.c{{animation:none!important}}.c{{display:none}}}}
</style>
<clipPath id="w"><rect width="{width}" height="{height}" rx="8"/></clipPath>
<g clip-path="url(#w)"><rect width="{width}" height="{height}" fill="#1f2933"/>{dots}
{chr(10).join(body)}
</g>
</svg>
"""


def main() -> None:
    """Write demo.svg next to this file."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "project"
        subprocess.run(["realm-lab", "init", folder], check=True, stdout=subprocess.DEVNULL)
        lines, length = record(folder)
    Path(__file__).with_name("demo.svg").write_text(picture(lines, length), encoding="utf-8")


if __name__ == "__main__":
    main()
