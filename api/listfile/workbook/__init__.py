"""XLSX workbooks: read as a stream, and written back with further cells."""
