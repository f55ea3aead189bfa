"""Parquet files, row by row, without columns of dates and times. Nothing in such a file is ever run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from realm_lab.engine.corpus.text_files import EXPANSION_GRACE, MAX_EXPANSION
from realm_lab.errors import UserError

ROWS_AT_ONCE = 256


def parquet_head(path: Path) -> str:
    """Return the columns as a JSON record of empty values, to recognise the format."""
    import pyarrow as pa

    def empty(kind: Any) -> Any:
        if pa.types.is_struct(kind):
            return {field.name: empty(field.type) for field in kind}
        return [empty(kind.value_type)] if pa.types.is_list(kind) else ""

    with _open(path) as file:
        return json.dumps({field.name: empty(field.type) for field in file.schema_arrow})


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows as dictionaries, streaming."""
    import pyarrow as pa

    with _open(path) as file:
        size = sum(file.metadata.row_group(number).total_byte_size for number in range(file.metadata.num_row_groups))
        if size > max(EXPANSION_GRACE, MAX_EXPANSION * path.stat().st_size):
            raise UserError(
                f"grows to more than {MAX_EXPANSION} times its size, as no text does",
                "fetch it again, or write it without compression",
                path=path,
            )
        plain = [field.name for field in file.schema_arrow if not pa.types.is_temporal(field.type)]  # dates overflow
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=plain):
            yield from batch.to_pylist()


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (UnicodeDecodeError, pa.ArrowException, OSError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"cut off or damaged ({reason})", "fetch it again", path=path) from None
