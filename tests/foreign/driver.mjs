// Python drives the published GatewayClient, unmodified, through this program: one client per name.
//
// The driver reads commands from stdin and writes reports to stdout, each a line of JSON:
//   {do: "open", as, url, token: NAME, options}   token: the environment variable that holds it
//   {do: "ask", as, n, method, params, final}      final: the client waits for the second frame
//   {do: "close", as}
// The driver also wraps the socket below the client, and reports each frame in both directions as it is on the wire.
import { createInterface } from "node:readline";
import { GatewayClient, createSessionProjection, reduceSessionProjectionRunEvent } from "@openclaw/gateway-client";
import { WebSocket } from "ws";

const clients = new Map();
let sockets = 0;
const report = (line) => process.stdout.write(JSON.stringify(line) + "\n");

const { emit, send } = WebSocket.prototype;
const numberOf = (socket) => (socket.number ??= ++sockets);
WebSocket.prototype.emit = function (name, ...rest) {
  if (name === "message") report({ socket: numberOf(this), server: rest[0].toString() });
  return emit.call(this, name, ...rest);
};
WebSocket.prototype.send = function (data, ...rest) {
  report({ socket: numberOf(this), client: data.toString() });
  return send.call(this, data, ...rest);
};

const told = (error) => ({
  name: error.name,
  message: error.message,
  code: error.gatewayCode ?? error.code,
  details: error.details,
  retryable: error.retryable,
});

const commands = {
  open({ as, url, token, options }) {
    let projection = createSessionProjection();
    const client = new GatewayClient({
      url,
      token: process.env[token],
      minProtocol: 4,
      maxProtocol: 4,
      ...options,
      onHelloOk: (hello) => report({ as, hello }),
      onConnectError: (error) => report({ as, refused: told(error) }),
      onReconnectPaused: (paused) => report({ as, paused }),
      onClose: (code, reason) => report({ as, closed: [code, reason] }),
      onGap: (gap) => report({ as, gap }),
      onEvent: (event) => {
        report({ as, event });
        if (event.event !== "chat") return;
        const next = reduceSessionProjectionRunEvent(projection, event.payload);
        if (next === null) return;
        projection = next.projection;
        report({ as, run: event.payload.runId, shown: next.currentRun });
      },
    });
    clients.set(as, client);
    client.start();
  },
  ask({ as, n, method, params, final }) {
    clients
      .get(as)
      .request(method, params, { expectFinal: final, onAccepted: (accepted) => report({ n, accepted }) })
      .then((payload) => report({ n, payload: payload ?? null }), (error) => report({ n, error: told(error) }));
  },
  close({ as }) {
    clients.get(as).stopAndWait().then(() => report({ as, gone: true }));
  },
};

const input = createInterface({ input: process.stdin });
input.on("line", (line) => {
  const command = JSON.parse(line);
  commands[command.do](command);
});
input.on("close", () => process.exit(0));
