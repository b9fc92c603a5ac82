"""Numbers as a person reads them; the report and the command line speak alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from hansa.results.columns import Column
from hansa.results.spread import Spread

PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def prefix_for(value: float) -> tuple[float, str]:
    """Return the decimal prefix that leaves one to three digits before the point, and what to divide by."""
    magnitude = 0 if value == 0 else math.floor(math.log10(abs(value)) / 3)
    magnitude = min(max(magnitude, 0), len(PREFIXES) - 1)
    return 1000.0**magnitude, PREFIXES[magnitude]


def significant(value: float, digits: int = 3) -> str:
    """Write three significant digits without an exponent, and no zeros that say nothing: 1.2, 34.5, 678."""
    if value == 0:
        return "0"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _prefixed(value: float, unit: str, whole: str) -> str:
    if not math.isfinite(value):
        return "–"
    factor, prefix = prefix_for(value)
    if abs(value) / factor >= 999.5 and prefix != PREFIXES[-1]:
        factor, prefix = prefix_for(factor * 1000)
    return f"{significant(value / factor)} {prefix + unit if prefix else whole}"


def bytes_text(value: float) -> str:
    """Write decimal bytes: 1.2 MB."""
    return _prefixed(value, "B", "B")


def flops_text(value: float) -> str:
    """Write floating-point operations: 3.4 GFLOP."""
    return _prefixed(value, "FLOP", "FLOP")


def seconds_text(value: float) -> str:
    """Write a duration: 0.25 s, 12.3 s, 4 min 05 s, 2 h 10 min."""
    if not math.isfinite(value):
        return "–"
    if value < 0.001:
        return "0 s" if value == 0 else "< 1 ms"
    if value < 59.95:
        return f"{significant(value)} s" if value >= 1 else f"{significant(value, 2)} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def time_unit(longest: float) -> tuple[float, str]:
    """Return the unit that an axis of durations reads in, and the seconds of one."""
    units = ((259_200.0, 86_400.0, "days"), (10_800.0, 3600.0, "h"), (300.0, 60.0, "min"))
    return next(((seconds, unit) for least, seconds, unit in units if longest >= least), (1.0, "s"))


def percent_text(value: float) -> str:
    """Write a share between 0 and 1 with one decimal: 85.2 %."""
    return f"{100 * value:.1f} %" if math.isfinite(value) else "–"


def count_text(value: float) -> str:
    """Write a whole number with thousands apart, or one decimal: 12,345 and 3.4."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def metric_text(column: Column, value: float) -> str:
    """Write a metric's value: in per cent where the metric reads so, anything else with three digits in its unit."""
    if not math.isfinite(value):
        return "–"
    return percent_text(value) if column.facts.percent else significant(value)


def spread_text(column: Column, spread: Spread) -> str:
    """Write a metric over several seeds: 84.1 ± 0.6 %; over one, its value alone."""
    if spread.std is None or not math.isfinite(spread.mean):
        return metric_text(column, spread.mean)
    if column.facts.percent:
        return share_text(spread)
    return f"{significant(spread.mean)} ± {significant(spread.std, 2)}"


def share_text(spread: Spread) -> str:
    """Write a share with what it may be off by: 84.1 ± 0.6 %."""
    return f"{100 * spread.mean:.1f} ± {100 * (spread.std or 0.0):.1f} %"


def gain_text(column: Column, gain: Spread | None) -> str:
    """Write how much better something is, with its sign; of shares in percentage points: +3.1 ± 2.4."""
    if gain is None or not math.isfinite(gain.mean):
        return "–"
    factor = 100 if column.facts.percent else 1
    parts = (factor * gain.mean, None if gain.std is None else factor * gain.std)
    texts = [f"{abs(one):.1f}" if column.facts.percent else significant(abs(one)) for one in parts if one is not None]
    return ("−" if gain.mean < 0 and float(texts[0]) else "+") + " ± ".join(texts)


COSTS: Mapping[str, Callable[[float], str]] = {
    "rounds": count_text,
    "bytes": bytes_text,
    "flops": flops_text,
    "seconds": seconds_text,
    "clock": seconds_text,
}


def missing_text(share: float | None) -> str:
    """Return the share of rows without a value; a dash where there is no such column."""
    if not share:
        return "–" if share is None else "none"
    return f"{share:.0%}" if share >= 0.01 else "<1%"
