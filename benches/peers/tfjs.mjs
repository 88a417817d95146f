// LeNet in one browser by this crate and by TensorFlow.js, in turns: images a second at batch 64, in training with the loss read after each
// step, and in predictions that are read.
//
//     npm install --prefix FOLDER playwright-core @tensorflow/tfjs @tensorflow/tfjs-backend-webgpu @tensorflow/tfjs-backend-wasm
//     cargo build --release -p anygpu-bindgen
//     RUSTFLAGS="-C target-feature=+simd128" cargo build --target wasm32-unknown-unknown --profile web -p anygpu-browser-tests
//     target/release/anygpu-bindgen target/wasm32-unknown-unknown/web/anygpu_browser_tests.wasm SITE/pkg tests
//     cp tests/browser/index.html SITE
//     node benches/peers/tfjs.mjs FOLDER/node_modules SITE [SECONDS]
//
// The browser is Chromium, headless, whose WebGPU is SwiftShader; CHROMIUM names another one. The backend wasm of TensorFlow.js has no
// gradient of convolutions, so that only predictions are compared with it.

import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { launch, serve } from "../../tests/browser/chromium.mjs";

const [modules, site, seconds = "15"] = process.argv.slice(2);

// The net of `nn::models::lenet`, with the losses and the optimiser of its recipe.
const PAGE = `<!doctype html><title>peers</title>
<script src="/modules/@tensorflow/tfjs/dist/tf.min.js"></script>
<script src="/modules/@tensorflow/tfjs-backend-webgpu/dist/tf-backend-webgpu.min.js"></script>
<script src="/modules/@tensorflow/tfjs-backend-wasm/dist/tf-backend-wasm.min.js"></script>
<script>
async function rate(backend, trains, seconds) {
    tf.wasm.setWasmPaths("/modules/@tensorflow/tfjs-backend-wasm/dist/");
    if (!(await tf.setBackend(backend))) throw new Error("no backend " + backend);
    await tf.ready();
    const layers = tf.layers;
    const net = tf.sequential({ layers: [
        layers.conv2d({ inputShape: [28, 28, 1], filters: 20, kernelSize: 3, activation: "relu" }),
        layers.averagePooling2d({ poolSize: 2, strides: 2 }),
        layers.conv2d({ filters: 50, kernelSize: 5, activation: "relu" }),
        layers.averagePooling2d({ poolSize: 2, strides: 2 }),
        layers.flatten(),
        layers.dense({ units: 128, activation: "relu" }),
        layers.dense({ units: 10 }),
    ] });
    const optimizer = tf.train.momentum(0.05, 0.9);
    const images = tf.randomUniform([64, 28, 28, 1]);
    const labels = tf.oneHot(tf.range(0, 64, 1, "int32").mod(tf.scalar(10, "int32")), 10);
    const step = async () => {
        const loss = optimizer.minimize(() => tf.losses.softmaxCrossEntropy(labels, net.apply(images, { training: true })), true);
        const value = (await loss.data())[0];
        loss.dispose();
        return value;
    };
    const predict = async () => {
        const logits = tf.tidy(() => net.predict(images));
        await logits.data();
        logits.dispose();
    };
    const run = trains ? step : predict;
    for (let i = 0; i < 2; i++) await run();
    const began = performance.now();
    let steps = 0;
    while (performance.now() - began < 1000 * seconds) { await run(); steps += 1; }
    return 64 * steps / ((performance.now() - began) / 1000);
}
</script>`;

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "anygpu-peers-"));
fs.writeFileSync(path.join(folder, "peers.html"), PAGE);
const { server, url } = await serve((name) => {
    if (name === "/peers.html") return path.join(folder, name);
    return name.startsWith("/modules/") ? path.join(modules, name.slice(9)) : path.join(site, name);
});
const browser = await launch(modules);

async function ours(device, trains) {
    const page = await browser.newPage();
    await page.goto(url);
    await page.waitForFunction(() => window.tests);
    await page.evaluate(() => window.tests.devices());
    const rate = await page.evaluate((args) => window.tests.rate(...args), [device, trains, Number(seconds)]);
    await page.close();
    return rate;
}

async function theirs(backend, trains) {
    const page = await browser.newPage();
    await page.goto(`${url}peers.html`);
    const rate = await page.evaluate((args) => window.rate(...args), [backend, trains, Number(seconds)]);
    await page.close();
    return rate;
}

for (let turn = 0; turn < 3; turn++) {
    for (const [device, backend, trains] of [["soft:0", "webgpu", true], ["soft:0", "webgpu", false], ["cpu", "wasm", false]]) {
        const [a, b] = [await ours(device, trains), await theirs(backend, trains)];
        const what = trains ? "training" : "predictions";
        console.log(`${what}: ${device} ${a.toFixed(0)}, tfjs ${backend} ${b.toFixed(1)}, ${(a / b).toFixed(2)} times`);
    }
    console.log(`training: cpu ${(await ours("cpu", true)).toFixed(0)}`);
}
await browser.close();
server.close();
fs.rmSync(folder, { recursive: true });
