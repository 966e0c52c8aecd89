"""List files: a table, a sheet, objects or plain lines, read row by row and written back.

    with open_list(Path("list.csv"), column=None) as addresses:
        for row in addresses.rows():
            print(row.address)

`opening` has `open_list`. `survey` inspects a file's bytes and `encodings` finds their encoding;
`delimiter` and `quoting` find its `dialect`. `tables`, `sheets` and `objects` read its rows, `columns`
finds the column of the addresses, `writer` writes rows with their results. Nothing is imported
here: a process that only passes a file on needs none of the readers.
"""
