"""A real headless Chromium, driven over WebDriver."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

INSTALL = "scripts/system_packages.sh test installs chromium and chromium-driver on Debian"


def find_chromium() -> tuple[str, str]:
    """Browser and driver. Skips where none can be had: Ubuntu's packages are stubs that need snap.

    On Debian they are in the archive, so there a missing one is a failure.
    """
    pytest.importorskip("selenium", reason="needs selenium, a requirement of the tests")
    driver = shutil.which("chromedriver")
    for name in ("chromium", "google-chrome"):
        browser = shutil.which(name)
        if browser and driver and _runs(browser):
            return browser, driver
    release = Path("/etc/os-release")
    if release.exists() and "ID=debian" in release.read_text().splitlines():
        pytest.fail(f"Chromium must be installed, got none: {INSTALL}")
    pytest.skip(f"needs Chromium, which this system does not have: {INSTALL}")


def _runs(browser: str) -> bool:
    return (
        subprocess.run([browser, "--version"], capture_output=True, timeout=30, check=False).returncode == 0
    )


@contextmanager
def open_chromium(profile: Path) -> Iterator[Chrome]:
    """No network is reachable from it but this machine: every other name leads nowhere."""
    browser, driver = find_chromium()
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    words = ["--headless=new", "--disable-dev-shm-usage", "--disable-gpu", f"--user-data-dir={profile}"]
    words += [
        "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--disable-background-networking",
    ]
    if os.geteuid() == 0:
        words.append("--no-sandbox")  # Chromium's sandbox refuses root
    for word in words:
        options.add_argument(word)
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


def set_screen(chrome: Chrome, width: int, height: int, scheme: str = "light") -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    chrome.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
