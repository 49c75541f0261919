// Sends numbered events with one of the forward clients of npm, in one of its modes, then ends; exit code 1 when one
// was refused.
//
//   send.js HOST:PORT CLIENT:MODE:TIME[:ack] TAG COUNT
//
// CLIENT is fluent-logger (modes Message, PackedForward, CompressedPackedForward) or fluent-org (these and Forward);
// TIME is seconds | nanoseconds. Event i carries {"seq": i} and the time 1700000000+i seconds, plus 1000003*i
// nanoseconds where the mode keeps them.
"use strict";

const ACK_TIMEOUT_MS = 30000; // @fluent-org/logger's 500 ms is shorter than a grouped sync on a busy test machine

function time(EventTime, kind, i) {
  return kind === "nanoseconds" ? new EventTime(1700000000 + i, 1000003 * i) : null;
}

async function fluentLogger(host, port, mode, kind, ack, tag, count) {
  const { createFluentSender, EventTime } = require("fluent-logger");
  const sender = createFluentSender(tag, {
    host,
    port,
    eventMode: mode,
    requireAckResponse: ack,
    ackResponseTimeout: ACK_TIMEOUT_MS,
    timeout: 30000, // their default of 3 is handed to the socket as milliseconds
    enableReconnect: false, // a lost connection fails the test
  });
  const failed = new Promise((_, reject) => sender.on("error", reject));
  const sent = [];
  for (let i = 0; i < count; i++) {
    sent.push(
      new Promise((resolve, reject) =>
        sender.emit({ seq: i }, time(EventTime, kind, i) || 1700000000 + i, (err) => (err ? reject(err) : resolve())),
      ),
    );
  }
  await Promise.race([Promise.all(sent), failed]);
  await new Promise((resolve) => sender.end(null, null, resolve));
}

async function fluentOrg(host, port, mode, kind, ack, tag, count) {
  const { FluentClient, EventTime } = require("@fluent-org/logger");
  const client = new FluentClient(tag, {
    eventMode: mode,
    socket: { host, port, timeout: 30000, disableReconnect: true },
    ack: ack ? { ackTimeout: ACK_TIMEOUT_MS } : undefined,
    flushInterval: mode === "Message" ? 0 : 20, // several events in one message
    disconnect: { waitForPending: true },
  });
  await client.connect();
  const sent = [];
  for (let i = 0; i < count; i++) {
    // A number here means milliseconds; without their option `milliseconds` it goes out as whole seconds.
    sent.push(client.emit({ seq: i }, time(EventTime, kind, i) || (1700000000 + i) * 1000));
  }
  await Promise.all(sent);
  await client.disconnect();
}

async function main() {
  const [address, how, tag, count] = process.argv.slice(2);
  const colon = address.lastIndexOf(":");
  const [client, mode, kind, ack] = how.split(":");
  const run = { "fluent-logger": fluentLogger, "fluent-org": fluentOrg }[client];
  await run(address.slice(0, colon), Number(address.slice(colon + 1)), mode, kind, ack === "ack", tag, Number(count));
}

main().catch((err) => {
  console.error(err);
  process.exit(1);
});
