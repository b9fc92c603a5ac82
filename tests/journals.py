"""A journal in memory, for runs that leave nothing behind."""

from __future__ import annotations

from hansa.running.loop import Record


class ListJournal:
    """Keeps the records of all rounds."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        self.records.append(record)

    def settle(self) -> Record:
        return {"journal": len(self.records)}

    def rewind(self, progress: Record) -> None:
        del self.records[progress["journal"] :]

    def told(self) -> list[Record]:
        """Everything but how and how fast it was carried out, which no two engines share."""
        how = ("seconds", "channel_seconds", "trips", "paths", "engine")
        return [{key: value for key, value in record.items() if key not in how} for record in self.records]
