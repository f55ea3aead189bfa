"""Rows of the knowledge corpus that are no passages."""

NULL = -1  # row of the null document
ABSENT = -2  # row that too small a corpus left empty
NO_SCORE = -1.0e4  # f(x, z) of what is not a candidate: exp underflows to 0, and nothing turns into NaN
