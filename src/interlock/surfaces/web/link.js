// The link to the gateway: one socket, made again when it drops, with requests and watches that survive a drop.
//
// 1. The link connects to the origin of this file. Nothing in the page's URL can point it elsewhere.
// 2. A watch never passes on an event twice or out of order: positions only rise, also across connections.
// 3. A request with `again` is sent again after a reconnect, under its own key.
// 4. A connection that is silent for longer than two ticks is lost.

const ROOT = new URL("..", import.meta.url);
const FIRST_PAUSE_MS = 200;
const LAST_PAUSE_MS = 5_000;
const INSIST_MS = 2_000; // the longest pause before a retryable request is sent again
const PATIENCE_MS = 30_000; // for all tries of one request
const NO_TOKEN = 4001;
const IN_FLIGHT = 32; // requests; the gateway accepts 64
const CAPABILITIES = ["interlock.quiet.2", "interlock.outline.2"];

export const place = (path) => new URL(path, ROOT);

export class Failed extends Error {
  constructor({ code = "", message = "something went wrong", retryable = false } = {}) {
    super(message);
    Object.assign(this, { code, retryable });
  }
}

const lost = () =>
  new Failed({ code: "LOST", message: "the connection was lost before the answer came", retryable: true });

export class Link extends EventTarget {
  #token;
  #socket = null;
  #asked = new Map(); // by request id: requests without an answer
  #watches = new Map(); // by number
  #waiting = []; // requests to be sent when there is a connection
  #later = []; // requests to be sent when others are answered
  #last = 0;
  #heard = 0;
  #silence = 30_000;
  #pause = FIRST_PAUSE_MS;
  #timer = null;
  #over = false;
  #life = new AbortController();
  state = "connecting"; // connected, lost, denied
  hello = null;
  names = new Map(); // names of sessions, by id

  constructor(token, me) {
    super();
    this.#token = token;
    this.me = me;
    const { signal } = this.#life;
    const clock = setInterval(() => this.#listen(), 1_000);
    signal.addEventListener("abort", () => clearInterval(clock));
    addEventListener("online", () => this.hurry(), { signal });
    document.addEventListener("visibilitychange", () => document.hidden || this.hurry(), { signal });
    this.#dial();
  }

  get scopes() {
    return this.hello?.auth.scopes ?? [];
  }

  // Return a session's name as this person writes it: bare if it is their own, else with its owner.
  name(id) {
    const own = `${this.me}/`;
    if (!id || id.startsWith("run:")) return id;
    if (id.startsWith(own) && !id.includes("/", own.length)) return id.slice(own.length);
    return this.names.get(id) ?? (id.includes("/") ? id : `local/${id}`);
  }

  may(scope) {
    return this.scopes.includes("operator.admin") || this.scopes.includes(`operator.${scope}`);
  }

  close() {
    this.#over = true;
    this.#life.abort();
    clearTimeout(this.#timer);
    this.#socket?.close();
    this.#socket = null;
    for (const request of [...this.#asked.values(), ...this.#later.splice(0), ...this.#waiting.splice(0)])
      request.reject(lost());
    this.#asked.clear();
  }

  hurry() {
    if (this.state === "lost") {
      clearTimeout(this.#timer);
      this.#dial();
    }
  }

  // Requests

  // `again`: send again after a reconnect. `still`: send again after a retryable error too, while it returns true.
  request(method, params = {}, { again = false, still = null } = {}) {
    return new Promise((resolve, reject) => {
      const until = performance.now() + PATIENCE_MS;
      const request = { method, params, again, still, until, pause: FIRST_PAUSE_MS, resolve, reject };
      if (this.state === "connected") this.#ask(request);
      else if (again && this.state !== "denied") this.#waiting.push(request);
      else reject(lost());
    });
  }

  #ask(request) {
    const stops = request.method === "interlock.stop";
    const flying = [...this.#asked.values()].filter((each) => (each.method === "interlock.stop") === stops).length;
    if (flying >= IN_FLIGHT) {
      this.#later.push(request);
      return;
    }
    const id = `p${++this.#last}`;
    this.#asked.set(id, request);
    this.#socket.send(JSON.stringify({ type: "req", id, method: request.method, params: request.params }));
  }

  // Watches: `on.event(event)` for each event; `on.over(error or null)` when the watch is over for good.

  watch(what, after, on) {
    const watch = { number: ++this.#last, what, after, on };
    this.#watches.set(watch.number, watch);
    if (this.state === "connected") this.#begin(watch);
    return { stop: () => this.#end(watch) };
  }

  #begin(watch) {
    this.request("interlock.watch", { ...watch.what, watch: watch.number, after: watch.after }).catch((error) => {
      if (this.state === "connected") this.#finish(watch, error);
    });
  }

  #end(watch) {
    if (this.#watches.delete(watch.number) && this.state === "connected") {
      this.request("interlock.unwatch", { watch: watch.number }).catch(() => {});
    }
  }

  #finish(watch, error) {
    if (this.#watches.delete(watch.number)) watch.on.over?.(error);
  }

  // The socket

  #dial() {
    if (this.#over || this.#socket) return;
    this.#tell("connecting");
    const url = new URL(ROOT);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = (this.#socket = new WebSocket(url));
    socket.onmessage = ({ data }) => socket === this.#socket && this.#hear(JSON.parse(data));
    socket.onclose = ({ code }) => socket === this.#socket && this.#dropped(code);
    this.#heard = performance.now();
  }

  #listen() {
    if (this.#socket && performance.now() - this.#heard > this.#silence) {
      const socket = this.#socket;
      this.#dropped(0);
      socket.close();
    }
  }

  #dropped(code) {
    this.#socket = null;
    const asked = [...this.#asked.values(), ...this.#later.splice(0)];
    this.#asked.clear();
    for (const request of asked) {
      if (request.again && code !== NO_TOKEN) this.#waiting.push(request);
      else request.reject(lost());
    }
    if (this.#over) return;
    if (code === NO_TOKEN) {
      this.#over = true;
      for (const request of this.#waiting.splice(0)) request.reject(lost());
      this.#tell("denied");
      return;
    }
    this.#tell("lost");
    this.#timer = setTimeout(() => this.#dial(), this.#pause * (0.5 + Math.random()));
    this.#pause = Math.min(2 * this.#pause, LAST_PAUSE_MS);
  }

  #hear(frame) {
    this.#heard = performance.now();
    if (frame.type === "res") this.#answered(frame);
    else if (frame.event === "connect.challenge") this.#introduce();
    else if (frame.event === "interlock.event") this.#happened(frame.payload);
  }

  #introduce() {
    const client = { id: "webchat-ui", version: "1", platform: "web", mode: "webchat" };
    const params = {
      minProtocol: 4,
      maxProtocol: 4,
      client,
      role: "operator",
      caps: CAPABILITIES,
      auth: { token: this.#token },
    };
    this.#ask({ method: "connect", params, resolve: (hello) => this.#welcome(hello), reject: () => {} });
  }

  #welcome(hello) {
    this.hello = hello;
    this.me = hello.snapshot.presence[0]?.user.id ?? this.me;
    this.#pause = FIRST_PAUSE_MS;
    this.#silence = 2 * hello.policy.tickIntervalMs;
    this.#tell("connected");
    for (const watch of this.#watches.values()) this.#begin(watch);
    for (const request of this.#waiting.splice(0)) this.#ask(request);
  }

  #answered({ id, ok, payload, error }) {
    const request = this.#asked.get(id);
    if (!request) return;
    this.#asked.delete(id);
    for (const each of this.#later.splice(0)) this.#ask(each);
    if (ok) request.resolve(payload);
    else if (error.retryable && request.still?.() && performance.now() + request.pause < request.until) {
      setTimeout(() => this.#insist(request, error), request.pause);
      request.pause = Math.min(2 * request.pause, INSIST_MS);
    } else request.reject(new Failed(error));
  }

  #insist(request, error) {
    if (this.#over || !request.still()) request.reject(new Failed(error));
    else if (this.state === "connected") this.#ask(request);
    else this.#waiting.push(request);
  }

  #happened({ watch: number, event, over, error }) {
    if (number === 0) {
      this.dispatchEvent(new CustomEvent("outline", { detail: event }));
      return;
    }
    const watch = this.#watches.get(number);
    if (!watch) return;
    if (over) {
      // A watch that ends without an error before its run means that the server closes; it goes on after the reconnect.
      if (error || watch.ended) this.#finish(watch, error ? new Failed(error) : null);
    } else if (event && event.position > watch.after) {
      watch.after = event.position;
      watch.ended = "run" in watch.what && event.data.type === "ended";
      watch.on.event(event);
    }
  }

  #tell(state) {
    if (state === this.state && state !== "connecting") return;
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }
}
