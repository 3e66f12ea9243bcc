"""What colours look like: contrast (WCAG 2), colour blindness (Machado et al. 2009), and distance (CIEDE2000)."""

from __future__ import annotations

import math

from textual.color import Color

Triple = tuple[float, float, float]

# Machado, Oliveira, Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency", IEEE TVCG
# 15(6), 2009, severity 1.0; they work on linear RGB.
MACHADO: dict[str, tuple[Triple, Triple, Triple]] = {
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def linear(colour: str) -> Triple:
    """Linear RGB of `#rrggbb`, 0 to 1."""
    red, green, blue = (part / 255 for part in Color.parse(colour).rgb)
    return (_linear(red), _linear(green), _linear(blue))


def luminance(rgb: Triple) -> float:
    """Relative luminance."""
    return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast, 1 to 21."""
    low, high = sorted((luminance(linear(first)), luminance(linear(second))))
    return (high + 0.05) / (low + 0.05)


def seen(colour: str, vision: str) -> Triple:
    """Linear RGB as somebody with this deficiency sees it; `normal` changes nothing."""
    rgb = linear(colour)
    if vision == "normal":
        return rgb
    red, green, blue = (sum(weight * part for weight, part in zip(row, rgb, strict=True)) for row in MACHADO[vision])
    return (min(max(red, 0.0), 1.0), min(max(green, 0.0), 1.0), min(max(blue, 0.0), 1.0))


def distance(first: str, second: str, vision: str = "normal") -> float:
    """CIEDE2000 between two colours as seen with this vision. About 2 is just noticeable side by side."""
    return ciede2000(lab(seen(first, vision)), lab(seen(second, vision)))


def lab(rgb: Triple) -> Triple:
    """CIE L*a*b* (D65) of linear RGB."""
    red, green, blue = rgb
    x = (0.4124564 * red + 0.3575761 * green + 0.1804375 * blue) / 0.95047
    y = 0.2126729 * red + 0.7151522 * green + 0.0721750 * blue
    z = (0.0193339 * red + 0.1191920 * green + 0.9503041 * blue) / 1.08883
    fx, fy, fz = (part ** (1 / 3) if part > 216 / 24389 else (24389 / 27 * part + 16) / 116 for part in (x, y, z))
    return (116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz))


def ciede2000(one: Triple, two: Triple) -> float:
    """Sharma, Wu, Dalal, "The CIEDE2000 Color-Difference Formula", 2005."""
    (l1, a1, b1), (l2, a2, b2) = one, two
    mean_c = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    g = 0.5 * (1 - math.sqrt(mean_c**7 / (mean_c**7 + 25**7)))
    a1, a2 = (1 + g) * a1, (1 + g) * a2
    c1, c2 = math.hypot(a1, b1), math.hypot(a2, b2)
    h1, h2 = math.degrees(math.atan2(b1, a1)) % 360, math.degrees(math.atan2(b2, a2)) % 360
    if c1 * c2 == 0:
        dh, mean_h = 0.0, h1 + h2
    else:
        dh = (h2 - h1 + 180) % 360 - 180
        mean_h = (h1 + h2) / 2 if abs(h1 - h2) <= 180 else ((h1 + h2 + 360) / 2) % 360
    big_h = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(dh / 2))
    mean_l, mean_c = (l1 + l2) / 2, (c1 + c2) / 2
    t = 1 - 0.17 * _cos(mean_h - 30) + 0.24 * _cos(2 * mean_h) + 0.32 * _cos(3 * mean_h + 6)
    t -= 0.20 * _cos(4 * mean_h - 63)
    s_l = 1 + 0.015 * (mean_l - 50) ** 2 / math.sqrt(20 + (mean_l - 50) ** 2)
    s_c, s_h = 1 + 0.045 * mean_c, 1 + 0.015 * mean_c * t
    turn = 60 * math.exp(-(((mean_h - 275) / 25) ** 2))
    r_t = -2 * math.sqrt(mean_c**7 / (mean_c**7 + 25**7)) * math.sin(math.radians(turn))
    dl, dc, dh = (l2 - l1) / s_l, (c2 - c1) / s_c, big_h / s_h
    return math.sqrt(dl**2 + dc**2 + dh**2 + r_t * dc * dh)


def _cos(degrees: float) -> float:
    return math.cos(math.radians(degrees))


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4  # type: ignore[no-any-return]
