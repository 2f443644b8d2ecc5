"""Functions of rows: a DataFrame in, a DataFrame or a picture out."""
