// The thread that computes. The page sends it {id, call, args}, and gets {id, value} or {id, error} back, and {report} in between.
import init, * as anygpu from "./anygpu.js";

// A turn of the worker: messages that have arrived are taken before it is over. Unlike a timeout, it has no least time.
const turns = new MessageChannel();
const waiting = [];
turns.port1.onmessage = () => waiting.shift()();
const pause = () => new Promise((resolve) => {
  waiting.push(resolve);
  turns.port2.postMessage(0);
});

const calls = {
  async start(module, weights) {
    await init({ module_or_path: module });
    anygpu.load_weights(new Uint8Array(weights));
  },
  devices: async () => JSON.parse(await anygpu.devices()),
  async classify(device, trained, ink) {
    const { probabilities, seen, ms } = await anygpu.classify(device, trained, ink);
    return { probabilities, seen, ms };
  },
  digits: (files) => anygpu.load_digits(...files.map((file) => new Uint8Array(file))),
  train: (device) => anygpu.train(device, (json) => postMessage({ report: JSON.parse(json) }), pause),
  stop: () => anygpu.stop(),
  onnxLoad: (bytes) => JSON.parse(anygpu.onnx_load(new Uint8Array(bytes))),
  onnxRun: async (...args) => JSON.parse(await anygpu.onnx_run(...args)),
  async filter(...args) {
    const { pixels, ms, error } = await anygpu.filter(...args);
    return { pixels, ms, error: error && JSON.parse(error) };
  },
};

onmessage = async ({ data: { id, call, args } }) => {
  try {
    postMessage({ id, value: await calls[call](...args) });
  } catch (error) {
    // After a trap, the memory of the program is not to be used again.
    const fatal = error instanceof WebAssembly.RuntimeError;
    postMessage({ id, fatal, error: fatal ? (self.panicked ?? String(error)) : (error?.message ?? String(error)) });
  }
};
