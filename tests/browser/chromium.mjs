// A folder that is served, and a headless Chromium whose WebGPU is SwiftShader. CHROMIUM names another browser.

import fs from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import path from "node:path";

const TYPES = {
    ".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".json": "application/json", ".wasm": "application/wasm",
};

/** Serves the file that `find` returns for a path, on localhost. Returns the server and its address. */
export function serve(find) {
    const server = http.createServer((request, response) => {
        const name = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
        const file = find(name.endsWith("/") ? `${name}index.html` : name);
        fs.readFile(file, (error, data) => {
            response.writeHead(error ? 404 : 200, { "content-type": TYPES[path.extname(file)] ?? "application/octet-stream" });
            response.end(data);
        });
    });
    return new Promise((done) => {
        server.listen(0, "localhost", () => done({ server, url: `http://localhost:${server.address().port}/` }));
    });
}

// As in docs/guide/src/in-a-browser.md: for a machine without a GPU.
const SOFTWARE = [
    "--enable-unsafe-webgpu", "--enable-features=Vulkan", "--use-vulkan=swiftshader", "--use-webgpu-adapter=swiftshader",
    "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist",
];
const QUIET = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

/** Starts the browser, by the package playwright-core of a folder of modules. */
export function launch(modules, webgpu = true) {
    const { chromium } = createRequire(path.resolve(modules, "x.js"))("playwright-core");
    return chromium.launch({
        executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
        args: ["--headless=new", "--no-sandbox", ...(webgpu ? SOFTWARE : []), ...QUIET],
        ignoreDefaultArgs: ["--disable-gpu", "--headless"],
    });
}
