// A client of fourstep.v1 on @grpc/grpc-js. Reads one JSON object from standard input: the address,
// the folder of the contract and calls as tests/server/interop/calls.py describes them; makes the
// calls one after the other, each with a channel of its own, and prints what came of each one as a
// JSON line. Decides nothing: what is right is for the tests to say.
"use strict";

const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const SETTINGS = { keepCase: true, longs: String, enums: String, oneofs: true, arrays: true };

function contract(folder) {
  const files = ["fourstep/v1/inference.proto", "fourstep/v1/control.proto"];
  return loader.loadSync(files, { ...SETTINGS, includeDirs: [folder] });
}

function metadataOf(pairs) {
  const metadata = new grpc.Metadata();
  for (const [key, value] of pairs) {
    metadata.add(key, key.endsWith("-bin") ? Buffer.from(value, "utf8") : value);
  }
  return metadata;
}

// Begins the call; `heard` is run with each message, `over` with the status, which has a code.
function begin(client, method, call, heard, over) {
  const options = call.deadline_s === null ? {} : { deadline: Date.now() + 1000 * call.deadline_s };
  const path = call.path === null ? method.path : call.path;
  const rest = [method.requestSerialize, method.responseDeserialize, call.request];
  rest.push(metadataOf(call.metadata), options);
  if (method.responseStream) {
    const stream = client.makeServerStreamRequest(path, ...rest);
    stream.on("data", heard);
    stream.on("status", over);
    stream.on("error", () => {}); // the status says it too
    return stream;
  }
  return client.makeUnaryRequest(path, ...rest, (error, message) => {
    if (!error) heard(message);
    over(error || { code: grpc.status.OK, details: "" });
  });
}

function once(client, methods, call) {
  return new Promise((resolve) => {
    const messages = [];
    const heard = (message) => {
      messages.push(message);
      if (messages.length === call.cancel_after) stream.cancel();
    };
    const over = ({ code, details }) => resolve({ code: grpc.status[code], details, messages });
    const stream = begin(client, methods[call.method], call, heard, over);
    if (call.cancel_after === 0) stream.cancel();
  });
}

// The call, while the one of `during` is being answered.
function meanwhile(client, methods, call) {
  if (call.during === null) return once(client, methods, call);
  return new Promise((resolve) => {
    let result = null;
    const heard = () => {
      if (result === null) result = once(client, methods, call).finally(() => held.cancel());
    };
    const held = begin(client, methods[call.method], call.during, heard, () => resolve(result));
  });
}

async function main(input) {
  const loaded = contract(input.contract);
  const methods = { ...loaded["fourstep.v1.Inference"], ...loaded["fourstep.v1.Control"] };
  for (const call of input.calls) {
    const options = call.gzip ? { "grpc.default_compression_algorithm": 2 } : {};
    const client = new grpc.Client(input.address, grpc.credentials.createInsecure(), options);
    const result = await meanwhile(client, methods, call);
    client.close();
    process.stdout.write(JSON.stringify(result) + "\n");
  }
}

let text = "";
process.stdin.on("data", (piece) => (text += piece));
process.stdin.on("end", () => main(JSON.parse(text)));
