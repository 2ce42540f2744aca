// Drives the page of `http:` in a headless browser: node page.js PORT REQUESTS LABEL [FOLDER]
// REQUESTS have been served; LABEL is a server's name. With FOLDER, it writes screenshots there.

import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const [port, requests, label, folder] = process.argv.slice(2);
const origin = `http://127.0.0.1:${port}`;
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update"],
});
const page = await browser.newPage({ viewport: { width: 1240, height: 900 }, colorScheme: "light" });
const [asked, complaints] = [[], []];
page.on("request", request => asked.push(request.url()));
page.on("console", message => message.type() === "error" && complaints.push(message.text()));
page.on("pageerror", error => complaints.push(error.message));

const refreshed = () => page.evaluate(() => document.documentElement.dataset.refreshed);
/** Waits until the page has shown newer figures than now. */
async function next() {
  const before = await refreshed();
  await page.waitForFunction(old => document.documentElement.dataset.refreshed !== old, before);
}
const text = selector => page.locator(selector).innerText();
const back = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);

await page.goto(origin);
await page.locator("#times tbody tr").first().waitFor();
await next();
assert.equal(await text("#ready"), "ready");
assert.ok((await text("#servers")).includes(label), "a name is shown as it is");

assert.match(await text("#reloads"), /refused/);
assert.match(await text("#problems"), /the last reload, .* ago, was refused: error: /);
assert.match(await text("#slow"), /set a|set #/i);
assert.match(await text("#times"), /phase client read[^]*phase queue[^]*phase server[^]*phase client write/);

// The clients come later than the rest, since all workers are asked.
await page.waitForFunction(() => /127\.0\.0\.1:\d+/.test(document.getElementById("clients").innerText));
assert.match(await text("#pieces"), /none|127\.0\.0\.1/);
assert.doesNotMatch(await text("main"), /\b0 d\b/);

// The cause of a slow request is seen without scrolling.
assert.ok(await page.evaluate(() => {
  const right = one => one.getBoundingClientRect().right;
  const cause = [...document.querySelectorAll("#slow th")].find(one => one.textContent === "cause");
  return right(cause) <= right(document.querySelector("#slow").closest(".scroll"));
}));
assert.ok(await page.locator("#missing").isHidden());

// The window is chosen by the keyboard, and shows every request.
await page.locator("#spans input:checked").focus();
await page.keyboard.press("ArrowRight");
await page.keyboard.press("ArrowRight");
assert.equal(await page.locator("#spans input:checked").inputValue(), "start");
const count = (await page.locator("#times tr.pool td:nth-child(2)").allInnerTexts())
  .reduce((sum, count) => sum + Number(count.replaceAll(",", "")), 0);
assert.equal(count, Number(requests));

// A cell of the heat map can be read without a mouse. One of them has the requests.
await page.locator("#heat").focus();
await page.keyboard.press("ArrowLeft");
assert.match(await text("#cell"), /^\d\d:\d\d:\d\d.*: \S+ requests took up to 50 µs$/);
await page.keyboard.press("ArrowUp");
assert.match(await text("#cell"), /took 50 µs to 100 µs$/);
const shown = await page.evaluate(async () => {
  const { slices } = await (await fetch("history.json")).json();
  return slices.flatMap(slice => Object.values(slice.pools).flat()).reduce((sum, count) => sum + count, 0);
});
assert.equal(shown, Number(requests), "the heat map has every request");

// Every control can be reached by the tabulator.
await page.locator("body").click({ position: { x: 1, y: 1 } });
const reached = new Set();
for (let presses = 0; presses < 12; presses += 1) {
  await page.keyboard.press("Tab");
  reached.add(await page.evaluate(() => document.activeElement.id || document.activeElement.name || ""));
}
for (const control of ["pause", "theme", "heat-pool", "heat", "span"]) {
  assert.ok(reached.has(control), `${control} among ${[...reached]}`);
}

// Dark and light, by the system's choice and by the button.
const light = await back();
await page.emulateMedia({ colorScheme: "dark" });
const dark = await back();
assert.notEqual(light, dark);
await page.click("#theme");
assert.equal(await back(), light);
await page.click("#theme");
assert.equal(await back(), dark);
if (folder) await page.screenshot({ path: `${folder}/page-dark.png`, fullPage: true });
await page.emulateMedia({ colorScheme: "light" });
await page.click("#theme");
if (folder) await page.screenshot({ path: `${folder}/page-light.png`, fullPage: true });

// A narrow window scrolls its tables, and not the page.
await page.setViewportSize({ width: 380, height: 800 });
assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));

// Nothing came from elsewhere, and nothing went wrong.
assert.deepEqual(asked.filter(url => !url.startsWith(origin) && !url.startsWith("data:")), []);
assert.deepEqual(complaints, []);

// If the proxy does not answer, the page says so; when it does again, that goes away.
await page.route("**/stats.json", route => route.abort());
await page.locator("#error").waitFor();
assert.match(await text("#error"), /does not answer/);
await page.unroute("**/stats.json");
await page.locator("#error").waitFor({ state: "hidden" });
await browser.close();
console.log("the page works");
