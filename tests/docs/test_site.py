"""The documentation site builds without a warning and needs no other server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://example.org/maintainers/verl-comprl"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "REPOSITORY_URL": REPOSITORY}
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.slow
def test_nothing_is_loaded_from_another_server(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    loaded = re.compile(r'<(?:script|img|iframe|link(?! rel="canonical"))\b[^>]*?(?:src|href)="(?:https?:)?//[^"]*"')
    assert len(pages) > 30
    assert [found for page in pages for found in loaded.findall(page.read_text(encoding="utf-8"))] == []


@pytest.mark.slow
def test_links_into_the_sources_lead_to_the_repository(site: Path) -> None:
    page = (site / "configuration/index.html").read_text(encoding="utf-8")
    assert f'href="{REPOSITORY}/blob/main/verl_comprl/config/comprl_trainer.yaml"' in page
    assert f'href="{REPOSITORY}/tree/main/verl_comprl/config/arm"' in page


@pytest.mark.slow
def test_the_reference_shows_docstrings(site: Path) -> None:
    bank = (site / "api/experience/index.html").read_text(encoding="utf-8")
    assert 'id="verl_comprl.experience.ExperienceBank.retrieve"' in bank
    pages = [page.read_text(encoding="utf-8") for page in (site / "api").rglob("*.html")]
    # Sphinx's roles, which Markdown does not know, would be shown as they are.
    assert [found for page in pages for found in re.findall(r":(?:func|class|meth|mod|attr):.{0,40}", page)] == []
