// Perfetto's trace processor, made for browsers, between standard input and standard output: node trace_processor.js
// FOLDER, which holds engine_bundle.js and trace_processor.wasm. What goes in and out is TraceProcessorRpcStream.

"use strict";
const { readFileSync } = require("node:fs");
const { join } = require("node:path");

const folder = process.argv[2];

// All that the bundle fetches is its own module of WebAssembly.
class XMLHttpRequest {
  open(_method, name) {
    this.file = join(folder, name);
  }
  send() {
    this.response = readFileSync(this.file);
  }
}

// A worker of a browser, as far as the bundle looks: without node's `process`, and saying nothing on standard output.
const log = (...texts) => console.error(...texts);
const around = {
  self: { location: { href: "" } },
  WorkerGlobalScope: Object,
  XMLHttpRequest,
  process: undefined,
  console: { ...console, log, warn: log },
};
const bundle = new Function(...Object.keys(around), readFileSync(join(folder, "engine_bundle.js"), "utf8"));
bundle(...Object.values(around));

const port = { postMessage: (answer) => process.stdout.write(answer) };
around.self.onmessage({ data: port });
process.stdin.on("data", (data) => port.onmessage({ data: new Uint8Array(data) }));
