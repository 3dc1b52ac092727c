"""Reports: data, tables on the terminal, and HTML pages."""
