// The page: it draws, and asks the worker for everything that is computed.
import { kernels } from "./kernels.js";

const $ = (id) => document.getElementById(id);
const root = document.documentElement;

// ---- The worker. The program is compiled while it is fetched, and both while the worker starts. ----

const worker = new Worker("worker.js", { type: "module" });
const fetched = async (path) => {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${answer.statusText}`);
  return answer;
};
const bytes = async (path) => (await fetched(path)).arrayBuffer();
const compiled = async (path) => {
  const answer = await fetched(path);
  // A server that does not know the type of the file cannot stream it.
  const streams = answer.headers.get("content-type")?.startsWith("application/wasm");
  return streams ? WebAssembly.compileStreaming(answer) : WebAssembly.compile(await answer.arrayBuffer());
};
const parts = Promise.all([compiled("anygpu_bg.wasm"), bytes("lenet.safetensors")]);

const pending = new Map();
let calls = 0;
let onReport = () => {};
worker.onmessage = ({ data }) => {
  if (data.report) return onReport(data.report);
  const { resolve, reject } = pending.get(data.id);
  pending.delete(data.id);
  if (!("error" in data)) return resolve(data.value);
  if (data.fatal) broken(data.error);
  reject(new Error(data.error));
};
worker.onerror = (event) => broken(event.message ?? "the worker did not start");
const call = (name, ...args) => new Promise((resolve, reject) => {
  pending.set(++calls, { resolve, reject });
  worker.postMessage({ id: calls, call: name, args });
});

// Returns a function that does `work`, once at a time: if it is called meanwhile, it works once more after that. Its promise resolves when the
// work that the call began is done.
function latest(work) {
  let busy = false;
  let again = false;
  return async () => {
    again = true;
    if (busy) return;
    busy = true;
    while (again) {
      again = false;
      await work();
    }
    busy = false;
  };
}

function state(name, text) {
  root.dataset.state = name;
  $("state").textContent = text;
}
function broken(message) {
  state("error", "The program has stopped. Reload the page.");
  for (const button of document.querySelectorAll("button.main")) button.disabled = true;
  console.error(message);
  $("digit-result").textContent = message;
}
function show(box, message) {
  box.textContent = message ?? "";
  box.hidden = !message;
}
const own = (name) => getComputedStyle(root).getPropertyValue(name);
const number = (value, digits) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
// Four digits that count, for numbers of any size.
const short = (value) => (value === null ? "–" : Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6 || value === 0 ? String(+value.toPrecision(4)) : value.toExponential(2));
const time = (ms) => (ms < 10 ? `${number(ms, 1)} ms` : ms < 10000 ? `${number(ms, 0)} ms` : `${number(ms / 1000, 1)} s`);

// ---- Devices ----

let devices = [{ name: "cpu", kind: "cpu", adapter: "" }];
const device = () => $("device").value;

function describe() {
  const chosen = devices.find(({ name }) => name === device());
  // A browser may keep the name to itself.
  const adapter = chosen.adapter === "WebGPU adapter" ? "" : chosen.adapter;
  if (devices.length === 1) return "no WebGPU: on cpu";
  if (chosen.kind === "software") return `software adapter${adapter && `: ${adapter}`}`;
  if (chosen.kind !== "cpu") return adapter || "WebGPU";
  const soft = devices.find(({ kind }) => kind === "software");
  return `WebAssembly${soft ? `; software adapter: ${soft.name}` : ""}`;
}

$("device").onchange = () => {
  state("ready", describe());
  classify();
  kernelDevice();
};

// ---- Drawing ----

const pad = $("digit").getContext("2d", { willReadFrequently: true });
const STROKES = [
  "M140 45C85 45 75 95 75 140S85 235 140 235 205 185 205 140 195 45 140 45Z",
  "M105 85L148 45V235",
  "M85 90C90 35 200 35 195 95 190 145 110 175 85 230H205",
  "M88 70C110 35 195 40 190 90 187 130 145 135 125 135 170 135 202 155 198 190 190 245 100 245 82 205",
  "M180 235V50L80 175H215",
  "M192 50H105L95 130C130 105 200 120 198 175 195 240 105 245 82 210",
  "M180 50C120 75 80 140 82 190 85 245 195 245 195 190 195 140 110 140 86 180",
  "M80 55H200C170 110 135 170 120 235",
  "M140 130C85 110 90 48 140 46 190 48 195 110 140 130 75 150 75 233 140 235 205 233 205 150 140 130Z",
  "M190 95C190 150 95 155 92 95 92 40 190 35 190 95 190 150 175 200 150 235",
];
let example = 2;

function drawExample(digit) {
  pad.clearRect(0, 0, 280, 280);
  pad.lineWidth = 22;
  pad.lineCap = pad.lineJoin = "round";
  pad.stroke(new Path2D(STROKES[digit]));
  classify();
}

let last = null;
const place = (event) => {
  const box = $("digit").getBoundingClientRect();
  return [((event.clientX - box.left) / box.width) * 280, ((event.clientY - box.top) / box.height) * 280];
};
$("digit").onpointerdown = (event) => {
  if (event.button !== 0) return;
  $("digit").setPointerCapture(event.pointerId);
  // The example makes room for a drawing.
  if (example !== null) pad.clearRect(0, 0, 280, 280);
  example = null;
  last = place(event);
  line(last);
};
$("digit").onpointermove = (event) => {
  if (!last) return;
  for (const step of event.getCoalescedEvents?.() ?? [event]) line(place(step));
};
$("digit").onpointerup = $("digit").onpointercancel = () => (last = null);
function line(to) {
  pad.lineWidth = 22;
  pad.lineCap = pad.lineJoin = "round";
  pad.beginPath();
  pad.moveTo(...last);
  pad.lineTo(...to);
  pad.stroke();
  last = to;
  classify();
}
$("digit-clear").onclick = () => {
  example = null;
  pad.clearRect(0, 0, 280, 280);
  classify();
};
let nextExample = 2;
$("digit-example").onclick = () => {
  example = nextExample = (nextExample + 1) % 10;
  drawExample(example);
};

for (let digit = 0; digit < 10; digit++) {
  const row = document.createElement("li");
  row.innerHTML = `<span>${digit}</span><i></i><span>–</span>`;
  $("digit-bars").append(row);
}

// One classification at a time; of the drawings that come meanwhile, the last one is next.
let seen = [];
let started = false;
const classify = latest(async () => {
  if (!started) return;
  const image = pad.getImageData(0, 0, 280, 280).data;
  const ink = new Uint8Array(280 * 280);
  for (let i = 0; i < ink.length; i++) ink[i] = image[4 * i + 3];
  const trained = document.querySelector("[name=weights]:checked").value === "trained";
  try {
    const on = trained ? training.device : quick();
    answer(await call("classify", on, trained, ink), on, trained);
  } catch (error) {
    $("digit-result").textContent = error.message;
  }
});

// Where to classify with the weights of the page: not after the steps of a run, each of which takes a software adapter a second.
function quick() {
  const waits = training.running && training.device === device() && devices.some(({ name, kind }) => name === device() && kind === "software");
  return waits ? "cpu" : device();
}

function answer({ probabilities, seen: pixels, ms }, on, trained) {
  seen = pixels;
  const small = $("digit-seen").getContext("2d");
  small.clearRect(0, 0, 28, 28);
  if (seen.length) {
    const image = small.createImageData(28, 28);
    seen.forEach((ink, i) => (image.data[4 * i + 3] = 255 * ink));
    small.putImageData(image, 0, 0);
  }
  const best = probabilities.indexOf(Math.max(...probabilities));
  [...$("digit-bars").children].forEach((row, digit) => {
    const p = probabilities[digit] ?? 0;
    row.className = digit === best ? "best" : "";
    row.style.setProperty("--p", p);
    row.lastChild.textContent = probabilities.length ? `${number(100 * p, 0)} %` : "–";
  });
  if (best < 0) return void ($("digit-result").textContent = "Draw a digit.");
  const by = trained ? `, weights of step ${training.step}` : "";
  $("digit-result").innerHTML = `This is <strong>${best}</strong>, with ${number(100 * probabilities[best], 0)} %. <span class="note">${time(ms)} on ${on}${by}</span>`;
  if (!root.dataset.firstResult) {
    root.dataset.firstResult = Math.round(performance.now());
    $("time").textContent = `The first result was here after ${root.dataset.firstResult} ms.`;
  }
}
for (const radio of document.querySelectorAll("[name=weights]")) radio.onchange = classify;

// ---- Training ----

const training = { device: "cpu", step: 0, losses: [], accuracies: [], running: false, batches: 63 };
let native = [];
let digits = null;

$("train").onclick = async () => {
  if (training.running) {
    $("train").disabled = true;
    $("train-status").textContent = "Stopping …";
    return void call("stop");
  }
  Object.assign(training, { device: device(), step: 0, losses: [], accuracies: [], running: true });
  for (const id of ["step", "loss", "rate", "accuracy"]) $(id).textContent = "–";
  $("train").textContent = "Stop";
  $("train-status").textContent = "Loading the digits …";
  $("curve-own").textContent = `this page on ${training.device}`;
  curve();
  try {
    const names = ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"];
    digits ??= Promise.all(names.map(bytes)).then((files) => call("digits", files));
    await digits.catch((error) => {
      digits = null;
      throw error;
    });
    $("train-status").textContent = `The first step on ${training.device} …`;
    const ended = await call("train", training.device);
    $("train-status").textContent = ended ? `Done: ${training.step} steps on ${training.device}.` : `Stopped after step ${training.step} on ${training.device}.`;
  } catch (error) {
    $("train-status").textContent = `Error: ${error.message}`;
  }
  training.running = false;
  $("train").textContent = "Train";
  $("train").disabled = root.dataset.state === "error";
};

onReport = (report) => {
  if (report.batches) training.batches = report.batches;
  if (report.losses) {
    training.losses.push(...report.losses);
    training.step = report.step;
    $("step").textContent = number(report.step, 0);
    $("loss").textContent = number(report.losses.at(-1), 4);
    $("rate").textContent = number(report.rate, 0);
    const epoch = Math.ceil(report.step / training.batches);
    if (!$("train").disabled) status(`Training on ${training.device}, epoch ${epoch} of 10.`);
    for (const radio of document.querySelectorAll("[name=weights]")) radio.disabled = false;
    differences();
    if (document.querySelector("[name=weights]:checked").value === "trained") classify();
  }
  if (report.accuracy !== undefined) {
    training.accuracies.push([report.step, report.accuracy]);
    $("accuracy").textContent = `${number(100 * report.accuracy, 1)} %`;
  }
  requestAnimationFrame(curve);
};
// A live region speaks what is written to it, also if it is the same.
function status(text) {
  if ($("train-status").textContent !== text) $("train-status").textContent = text;
}

function differences() {
  if (!native.length) return;
  const of = (count) => Math.max(...training.losses.slice(0, count).map((loss, i) => Math.abs(loss - native[i])));
  const first = Math.min(20, training.losses.length);
  const all = Math.min(training.losses.length, native.length);
  const rest = all > first ? `, and ${short(of(all))} in all ${all}, as rounding grows from step to step` : "";
  $("difference").textContent = `Largest difference from the loss of native code: ${short(of(first))} in the first ${first} steps${rest}.`;
}

function curve() {
  const canvas = $("curve");
  const ratio = devicePixelRatio;
  const { clientWidth: w, clientHeight: h } = canvas;
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
    canvas.width = Math.round(w * ratio);
    canvas.height = Math.round(h * ratio);
  }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, w, h);
  g.font = "12px system-ui, sans-serif";
  const [left, right, top, bottom] = [38, w - 8, 8, h - 22];
  // As many epochs as have begun.
  const steps = training.batches * Math.max(1, Math.ceil(training.losses.length / training.batches));
  const [least, most] = [Math.log(0.003), Math.log(4)];
  const x = (step) => left + ((right - left) * (step - 1)) / (steps - 1);
  const y = (loss) => bottom - ((bottom - top) * Math.min(1, Math.max(0, (Math.log(loss) - least) / (most - least))));
  g.strokeStyle = own("--line");
  g.fillStyle = own("--soft");
  g.lineWidth = 1;
  g.textAlign = "right";
  g.textBaseline = "middle";
  for (const loss of [0.01, 0.1, 1]) {
    g.beginPath();
    g.moveTo(left, Math.round(y(loss)) + 0.5);
    g.lineTo(right, Math.round(y(loss)) + 0.5);
    g.stroke();
    g.fillText(loss, left - 6, y(loss));
  }
  g.textBaseline = "top";
  g.textAlign = "left";
  g.fillText("step 1", left, bottom + 6);
  g.textAlign = "right";
  g.fillText(steps, right, bottom + 6);
  const path = (losses, colour, dash, width) => {
    g.beginPath();
    losses.slice(0, steps).forEach((loss, i) => g.lineTo(x(i + 1), y(loss)));
    g.strokeStyle = colour;
    g.lineWidth = width;
    g.lineJoin = "round";
    g.setLineDash(dash);
    g.stroke();
    g.setLineDash([]);
  };
  path(training.losses, own("--accent"), [], 2.5);
  path(native, own("--native"), [3, 3], 1.5);
  const loss = training.losses.at(-1);
  canvas.setAttribute("aria-label", loss === undefined ? "Losses by step" : `Losses by step: from ${number(training.losses[0], 2)} to ${number(loss, 3)} in ${training.losses.length} steps`);
}
addEventListener("resize", curve);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", curve);

// ---- ONNX ----

let model = null;

async function openModel(file) {
  show($("onnx-error"));
  $("onnx-result").replaceChildren();
  $("onnx-model").hidden = true;
  try {
    model = await call("onnxLoad", await file.arrayBuffer());
    model.name = file.name;
  } catch (error) {
    return show($("onnx-error"), `${file.name}: ${error.message}`);
  }
  $("onnx-name").textContent = `${model.name}: ${number(model.parameters, 0)} parameters`;
  const rows = [["", "name", "type", "shape"]];
  // The first input that a picture fits.
  const size = (dim) => (typeof dim === "number" ? dim : 1);
  const fits = ({ shape }) => shape?.length === 4 && size(shape[0]) === 1 && [1, 3].includes(size(shape[1])) && (typeof shape[2] !== "number" || shape[2] > 7);
  model.at = model.inputs.findIndex(fits);
  for (const kind of ["inputs", "outputs"]) for (const value of model[kind]) rows.push([kind.slice(0, -1), value.name, value.type, value.shape]);
  $("onnx-values").replaceChildren(...rows.map((cells, i) => row(cells, i ? "td" : "th", i - 1 === model.at ? 224 : 1)));
  const fills = [["zeros", "zeros"], ["ramp", "ramp from 0 to 1"]];
  if (model.at >= 0) {
    const [, , h, w] = model.inputs[model.at].shape;
    if (h === 28 && w === 28 && model.inputs[model.at].shape[1] !== 3) fills.unshift(["digit", "the drawn digit"]);
    fills.push(["picture", "the picture below"]);
    if (fills[0][0] !== "digit") fills.unshift(fills.pop());
  }
  $("onnx-fill").replaceChildren(...fills.map(([value, text]) => new Option(text, value)));
  $("onnx-scale").value = fills[0][0] === "digit" ? "mnist" : model.at >= 0 && model.inputs[model.at].shape[1] === 3 ? "imagenet" : "1";
  scaleShown();
  $("onnx-model").hidden = false;
}
function row(cells, tag, side = 1) {
  const line = document.createElement("tr");
  for (const cell of cells) {
    const box = line.appendChild(document.createElement(tag));
    if (!Array.isArray(cell)) box.textContent = cell ?? "any";
    else if (cells[0] === "output") box.textContent = `[${cell.join(", ")}]`;
    else box.append("[", ...cell.flatMap((dim, i) => [i ? ", " : "", typeof dim === "number" ? dim : open(dim, i < 2 ? 1 : side)]), "]");
  }
  return line;
}
// A size that the file leaves open: 1, except for the sides of a picture.
function open(name, size) {
  const input = Object.assign(document.createElement("input"), { type: "number", min: 1, value: size, title: name, className: "size" });
  input.setAttribute("aria-label", `Size of ${name}`);
  return input;
}
function scaleShown() {
  $("onnx-scale-label").hidden = !["digit", "picture"].includes($("onnx-fill").value);
}
$("onnx-fill").onchange = scaleShown;

$("onnx-run").onclick = async () => {
  $("onnx-run").disabled = true;
  show($("onnx-error"));
  const on = device();
  $("onnx-result").textContent = `Running on ${on} …`;
  try {
    const chosen = [...document.querySelectorAll("#onnx-values .size")].map((input) => Math.max(1, input.valueAsNumber || 1));
    const shapes = model.inputs.map(({ shape }) => (shape ?? []).map((dim) => (typeof dim === "number" ? dim : chosen.shift())));
    const fill = $("onnx-fill").value;
    let pixels = new Float32Array();
    if (fill === "digit") {
      if (!seen.length) throw new Error("draw a digit first");
      pixels = Float32Array.from(seen);
    } else if (fill === "picture") {
      const [, , h, w] = shapes[model.at];
      pixels = Float32Array.from(scaled(w, h));
    }
    const image = fill === "digit" || fill === "picture";
    const result = await call("onnxRun", on, Uint32Array.from(shapes.flat()), image ? "image" : fill, Math.max(0, model.at), pixels, $("onnx-scale").value);
    results(result, on);
  } catch (error) {
    $("onnx-result").replaceChildren();
    show($("onnx-error"), error.message);
  }
  $("onnx-run").disabled = false;
};
function results({ outputs, ms }, on) {
  const all = [Object.assign(document.createElement("p"), { textContent: `${time(ms)} on ${on}, with the copy of the results back.${on === "cpu" ? "" : " The first run compiles kernels."}`, className: "note" })];
  for (const { name, shape, type, top, least, most, mean } of outputs) {
    const table = document.createElement("table");
    table.append(row(["index", "largest elements"], "th"), ...top.map(([i, value]) => row([index(i, shape), short(value)], "td")));
    all.push(Object.assign(document.createElement("p"), { textContent: `${name}: ${type} [${shape.join(", ")}], from ${short(least)} to ${short(most)}, mean ${short(mean)}` }), table);
  }
  $("onnx-result").replaceChildren(...all);
}
// The place of an element: for one row of scores, its class alone.
function index(i, shape) {
  const places = [];
  for (const size of [...shape].reverse()) {
    places.unshift(i % size);
    i = Math.floor(i / size);
  }
  return shape.slice(0, -1).every((size) => size === 1) ? String(places.at(-1) ?? 0) : `[${places.join(", ")}]`;
}
$("onnx-file").onchange = ({ target }) => taken(target, openModel);
// The same file may be chosen again: it may have changed.
function taken(input, take) {
  if (input.files[0]) take(input.files[0]);
  input.value = "";
}
$("onnx-example").onclick = async () => {
  try {
    openModel(new File([await bytes("digits.onnx")], "digits.onnx"));
  } catch (error) {
    show($("onnx-error"), error.message);
  }
};
dropped($("onnx-drop"), openModel);

function dropped(box, take) {
  box.ondragover = (event) => {
    event.preventDefault();
    box.classList.add("over");
  };
  box.ondragleave = () => box.classList.remove("over");
  box.ondrop = (event) => {
    event.preventDefault();
    box.classList.remove("over");
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  };
}
// A file that misses its place must not replace the page.
for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault());

// ---- Kernel ----

const source = document.createElement("canvas");
const sourceContext = source.getContext("2d", { willReadFrequently: true });

// A picture by code: discs over a ramp of colours, with lines of text.
function ownPicture() {
  [source.width, source.height] = [384, 256];
  const g = sourceContext;
  const ramp = g.createLinearGradient(0, 0, 384, 256);
  ["#10243f", "#24507a", "#c96f4a", "#f3d9a4"].forEach((colour, i) => ramp.addColorStop(i / 3, colour));
  g.fillStyle = ramp;
  g.fillRect(0, 0, 384, 256);
  for (let i = 0; i < 40; i++) {
    const [a, r] = [i * 2.4, 9 + ((i * 7) % 15)];
    g.fillStyle = `hsl(${(i * 47) % 360} 70% ${45 + ((i * 13) % 30)}%)`;
    g.beginPath();
    g.arc(192 + 4.6 * i * Math.cos(a), 128 + 3 * i * Math.sin(a), r, 0, 7);
    g.fill();
  }
  g.strokeStyle = "#fff";
  g.lineWidth = 2;
  for (let i = 0; i < 6; i++) g.strokeRect(16 + 12 * i, 16 + 8 * i, 352 - 24 * i, 224 - 16 * i);
  g.fillStyle = "#fff";
  g.font = "bold 52px sans-serif";
  g.textAlign = "center";
  g.fillText("anygpu", 192, 146);
}
async function openPicture(file) {
  try {
    const bitmap = await createImageBitmap(file);
    // Large enough for a screen, and small enough for a software adapter.
    const scale = Math.min(1, 1024 / Math.max(bitmap.width, bitmap.height));
    source.width = Math.max(1, Math.round(bitmap.width * scale));
    source.height = Math.max(1, Math.round(bitmap.height * scale));
    sourceContext.drawImage(bitmap, 0, 0, source.width, source.height);
    put(sourceContext.getImageData(0, 0, source.width, source.height));
    run();
  } catch {
    $("kernel-status").textContent = `${file.name} is not a picture that this browser reads.`;
  }
}
// The picture in another size, in its middle.
function scaled(w, h) {
  const canvas = Object.assign(document.createElement("canvas"), { width: w, height: h });
  const g = canvas.getContext("2d", { willReadFrequently: true });
  const scale = Math.max(w / source.width, h / source.height);
  const [sw, sh] = [w / scale, h / scale];
  g.drawImage(source, (source.width - sw) / 2, (source.height - sh) / 2, sw, sh, 0, 0, w, h);
  return g.getImageData(0, 0, w, h).data;
}
function put(image) {
  const canvas = $("kernel-picture");
  [canvas.width, canvas.height] = [image.width, image.height];
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// Kernels run on adapters only: on the one that is chosen, or else on the first.
let kernelOn = null;
function kernelDevice() {
  const adapters = devices.filter(({ kind }) => kind !== "cpu");
  kernelOn = (adapters.find(({ name }) => name === device()) ?? adapters[0])?.name ?? null;
  $("kernel-run").disabled = !kernelOn || root.dataset.state === "error";
  if (!kernelOn) $("kernel-status").textContent = "A kernel in WGSL needs WebGPU: cpu does not run it.";
}

const run = latest(async () => {
  if (!kernelOn) return;
  const { width, height } = source;
  const { data } = sourceContext.getImageData(0, 0, width, height);
  try {
    const { pixels, ms, error } = await call("filter", kernelOn, $("kernel-source").value, new Uint8Array(data.buffer), width, $("kernel-amount").valueAsNumber);
    show($("kernel-error"), error?.message);
    lines(error?.line);
    if (error) {
      $("kernel-status").textContent = "The kernel was not run.";
    } else {
      put(new ImageData(new Uint8ClampedArray(pixels), width, height));
      $("kernel-status").textContent = `${width} × ${height} pixels in ${time(ms)} on ${kernelOn}, with the copies to it and back.`;
    }
  } catch (error) {
    show($("kernel-error"), error.message);
  }
});
let wrong = null;
function lines(line = null) {
  wrong = line;
  const count = $("kernel-source").value.split("\n").length;
  $("kernel-lines").innerHTML = Array.from({ length: count }, (_, i) => (i + 1 === wrong ? `<b>${i + 1}</b>` : `${i + 1}\n`)).join("");
  if (line) {
    // The line comes into view.
    const height = $("kernel-source").scrollHeight / (count + 1);
    const above = (line - 3) * height;
    if (above < $("kernel-source").scrollTop || above > $("kernel-source").scrollTop + $("kernel-source").clientHeight - 5 * height) $("kernel-source").scrollTop = above;
  }
  follow();
}
const follow = () => ($("kernel-lines").scrollTop = $("kernel-source").scrollTop);
$("kernel-source").onscroll = follow;
$("kernel-source").oninput = () => lines();
$("kernel-source").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    run();
  }
};
$("kernel-preset").replaceChildren(...Object.keys(kernels).map((name) => new Option(name)));
$("kernel-preset").onchange = () => {
  $("kernel-source").value = kernels[$("kernel-preset").value];
  $("kernel-source").scrollTop = 0;
  lines();
  run();
};
$("kernel-amount").oninput = run;
$("kernel-run").onclick = run;
$("kernel-file").onchange = ({ target }) => taken(target, openPicture);
$("kernel-reset").onclick = () => {
  ownPicture();
  run();
};
dropped($("kernel-picture"), openPicture);

// ---- The start ----

$("kernel-preset").value = "swirl";
$("kernel-source").value = kernels.swirl;
lines();
ownPicture();
put(sourceContext.getImageData(0, 0, source.width, source.height));
drawExample(example);
curve();

try {
  const [module, weights] = await parts;
  await call("start", module, weights);
  started = true;
  await classify();
  $("train").disabled = $("onnx-example").disabled = false;
  $("state").textContent = "Looking for adapters …";
  fetched("native.json").then((answer) => answer.json()).then(({ losses }) => {
    // The file has the shortest digits of numbers of 32 bits.
    native = losses.map(Math.fround);
    curve();
  }).catch(() => {});
  devices = await call("devices");
  $("device").replaceChildren(...devices.map(({ name }) => new Option(name)));
  // A software adapter is slower than the processor that it runs on.
  const asked = new URLSearchParams(location.search).get("device");
  const first = devices.find(({ name }) => name === asked) ?? devices.find(({ kind }) => kind === "gpu");
  $("device").value = first?.name ?? "cpu";
  $("device").disabled = devices.length < 2;
  state("ready", describe());
  kernelDevice();
  classify();
  run();
} catch (error) {
  if (root.dataset.state !== "error") state("error", "The page could not start.");
  $("digit-result").textContent = error.message;
}
