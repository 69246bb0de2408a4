"""A terminal's screen as an SVG picture: ANSI text on standard input, SVG on standard output.

The README's picture was made with it, from a terminal of 104 columns in which the demo ran:

    tmux new-session -d -s demo -x 104 -y 26 'make demo'
    tmux capture-pane -e -p -t demo | python docs/terminal_picture.py > docs/demo.svg
"""

import re
import sys

from rich.console import Console
from rich.text import Text

COLUMNS = 104


def main() -> None:
    """Convert one screen."""
    with open("/dev/null", "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(sys.stdin.read().rstrip()))
        svg = console.export_svg(title="make demo")
    # Rich points to a font on the web; a page that shows the picture should ask nobody but its own host.
    sys.stdout.write(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


main()
