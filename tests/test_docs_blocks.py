"""The Python blocks of README, documentation and package READMEs run, each page in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")]
    if "```python" in page.read_text()
)
FENCE = re.compile(r"^( *)```python *(\w*)\n(.*?)^\1```", flags=re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str, str]]:
    """Line, condition and code of each block. ```` ```python gpu ```` runs only where there is a GPU."""
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        indent, condition, code = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        found.append((line, condition, re.sub(f"^{indent}", "", code, flags=re.MULTILINE)))
    return found


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def program(page: Path, chosen: list[tuple[int, str, str]]) -> str:
    """One script: blocks of a page build on one another, and a traceback shows the page's own lines."""
    lines = ["page = {}"]
    for line, _, code in chosen:
        padded = "\n" * line + code
        lines.append(f"exec(compile({padded!r}, {str(page)!r}, 'exec'), page)")
    return "\n".join(lines)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run_in_their_order(page: Path, tmp_path: Path) -> None:
    found = blocks(page)
    unknown = {condition for _, condition, _ in found} - {"", "gpu"}
    assert not unknown, f"{page}: unknown conditions {unknown}"
    chosen = [block for block in found if block[1] != "gpu" or has_gpu()]
    if not chosen:
        pytest.skip("every block of this page needs a GPU")
    script = tmp_path / "blocks.py"
    script.write_text(program(page, chosen))
    result = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stderr


def test_a_block_that_fails_is_reported_with_the_line_of_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 1\n```\n\ntext\n\n```python\nassert x == 2, 'no'\n```\n")
    script = tmp_path / "blocks.py"
    script.write_text(program(page, blocks(page)))
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f'File "{page}", line 10' in result.stderr


def test_pages_were_found() -> None:
    assert ROOT / "docs/five-minutes.md" in PAGES
