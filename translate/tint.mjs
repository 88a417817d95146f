// Compiles every kernel as Chrome does: with Tint, the compiler of Dawn, which has WebGPU's rules to the letter.
//
//   node translate/tint.mjs FOLDER      FOLDER: written by translate-kernels
//
// Status 0: all compile; 1: some do not. It opens lavapipe if there is one, so that Tint also writes SPIR-V and the driver
// reads it; else Dawn's device that does nothing, on which Tint checks everything and translates nothing.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

// The package is where the script was started, not beside this file.
const dawn = createRequire(pathToFileURL(resolve('tint.mjs'))).resolve('webgpu');
const { create, globals } = await import(pathToFileURL(dawn));
Object.assign(globalThis, globals);

/** Opens an adapter: what it is called, the device, and the object that must outlive both. */
async function open() {
  for (const options of [['adapter=llvmpipe'], ['backend=null']]) {
    try {
      const gpu = create(options);
      const adapter = await gpu.requestAdapter();
      const device = await adapter.requestDevice({ requiredFeatures: ['subgroups'] });
      return { name: adapter.info.description || options[0], device, gpu };
    } catch (error) {
      console.log(`no ${options[0]}: ${error.message.split('\n')[0]}`);
    }
  }
  throw new Error('Dawn opens no device');
}

/** Returns the messages of a module's compiler, with the lines that they are about. */
async function compile(device, code) {
  device.pushErrorScope('validation');
  const module = device.createShaderModule({ code });
  const { messages } = await module.getCompilationInfo();
  await device.popErrorScope();
  const lines = code.split('\n');
  const said = messages.map((m) => `${m.type}: ${m.message}\n    ${(lines[m.lineNum - 1] ?? '').trim()}`);
  return { module, said };
}

/** Returns what is wrong with a specialisation, or nothing. */
async function specialise(device, module, kernel) {
  device.pushErrorScope('internal');
  device.pushErrorScope('validation');
  const compute = { module, entryPoint: kernel.entry, constants: kernel.constants };
  device.createComputePipeline({ layout: 'auto', compute });
  const invalid = await device.popErrorScope();
  const internal = await device.popErrorScope();
  return (invalid ?? internal)?.message;
}

const folder = process.argv[2];
const { texts } = JSON.parse(readFileSync(join(folder, 'kernels.json'), 'utf8'));
const { name, device, gpu } = await open();
const failures = [];
let count = 0;
for (const text of texts) {
  // naga knows subgroups without this line, and rejects it. wgpu offers no subgroups in browsers, so that the crate does not
  // need it either.
  const enable = text.subgroups ? 'enable subgroups;\n' : '';
  const { module, said } = await compile(device, enable + readFileSync(join(folder, text.file), 'utf8'));
  if (said.length > 0) {
    failures.push(`${text.kernels[0].name}: ${said.join('\n  ')}`);
    continue;
  }
  // Constants that do not change the HLSL do not change the kernel.
  const distinct = new Map(text.kernels.map((kernel) => [kernel.hlsl.file, kernel]));
  for (const kernel of distinct.values()) {
    const wrong = await specialise(device, module, kernel);
    if (wrong) failures.push(`${kernel.name}: ${wrong}`);
    count += 1;
  }
}
failures.forEach((failure) => console.log(failure));
console.log(`${texts.length} texts and ${count} kernels by Tint, on ${name}: ${failures.length} do not compile`);
// Dawn's threads would keep the process alive.
process.exit(failures.length === 0 && count > 0 && gpu ? 0 : 1);
