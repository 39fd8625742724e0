"""Does the house get heavier? Each row of `make house` may fall, and never rise."""

from __future__ import annotations

import pytest
from tools.house import ROWS, Row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.found.__name__)
def test_no_count_rises(row: Row) -> None:
    found = row.found()
    listed = f"; each is in: python tests/tools/house.py {row.found.__name__}"
    assert len(found) <= row.most, f"{row.what}: {len(found):,}, and there may be {row.most:,}{listed}"
