"""The colours of every drawing, and what the pages replace them by, so that a drawing follows light and dark.

Those of Okabe and Ito (2008), safe for colour-blind readers. page.css gives each variable its values.
"""

INK, MUTED, GRID, PAPER = "#1f2933", "#5b6771", "#e2e6ea", "#ffffff"
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
ON_ORANGE = "#111111"  # Not themed: orange is light in both schemes.
THEMED = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--rule",
    PAPER: "--paper",
    BLUE: "--blue",
    VERMILION: "--vermilion",
    GREEN: "--green",
    PURPLE: "--purple",
    ORANGE: "--orange",
    SKY: "--sky",
}
