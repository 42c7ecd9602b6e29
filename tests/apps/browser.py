"""Chromium as the tests of the viewer drive it."""

import shutil

import pytest

OPTIONS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1280,1000"
)
BROWSERS, DRIVERS = (
    ("chromium", "chromium-browser", "google-chrome"),
    ("chromedriver", "chromium.chromedriver"),
)


def installed(names):
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.fail(
            f"There is no {names[0]} here, and the viewer's tests need one; on Debian: "
            "apt-get install chromium chromium-driver.",
            pytrace=False,
        )
    return found


def chromium(profile):
    """A driver of a Chromium that keeps its files in the folder `profile`."""
    browser, control = installed(BROWSERS), installed(DRIVERS)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for option in (*OPTIONS.split(), f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(control))


class Browser:
    """A person's actions on the page, and what they see."""

    def __init__(self, driver):
        self.driver = driver
        self.run = driver.execute_script

    def press(self, *keys):
        from selenium.webdriver import ActionChains
        from selenium.webdriver.common.keys import Keys

        for key in keys:
            ActionChains(self.driver).send_keys(getattr(Keys, key, key)).perform()

    def find(self, selector):
        return self.driver.find_elements("css selector", selector)

    def click(self, selector):
        self.find(selector)[0].click()

    def hover(self, selector):
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).move_to_element(self.find(selector)[0]).perform()

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    @property
    def place(self):
        return self.text("#place")

    @property
    def card(self):
        """Names and values on the card with a node's numbers; empty where it is hidden."""
        if not self.find("#card")[0].is_displayed():
            return {}
        names, values = ([e.text for e in self.find(f"#card {tag}")] for tag in ("dt", "dd"))
        return dict(zip(names, values, strict=True))

    def boxes(self, selector):
        """Left, top, right and bottom of everything that matches."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map(e => {"
            "const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]})",
            selector,
        )

    def medium(self, scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def errors(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]
