/* Appends messages to a stream in Redis from Node, without Streamlease and without packages. See docs/foreign-producers.md:
 *
 *   streamlease space create flights --topics 'flights/#' --streams 8 --shard-hash sha256
 *   streamlease space show flights --json | node append.mts 127.0.0.1:6379 flights/JFK/LAX 'on time' late
 *
 * Each message has a random publisher of its own, so that it may be sent again after a lost answer.
 */
import { createHash, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { connect } from "node:net";
import { text } from "node:stream/consumers";

const LUA = new URL("../../streams/log/lua/", import.meta.url);
const script = ["log_end.lua", "one_append.lua", "append.lua"].map((name) => readFileSync(new URL(name, LUA), "utf-8")).join("\n");

/** The stream of a topic: the first 4 bytes of its SHA-256, modulo the streams of the newest generation. */
export function streamOf(space: { name: string; shard_hash: string; generations: { number: number; streams: number }[] }, topic: string): string {
  if (space.shard_hash !== "sha256") throw new Error(`space ${space.name} has the hash ${space.shard_hash}: create it with --shard-hash sha256`);
  const { number, streams } = space.generations.at(-1)!;
  return `${space.name}.${number}.${createHash("sha256").update(topic).digest().readUInt32BE() % streams}`;
}

/** One command in Redis' own protocol, and the words of its answer. */
function command(address: string, words: string[]): Promise<string[]> {
  const [host, port] = address.split(":");
  const sent = `*${words.length}\r\n` + words.map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`).join("");
  return new Promise((resolve, reject) => {
    const socket = connect(Number(port), host, () => socket.write(sent));
    let answer = "";
    socket.on("error", reject).setTimeout(10_000, () => socket.destroy(new Error("no answer from Redis: send it again")));
    socket.on("data", (part) => {
      answer += part;
      const lines = answer.split("\r\n");
      if (answer.startsWith("-")) reject(new Error(lines[0]));
      else if (lines.length <= 2 * Number(lines[0].slice(1)) - (answer.match(/^:/gm) ?? []).length) return; // there is more to come
      socket.end();
      resolve(lines.slice(1).filter((line) => line && !line.startsWith("$")).map((line) => line.replace(/^:/, "")));
    });
  });
}

export function append(address: string, stream: string, topic: string, payload: string, publisher = `~${randomBytes(12).toString("hex")}`) {
  const keys = ["meta", "pubs", "log"].map((kind) => `sl:{${stream}}:${kind}`);
  return command(address, ["EVAL", script, "3", ...keys, publisher, "1", "0", "1", "0", `sl:{${stream}}:news`, "0", "t", topic, "p", payload]);
}

if (import.meta.main) {
  const [address, topic, ...payloads] = process.argv.slice(2);
  const stream = streamOf(JSON.parse(await text(process.stdin)), topic);
  for (const payload of payloads) {
    const publisher = `~${randomBytes(12).toString("hex")}`;
    for (let sends = 0; sends < 2; sends++) { // the second one is for nothing: it shows that it does no harm
      console.log(JSON.stringify({ stream, reply: await append(address, stream, topic, payload, publisher) }));
    }
  }
}
