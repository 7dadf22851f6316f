"""How tables of measurements are printed."""

from rich.table import Table

from miles_periodic.cli.bench.table import print_whole


def test_a_table_in_a_pipe_has_every_cell_whole(capsys):
    table = Table()
    for name in range(20):
        table.add_column(f"column {name}")
    table.add_row(*("123,456.789" for _ in range(20)))
    print_whole(table)
    printed = capsys.readouterr().out
    assert printed.count("123,456.789") == 20 and "…" not in printed
