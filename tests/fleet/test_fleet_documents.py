"""The programs of the pages on clusters run as they stand, in processes and folders of their own."""

from pathlib import Path

import pytest
from tests.pages import run_page


@pytest.mark.parametrize(("page", "package"), [("docs/ray.md", "ray"), ("docs/spark.md", "pyspark")])
def test_the_programs_of_a_page_run(page: str, package: str, tmp_path: Path) -> None:
    pytest.importorskip(package, reason="pip install 'warmstore[fleet]'")
    folder = tmp_path / "page"
    folder.mkdir()
    run_page(page, folder, libraries=True, strict=False)
