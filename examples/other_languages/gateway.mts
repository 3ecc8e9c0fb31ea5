/* A client of `streamlease gateway` in TypeScript, on Node's own fetch; no packages. Node 24 runs it as it is:
 *
 *   node gateway.mts publish http://127.0.0.1:8640 flights/JFK/LAX landed N14228
 *   node gateway.mts follow  http://127.0.0.1:8640 'flights/#' earliest 10
 *   node gateway.mts receive 8700 SECRET 10
 *
 * It follows by the rule of P3Sub: what comes is taken only if it comes right after what was taken last.
 * Everything else is dropped, and asked for: push saves time, the log is the truth.
 */
import { createHash, createHmac, randomUUID, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";
import { setTimeout as pause } from "node:timers/promises";

export interface Message {
  topic: string; key: string | null; payload: string | null; stream: string;
  offset: number; previous: number | null; timestamp: string; headers: [string, string][];
}
export interface Page { messages: Message[]; next: string }

/** Something behind the cursor is not there any more: go on with `oldest`. */
export class Truncated extends Error {
  oldest: string;
  constructor(detail: string, oldest: string) { super(detail); this.oldest = oldest; }
}

async function checked(answer: Response): Promise<Response> {
  if (answer.ok) return answer;
  const problem = await answer.json();
  if (answer.status === 410) throw new Truncated(problem.detail, problem.oldest);
  throw Object.assign(new Error(problem.detail), { status: answer.status });
}

const path = (topic: string) => topic.replace(/^\//, "\u0000").split("/").map(encodeURIComponent).join("/").replace("%00", "%2F");

/** Publish one message; again, under the same name, until it is known to be there. */
export async function publish(url: string, topic: string, payload: string, key?: string, attempts = 10) {
  const headers: Record<string, string> = { "Content-Type": "text/plain", "Idempotency-Key": randomUUID() };
  if (key !== undefined) headers["Streamlease-Key"] = key;
  for (let attempt = 1; ; attempt++) {
    try {
      const answer = await fetch(`${url}/v1/topics/${path(topic)}`, { method: "POST", headers, body: payload });
      return await (await checked(answer)).json() as { stream: string; offset: number; timestamp: string };
    } catch (error: any) {
      if (attempt >= attempts || (error.status && ![429, 503, 504].includes(error.status))) throw error;
      await pause(100 * attempt);
    }
  }
}

/** One since-query: all that came after a cursor, a time, or since "earliest". */
export async function since(url: string, filter: string, cursor: string, wait = 0): Promise<Page> {
  const question = new URLSearchParams({ filter, since: cursor, wait: String(wait) });
  return await (await checked(await fetch(`${url}/v1/messages?${question}`))).json() as Page;
}

/** The first 16 digits of a cursor's SHA-256: an event names the cursor before it so. */
export const mark = (cursor: string) => createHash("sha256").update(cursor).digest("hex").slice(0, 16);

interface Event { id?: string; data?: string; after?: string; event?: string }

/** Server-sent events. A connection that is silent for 45 s is dead: a gateway says something every 15 s. */
async function* events(url: string, filter: string, cursor: string): AsyncGenerator<Event> {
  const dead = new AbortController();
  let silence = setTimeout(() => dead.abort(), 45_000);
  try {
    const answer = await checked(await fetch(`${url}/v1/events?${new URLSearchParams({ filter, since: cursor })}`, { signal: dead.signal }));
    let rest = "";
    for await (const part of answer.body!.pipeThrough(new TextDecoderStream())) {
      silence.refresh();
      const blocks = (rest + part).split("\n\n");
      rest = blocks.pop()!;
      for (const block of blocks) {
        yield Object.fromEntries(block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      }
    }
  } finally {
    clearTimeout(silence);
    dead.abort();
  }
}

/** Pages of messages as they come, once and in order. Keep `next` once a page is processed, and begin there after a restart. */
export async function* follow(url: string, filter: string, cursor: string): AsyncGenerator<Page> {
  for (let failures = 0; ; ) {
    try {
      for (let page = await since(url, filter, cursor); ; page = await since(url, filter, cursor)) {
        cursor = page.next;
        if (!page.messages.length) break;
        yield page;
      }
      failures = 0;
      for await (const event of events(url, filter, cursor)) {
        if (event.event === "problem") break;
        if (event.id === undefined) continue;
        if (event.after !== mark(cursor)) break; // something was lost, or came twice: ask
        cursor = event.id;
        if (event.data !== undefined) yield { messages: [JSON.parse(event.data)], next: cursor };
      }
    } catch (error: any) {
      if (error instanceof Truncated || (error.status && ![429, 503, 504].includes(error.status))) throw error;
      await pause(Math.min(100 * 2 ** failures++, 5000));
    }
  }
}

/** Whether the body of a callback, as it came, is from who knows the secret. */
export function isSigned(secret: string, body: Buffer, signature: string | undefined): boolean {
  const wanted = Buffer.from(`sha256=${createHmac("sha256", secret).update(body).digest("hex")}`);
  const given = Buffer.from(signature ?? "");
  return given.length === wanted.length && timingSafeEqual(given, wanted);
}

/** Serves callbacks at a port; takes what is signed, and comes right after what was taken last. */
export function receive(port: number, secret: string, take: (page: Page) => void) {
  const last = new Map<string, string>();
  const server = createServer(async (request, response) => {
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part);
    const body = Buffer.concat(parts);
    let status = 401;
    if (isSigned(secret, body, request.headers["streamlease-signature"] as string | undefined)) {
      const { subscription, previous, messages, next } = JSON.parse(body.toString());
      const before = last.get(subscription);
      if (before === undefined || before === previous) {
        take({ messages, next });
        last.set(subscription, next);
        status = 204;
      } else {
        status = before === next ? 204 : 409; // it came again because its answer was lost; or something is missing
      }
    }
    response.writeHead(status).end();
  });
  server.listen(port, "127.0.0.1", () => console.error(`callbacks to http://127.0.0.1:${(server.address() as any).port}/`));
  return server;
}

if (import.meta.main) {
  const [act, ...words] = process.argv.slice(2);
  if (act === "publish") {
    const [url, topic, payload, key] = words;
    console.log(JSON.stringify(await publish(url, topic, payload, key)));
  } else if (act === "follow") {
    const [url, filter, cursor, count] = words;
    let left = Number(count);
    for await (const page of follow(url, filter, cursor)) {
      for (const message of page.messages) console.log(JSON.stringify(message));
      if ((left -= page.messages.length) <= 0) break;
    }
  } else if (act === "receive") {
    const [port, secret, count] = words;
    let left = Number(count);
    const server = receive(Number(port), secret, (page) => {
      for (const message of page.messages) console.log(JSON.stringify(message));
      if ((left -= page.messages.length) <= 0) setImmediate(() => server.close());
    });
  } else {
    console.error("usage: node gateway.mts publish URL TOPIC PAYLOAD [KEY] | follow URL FILTER SINCE COUNT | receive PORT SECRET COUNT");
    process.exitCode = 2;
  }
}
