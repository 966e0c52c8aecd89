"""What a list may be."""

from collections.abc import Mapping

from mailprobe.storage.records import Tier

UPLOAD_OCTETS_MAX = 256 * 1024 * 1024
ROWS_MAX: Mapping[Tier, int] = {"free": 1_000, "builder": 100_000, "scale": 1_000_000}
ACTIVE_MAX = 10  # lists of an account that have not ended
NAME_CHARACTERS_MAX = 200
CHUNK_UNITS = 100  # addresses of a chunk: as many as are claimed together
CHUNK_ROWS_MAX = 2_000  # of them and rows without a new address
CHUNK_CHARACTERS_MAX = 1 << 20
UPLOADS_MAX = 16  # at a time, by a process: each may hold UPLOAD_OCTETS_MAX of disk
ACCOUNT_UPLOADS_MAX = UPLOADS_MAX // 4
UPLOAD_OCTETS_MIN = 64 * 1024  # in each UPLOAD_WINDOW_S: a modem brings this
UPLOAD_WINDOW_S = 10.0
READ_AT_ONCE_MAX = 2  # of them are read at a time: a workbook's texts are held in memory
UPLOAD_S_MAX = 900
UNPACKED_OCTETS_MAX = 1 << 30  # of a compressed list
STRINGS_CHARACTERS_MAX = 1 << 26  # of a workbook
