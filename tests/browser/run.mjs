// Runs the tests of this folder in a real browser: Chromium, headless, whose WebGPU is SwiftShader.
//
//     node tests/browser/run.mjs SITE PAGE [NAME...]
//
// SITE is a folder with index.html, the package of wasm-bindgen in pkg/, and what native code has computed: model.onnx and native.json. PAGE
// is that of examples/web. NAMEs are parts of the names of tests; without any, all run. CHROMIUM names the browser, NODE_MODULES a folder
// with playwright-core, SCREENSHOT a file for a picture of the page. `scripts/browser.sh` makes all of that.

import fs from "node:fs";
import path from "node:path";
import { launch, serve } from "./chromium.mjs";

const [site, example, ...names] = process.argv.slice(2);
const modules = process.env.NODE_MODULES ?? path.join(import.meta.dirname, "node_modules");

function assert(holds, what) {
    if (!holds) throw new Error(what);
}

/** Throws unless the numbers are equal within `relative`. */
function close(got, expected, relative, what) {
    assert(got.length === expected.length, `${what}: ${got.length} numbers, expected ${expected.length}`);
    const worst = Math.max(...expected.map((e, i) => Math.abs(got[i] - e) / Math.max(Math.abs(e), 1e-3)));
    assert(worst <= relative, `${what}: off by ${worst} of ${relative}\n${got}\nexpected\n${expected}`);
    return `${what}: within ${worst.toExponential(1)}`;
}

const native = JSON.parse(fs.readFileSync(path.join(site, "native.json"), "utf8"));
const call = (page, name, ...args) => page.evaluate(([name, args]) => window.tests[name](...args), [name, args]);
const GPU = "soft:0";
const MIXES = [["cpu"], [GPU], [GPU, "cpu"], ["cpu", GPU], [GPU, `${GPU}/1`, "cpu"]];

const table = (device, atLeast) => async (page) => {
    const [cases, ...wrong] = await call(page, "op_table", device, null);
    assert(wrong.length === 0, `${wrong.length} of ${cases} cases are wrong:\n${wrong.join("\n")}`);
    assert(Number(cases) >= atLeast, `${cases} cases, expected at least ${atLeast}`);
    return `${cases} cases`;
};

const losses = (run) => async (page) => {
    const seen = [];
    for (const mix of MIXES) {
        // That of a step is an exchange of f32, which devices round in other ways.
        const relative = mix.length === 1 && mix[0] === "cpu" ? 1e-5 : 1e-4;
        seen.push(close(await call(page, "losses", run, mix), native.losses[run], relative, mix.join(" + ")));
    }
    return seen.join("; ");
};

const TESTS = {
    "devices": async (page) => {
        const devices = await call(page, "devices");
        assert(devices.length === 2 && devices[0].startsWith("soft:0, software") && devices[1].startsWith("cpu"), devices.join("\n"));
        return devices.join("; ");
    },
    "op table on cpu": table("cpu", 4000),
    "losses of lenet": losses("lenet"),
    "losses with batch norm and dropout": losses("batch norm and dropout"),
    "losses with weights": losses("weighted"),
    "an ONNX model": async (page) => {
        const model = [...fs.readFileSync(path.join(site, "model.onnx"))];
        const run = (device) =>
            page.evaluate(([model, device]) => window.tests.onnx_outputs(new Uint8Array(model), device).then((y) => [...y]), [model, device]);
        const seen = [];
        for (const device of ["cpu", GPU]) seen.push(close(await run(device), native.onnx, 1e-4, device));
        return seen.join("; ");
    },
    "a kernel of one's own": (page) => call(page, "own_kernel", GPU),
    "calls that would wait": async (page) => (await call(page, "blocking_calls", GPU)).join("\n    "),
    "calls that wait by JSPI": async (page) => {
        const seen = await call(page, "waiting", GPU);
        await page.evaluate((device) => Promise.all([true, false, true].map((records) => window.tests.two_at_a_time(device, records))), GPU);
        return seen;
    },
    "out of memory": async (page) => {
        await page.evaluate(() => {
            // wgpu ends the scope of memory before that of validation.
            const pop = GPUDevice.prototype.popErrorScope;
            let left = 1;
            GPUDevice.prototype.popErrorScope = async function () {
                const error = await pop.call(this);
                return left-- > 0 ? new GPUOutOfMemoryError("as a test says") : error;
            };
        });
        return call(page, "out_of_memory", GPU);
    },
    "a device that is lost": (page) => call(page, "lost_device", `${GPU}/3`),
    "op table on the adapter": table(GPU, 4800),
};

const text = (page, id) => page.locator(`#${id}`).innerText();
const until = (page, what, ...args) => page.waitForFunction(what, args.length > 0 ? args[0] : null, { timeout: 60_000 });

// The tests of the page of examples/web, one after the other in one page.
const PAGE_TESTS = {
    "the page: ready": async (page) => {
        await until(page, () => document.documentElement.dataset.state === "ready");
        await until(page, () => document.getElementById("state").textContent.includes("software adapter"));
        const devices = await page.locator("#device option").allInnerTexts();
        assert(devices.some((name) => name.includes(GPU)) && devices.some((name) => name.includes("cpu")), devices.join(", "));
        return `first classification after ${Math.round(await page.evaluate(() => document.documentElement.dataset.firstResult))} ms`;
    },
    "the page: draw": async (page) => {
        await page.click("#digit-clear");
        const box = await page.locator("#digit").boundingBox();
        const at = (x, y) => [box.x + (box.width * x) / 280, box.y + (box.height * y) / 280];
        await page.mouse.move(...at(145, 50));
        await page.mouse.down();
        for (const [x, y] of [[142, 110], [140, 170], [138, 235]]) await page.mouse.move(...at(x, y), { steps: 5 });
        await page.mouse.up();
        await until(page, () => /This is 1\b/.test(document.getElementById("digit-result").innerText));
        return text(page, "digit-result");
    },
    "the page: train": async (page) => {
        const seen = [];
        for (const device of [GPU, "cpu"]) {
            await page.selectOption("#device", device);
            await page.click("#train");
            await until(page, () => Number(document.getElementById("step").textContent) >= 8);
            // The work is in a worker: the page draws its frames.
            const slowest = await page.evaluate(async () => {
                let [worst, before] = [0, performance.now()];
                for (let i = 0; i < 60; i++) {
                    await new Promise(requestAnimationFrame);
                    [worst, before] = [Math.max(worst, performance.now() - before), performance.now()];
                }
                return worst;
            });
            assert(slowest < 500, `a frame took ${slowest} ms`);
            await page.click("#train");
            await until(page, () => document.getElementById("train-status").textContent.startsWith("Stopped"));
            const [loss, rate, difference] = [await text(page, "loss"), await text(page, "rate"), await text(page, "difference")];
            const apart = Number(/native code: ([0-9.e-]+)/.exec(difference)?.[1]);
            assert(apart < 1e-3, difference);
            seen.push(`${device}: loss ${loss}, ${rate} images/s, ${apart} from native, slowest frame ${slowest.toFixed(0)} ms`);
        }
        return seen.join("; ");
    },
    "the page: drop a file": async (page) => {
        const model = fs.readFileSync(path.join(example, "digits.onnx")).toString("base64");
        const data = await page.evaluateHandle((model) => {
            const data = new DataTransfer();
            data.items.add(new File([Uint8Array.from(atob(model), (c) => c.charCodeAt(0))], "digits.onnx"));
            return data;
        }, model);
        await page.dispatchEvent("#onnx-drop", "drop", { dataTransfer: data });
        await page.waitForSelector("#onnx-run", { state: "visible" });
        await page.selectOption("#onnx-fill", "digit");
        await page.click("#onnx-run");
        await until(page, () => /largest elements/.test(document.getElementById("onnx-result").innerText));
        return (await text(page, "onnx-result")).split("\n")[0];
    },
    "the page: a kernel": async (page) => {
        const picture = () => page.evaluate(() => document.getElementById("kernel-picture").toDataURL());
        const before = await picture();
        await page.selectOption("#kernel-preset", "edges");
        await until(page, (before) => document.getElementById("kernel-picture").toDataURL() !== before, before);
        const source = await page.inputValue("#kernel-source");
        await page.fill("#kernel-source", source.replace("let last =", "let last = nothing +"));
        await page.click("#kernel-run");
        await page.waitForSelector("#kernel-error", { state: "visible" });
        const error = await text(page, "kernel-error");
        assert(/line 8\b/i.test(error), error);
        await page.fill("#kernel-source", source);
        await page.click("#kernel-run");
        await page.waitForSelector("#kernel-error", { state: "hidden" });
        return error;
    },
    "the page: on a phone": async (page) => {
        await page.setViewportSize({ width: 360, height: 800 });
        const [content, width] = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
        assert(content <= width, `${content} pixels wide on a screen of ${width}`);
        await page.setViewportSize({ width: 1200, height: 900 });
        await page.evaluate(() => window.scrollTo(0, 0));
        if (process.env.SCREENSHOT) await page.screenshot({ path: process.env.SCREENSHOT, fullPage: true });
    },
};

const WITHOUT_WEBGPU = {
    "the page without WebGPU": async (page) => {
        await until(page, () => document.documentElement.dataset.state === "ready");
        await until(page, () => document.getElementById("state").textContent.includes("no WebGPU"));
        await until(page, () => /This is \d/.test(document.getElementById("digit-result").innerText));
        return text(page, "state");
    },
};

const began = Date.now();
let failed = 0;

/** Opens a page of a folder, and runs tests in it. */
async function run(folder, tests, { webgpu = true, opened = async () => {} } = {}) {
    const wanted = Object.entries(tests).filter(([name]) => names.length === 0 || names.some((part) => name.includes(part)));
    if (wanted.length === 0) return;
    const [{ server, url }, chrome] = [await serve((name) => path.join(folder, name)), await launch(modules, webgpu)];
    try {
        const page = await chrome.newPage({ viewport: { width: 1200, height: 900 } });
        page.on("pageerror", (error) => console.log(`    page: ${error}`));
        page.on("console", (message) => process.env.CONSOLE && console.log(`    console: ${message.text()}`));
        await page.goto(url);
        await opened(page);
        for (const [name, test] of wanted) {
            const start = Date.now();
            const took = () => `${((Date.now() - start) / 1000).toFixed(1)} s`;
            try {
                const late = new Promise((_, no) => setTimeout(() => no(new Error("no answer in 10 minutes")), 600_000).unref());
                const seen = await Promise.race([test(page), late]);
                console.log(`ok      ${name}, ${took()}: ${seen ?? ""}`);
            } catch (error) {
                failed += 1;
                console.log(`FAILED  ${name}, ${took()}: ${error.message}`);
            }
        }
    } finally {
        await chrome.close();
        server.close();
    }
}

await run(site, TESTS, {
    opened: async (page) => {
        await page.waitForFunction(() => window.tests, null, { timeout: 60_000 });
        await call(page, "devices");
    },
});
await run(example, PAGE_TESTS);
await run(example, WITHOUT_WEBGPU, { webgpu: false });
console.log(`${failed} failed, ${((Date.now() - began) / 1000).toFixed(0)} s`);
process.exitCode = failed === 0 ? 0 : 1;
