"""The columns of clients that have columns of their own: who has which, and how much is missing."""

from __future__ import annotations

from hansa.results.by_client import FEW
from hansa.results.reader import Record
from hansa.results.report.format import missing_text
from hansa.results.report.markup import Markup, element
from hansa.results.report.tables import table


def columns_table(data: Record) -> Markup | None:
    """Show a row per column: of few clients the share of training rows without a value, and how many have it."""
    missing = data.get("missing")
    if not missing:
        return None
    few = list(missing) if len(missing) <= FEW else []
    rows = []
    for column in dict.fromkeys(column for own in missing.values() for column in own):
        shares = [missing_text(missing[client].get(column)) for client in few]
        count = f"{sum(column in own for own in missing.values())} of {len(missing)}"
        cells = (element("td", text) for text in (*shares, count))
        rows.append(element("tr", element("th", column, scope="row"), *cells))
    title = "Columns, and the share of training samples without a value"
    return element("div", element("h3", title), table(["Column", *few, "Clients"], rows, title, "named"))
