"""The schema of a database beside the one that this program knows.

Schemas are numbered by their migration scripts, and a program migrates an older one when it
starts. A database keeps the version that first gave it each schema, so that an older program can
name the version that reads it.
"""

from dataclasses import dataclass

from mailprobe.release import version

VERSIONS = (
    "CREATE TABLE IF NOT EXISTS schema_versions (schema integer PRIMARY KEY, version text NOT NULL)"
)
NEWEST = "SELECT schema, version FROM schema_versions ORDER BY schema DESC LIMIT 1"


@dataclass(frozen=True, slots=True)
class SchemaState:
    """A database's schema, the newest that this program knows, and who first wrote the former."""

    database: str  # without a password
    found: int  # 0: there is no database, or an empty one
    known: int
    written_by: str | None = None

    @property
    def is_newer(self) -> bool:
        return self.found > self.known

    @property
    def is_older(self) -> bool:
        return 0 < self.found < self.known

    def __str__(self) -> str:
        """One line: what a start of this program would do, and where it cannot, what would."""
        if self.is_newer:
            return (
                f"{self.database} has schema {self.found} of a newer version of this program; this"
                f" one, {version()}, reads up to {self.known}: use {self.written_by or 'the newer'}"
                f"{' or newer' if self.written_by else ' one'}, or a backup from before the upgrade"
            )
        if not self.found:
            return (
                f"{self.database}: no tables yet; a start of {version()} makes schema {self.known}"
            )
        if self.is_older:
            return (
                f"{self.database} has schema {self.found}; a start of {version()} migrates it to"
                f" {self.known}, which an older version does not read"
            )
        return f"{self.database} has schema {self.found}, which {version()} uses: nothing to do"
