// The picture of a prompt: one square a block of the KV cache, coloured by where it came from.
import { count, make } from "./dom.js";

const BLOCK = 16;
const SOURCES = { read: "read from the cache", created: "computed, cached from now on", uncached: "computed, fills no block" };
const KINDS = {
  text_edited: "an earlier text differs", image_removed: "an earlier picture is gone", image_added: "an earlier message has a picture more",
  image_replaced: "another picture stands in an earlier place", order_changed: "earlier parts come in another order",
  image_reencoded: "a picture came in another encoding", template_changed: "tools or template differ",
  answer_changed: "an earlier answer was changed", evicted: "the cache had lost it",
};

/** A figure for the account of an answer, as the server gives it. */
export function figure(usage) {
  const runs = usage.prompt_map ?? [];
  const diverged = divergence(usage.first_divergence);
  const share = Math.round((100 * usage.cache_read_tokens) / Math.max(1, usage.prompt_tokens));
  const caption = make("figcaption", {}, "Prompt: ", make("b", {}, `${usage.cache_read_tokens} of ${count(usage.prompt_tokens, "token")}`),
    ` from the prefix cache (${share} %)`);
  return make("figure", {}, caption, strip(usage, runs, diverged), chips(usage), ...(diverged ? [diverged.line] : []), table(runs));
}

function strip(usage, runs, diverged) {
  const blocks = cut(runs).map((parts, index) => {
    const here = diverged && diverged.at >= index * BLOCK && diverged.at < (index + 1) * BLOCK;
    const block = make("span", { class: here ? "block diverged" : "block", title: title(index, parts) });
    for (const { run, tokens } of parts) {
      const piece = make("span", { class: `run ${run.source}${run.image_id ? " image" : ""}${run.encoded ? " encoded" : ""}` });
      piece.style.flexGrow = tokens;
      block.append(piece);
    }
    if (parts.reduce((sum, part) => sum + part.tokens, 0) < BLOCK) block.style.width = `${(1.5 * last(parts)) / BLOCK}rem`;
    return block;
  });
  const said = `${usage.cache_read_tokens} tokens read, ${usage.cache_creation_tokens} created, ${usage.uncached_tokens} uncached`;
  return make("div", { class: "strip", role: "img", "aria-label": `Prompt of ${count(usage.prompt_tokens, "token")}: ${said}` }, ...blocks);
}

const last = (parts) => Math.max(4, parts.reduce((sum, part) => sum + part.tokens, 0));

/** Runs cut into blocks: for each the pieces of runs in it. */
export function cut(runs) {
  const blocks = [[]];
  let room = BLOCK;
  for (const run of runs) {
    for (let left = run.tokens; left > 0;) {
      if (room === 0) { blocks.push([]); room = BLOCK; }
      const tokens = Math.min(left, room);
      blocks.at(-1).push({ run, tokens });
      left -= tokens;
      room -= tokens;
    }
  }
  return blocks;
}

function title(index, parts) {
  const what = parts.map(({ run, tokens }) => `${tokens} of ${name(run)}: ${SOURCES[run.source]}`);
  return `block ${index + 1}\n${what.join("\n")}`;
}

const name = (run) => (run.image_id ? `picture ${run.image_id.slice(0, 8)} (${run.encoded ? "encoded now" : "embedding reused"})` : "text");

function chips(usage) {
  const milliseconds = Math.round(usage.times.first_token_ns / 1e6);
  const facts = [
    [usage.embedding_misses, "encoded"], [usage.embedding_hits, "embeddings reused"], [usage.visual_tokens, "visual tokens"],
    [usage.completion_tokens, "generated"], [`${milliseconds} ms`, "to the first token"],
  ];
  return make("div", { class: "chips" }, ...facts.map(([number, what]) => make("span", {}, make("b", {}, String(number)), ` ${what}`)));
}

/** The token where this prompt parted from the last turn's, and a sentence; null when it only appended. */
function divergence(first) {
  if (!first?.lost_tokens || !KINDS[first.kind]) return null;
  const where = `message ${first.message_index + 1}, token ${first.token_position}`;
  const line = make("p", { class: "divergence" }, make("b", {}, `First difference from the last turn: ${KINDS[first.kind]}`),
    ` (${where}); ${count(first.lost_tokens, "token")} not reused. ${first.hint}`);
  return { at: first.token_position, line };
}

function table(runs) {
  const rows = runs.map((run) => make("tr", {}, make("td", {}, String(run.tokens)), make("td", {}, name(run)), make("td", {}, SOURCES[run.source])));
  const head = make("tr", {}, ...["tokens", "what", "where from"].map((text) => make("th", { scope: "col" }, text)));
  return make("details", {}, make("summary", {}, "As a table"), make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}
