"""Special rows of the knowledge corpus."""

NULL = -1  # row of the null document
ABSENT = -2  # in the position of a missing row, if there are fewer passages than wanted
NO_SCORE = -1.0e4  # f(x, z) of a row that is not a candidate: exp underflows to 0, and nothing turns into NaN
