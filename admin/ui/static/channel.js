// One channel to the console: the keys that a page wants, and one long poll that brings what is new of all of them.
// The protocol is that of docs/channels.md, with the rules of the Python client's machine (http_client/core/channel_machine.py):
// one batch of commands in flight, the last one for a key wins; a poll says what was processed; another id: all anew.

import { post, Refused } from "./lib.js";

const WAIT = 20;
const PAUSE_MS = 100, MOST_PAUSE_MS = 4000;

export class Channel {
  #path; #server; #tell;
  #keys = new Map(); // what is wanted: the number of its command, the id that took it, the sequence of its last state
  #queue = []; #flying = false; #number = 0; #alone = false;
  #gateway = null; #processed = 0; #astray = false;
  #stop = new AbortController(); #poll = new AbortController();

  // tell.came(key, state), tell.failed(key, why), tell.answered() behind all of an answer, tell.lost(error)
  constructor(server, tell) {
    const name = [...crypto.getRandomValues(new Uint8Array(16))].map((one) => one.toString(16).padStart(2, "0")).join("");
    this.#path = `/v1/channels/${name}`;
    this.#server = server;
    this.#tell = tell;
    this.#polls();
  }

  // From now on these keys and no others; those that were wanted before go on.
  want(keys) {
    for (const key of [...this.#keys.keys()]) {
      if (!keys.includes(key)) {
        this.#keys.delete(key);
        this.#number += 1;
        this.#queue.push({ command: this.#number, unsubscribe: key });
      }
    }
    for (const key of keys) if (!this.#keys.has(key)) this.#subscribe(key);
    this.#commands();
  }

  close() {
    this.#stop.abort();
    this.#poll.abort();
    // Also when the page goes; if it does not arrive, the console finds out by itself.
    if (this.#gateway !== null) fetch(this.#address(""), { method: "DELETE", keepalive: true }).catch(() => {});
  }

  #address(what) {
    return `${this.#path}${what}${this.#server ? `?server=${encodeURIComponent(this.#server)}` : ""}`;
  }

  #subscribe(key) {
    this.#number += 1;
    this.#keys.set(key, { command: this.#number, at: null, has: 0 });
    this.#queue.push({ command: this.#number, subscribe: key, policy: "state" });
  }

  async #commands() {
    if (this.#flying) return;
    this.#flying = true;
    let pause = PAUSE_MS;
    while (this.#queue.length > 0 && !this.#stop.signal.aborted) {
      const batch = this.#queue.slice(0, this.#alone ? 1 : 100);
      try {
        const answer = await post(`${this.#path}/commands`, batch, this.#server, this.#stop.signal);
        this.#queue.splice(0, batch.length);
        this.#alone = false;
        pause = PAUSE_MS;
        for (const one of answer.subscriptions) {
          const key = this.#keys.get(one.key);
          if (key?.command === one.command) key.at = answer.gateway;
        }
        if (this.#gateway !== null && this.#gateway !== answer.gateway) { this.#astray = true; this.#poll.abort(); }
      } catch (error) {
        if (error instanceof Refused && error.status === 400) {
          if (batch.length === 1) this.#refused(batch[0], error);
          this.#alone = batch.length > 1; // one by one, until it is found which
        } else pause = await this.#rest(error, pause);
      }
    }
    this.#flying = false;
  }

  #refused({ command, subscribe }, error) {
    this.#queue.shift();
    if (this.#keys.get(subscribe)?.command !== command) return;
    this.#keys.delete(subscribe);
    this.#tell.failed(subscribe, error.message);
  }

  async #polls() {
    let pause = PAUSE_MS;
    while (!this.#stop.signal.aborted) {
      const began = performance.now();
      this.#poll = new AbortController();
      try {
        const asked = { gateway: this.#gateway, processed: this.#processed, wait: this.#astray ? 0 : WAIT };
        const answer = await post(`${this.#path}/poll`, asked, this.#server, this.#poll.signal);
        if (this.#stop.signal.aborted) return;
        pause = PAUSE_MS;
        this.#take(answer);
        if (answer.messages.length === 0 && performance.now() - began < PAUSE_MS) await wait(PAUSE_MS);
      } catch (error) {
        if (!this.#poll.signal.aborted) pause = await this.#rest(error, pause);
      }
    }
  }

  #take(answer) {
    if (answer.gateway !== this.#gateway) {
      if (this.#gateway !== null) this.#astray = true;
      this.#gateway = answer.gateway;
      this.#processed = 0;
    }
    if (this.#astray) {
      this.#astray = false;
      for (const [name, key] of this.#keys) if (key.at !== null && key.at !== this.#gateway) this.#subscribe(name);
    }
    for (const entry of [...answer.messages, ...answer.failures].sort((one, other) => one.sequence - other.sequence)) {
      if (entry.sequence <= this.#processed) continue;
      this.#processed = entry.sequence;
      const key = this.#keys.get(entry.key);
      if (key?.command !== entry.command) continue;
      if (entry.error !== undefined) {
        this.#keys.delete(entry.key);
        this.#tell.failed(entry.key, entry.error.detail);
      } else if (entry.after !== 0 && entry.after !== key.has) this.#subscribe(entry.key); // not right behind what is here
      else {
        key.has = entry.sequence;
        this.#tell.came(entry.key, entry.state);
      }
    }
    this.#commands();
    this.#tell.answered();
  }

  async #rest(error, pause) {
    if (this.#stop.signal.aborted) return pause;
    this.#tell.lost(error);
    await wait(pause * (0.5 + Math.random()));
    return Math.min(2 * pause, MOST_PAUSE_MS);
  }
}

const wait = (milliseconds) => new Promise((done) => { window.setTimeout(done, milliseconds); });
