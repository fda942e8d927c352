// The console: one conversation, drawn as it goes.
import { ApiError, chat, get } from "./api.js";
import { find, make } from "./dom.js";
import { History } from "./history.js";
import { listKnown, Pending, remember, thumbnail } from "./pictures.js";
import { figure } from "./strip.js";

const pending = new Pending();
let history = new History();
let running = null; // AbortController of the answer on its way

function fail(error) {
  find("error").textContent = error ? error.message : "";
  find("error").hidden = !error;
  if (error?.status === 401) find("key").focus();
}

function busy(controller) {
  running = controller;
  find("send").disabled = Boolean(controller);
  find("stop").hidden = !controller;
}

/** The turn's place in the log: question with pictures, and an empty answer. */
function open(turn) {
  const answer = make("div", { class: "answer busy" }, make("p", { class: "text" }));
  const shown = turn.pictures.map((one) => thumbnail(one, "Leave out of later prompts", (each) => drop(each)));
  turn.thumbnails = shown;
  const question = make("div", { class: "question" }, ...(shown.length ? [make("div", { class: "pictures" }, ...shown)] : []), make("p", {}, turn.text));
  const article = make("article", {}, question, answer);
  find("welcome").hidden = true;
  find("log").append(article);
  article.scrollIntoView({ block: "end" });
  return { article, answer };
}

function drop(one) {
  one.removed = !one.removed;
  mark();
}

/** Grey out what the next prompt will not hold. */
function mark() {
  const sent = new Set(history.sent(find("policy").value));
  for (const turn of history.turns) {
    turn.pictures.forEach((one, at) => {
      turn.thumbnails[at].classList.toggle("unsent", !sent.has(one));
      turn.thumbnails[at].querySelector("button").setAttribute("aria-pressed", one.removed);
    });
  }
}

function request() {
  return {
    messages: history.messages(find("policy").value), stream: true, stream_options: { include_usage: true }, prompt_map: true,
    session_id: history.session, max_tokens: Number(find("tokens").value) || 256, temperature: Number(find("temperature").value) || 0,
  };
}

async function stream(turn, view, signal) {
  const text = view.answer.querySelector(".text");
  let answer = "";
  for await (const event of chat(request(), signal)) {
    const piece = event.choices[0]?.delta.content ?? "";
    answer += piece;
    text.append(piece);
    if (event.usage) account(view, event.usage.triptych);
    view.article.scrollIntoView({ block: "end" });
  }
  turn.answer = answer;
}

function account(view, now) {
  const sent = history.sent(find("policy").value);
  history.name(sent, now.prompt_map ?? []);
  sent.forEach(remember);
  view.answer.append(figure(now));
}

/** Send again, once, with the bytes of pictures that the server no longer has. */
async function streamAnyhow(turn, view, signal) {
  try {
    await stream(turn, view, signal);
  } catch (error) {
    if (!(error instanceof ApiError) || error.code !== "images_not_found" || !history.forget()) throw error;
    await stream(turn, view, signal);
  }
}

async function ask() {
  const text = find("prompt").value.trim();
  if (running || (!text && !pending.pictures.length)) return;
  fail(null);
  const turn = { text, pictures: pending.empty(), answer: null };
  const mine = history;
  history.turns.push(turn);
  find("prompt").value = "";
  const view = open(turn);
  mark();
  busy(new AbortController());
  try {
    await streamAnyhow(turn, view, running.signal);
  } catch (error) {
    if (mine === history) undo(turn, view, error);
  } finally {
    view.answer.classList.remove("busy");
    busy(null);
    find("prompt").focus();
    refresh();
  }
}

/** A turn that failed or was stopped is no part of the conversation; its question goes back to where it was typed. */
function undo(turn, view, error) {
  history.turns.pop();
  turn.pictures.forEach((one) => pending.add(one));
  find("prompt").value = turn.text;
  view.article.remove();
  if (error.name !== "AbortError") fail(error);
}

async function refresh() {
  try {
    const [ready, models] = await Promise.all([get("/readyz"), get("/v1/models")]);
    find("model").textContent = models.data[0].id;
    find("state").textContent = ready.ready ? "ready" : ready.missing.join("; ");
    find("state").className = ready.ready ? "pill good" : "pill bad";
    await listKnown((one) => pending.add(one));
  } catch (error) {
    find("state").textContent = error instanceof ApiError && error.status === 401 ? "API key needed" : "not reachable";
    find("state").className = "pill bad";
  }
}

function reset() {
  running?.abort();
  history = new History();
  find("log").replaceChildren();
  find("welcome").hidden = false;
  fail(null);
  find("prompt").focus();
}

find("key").value = sessionStorage.getItem("triptych-key") ?? "";
find("key").addEventListener("change", (event) => { sessionStorage.setItem("triptych-key", event.target.value.trim()); refresh(); });
find("policy").addEventListener("change", mark);
find("reset").addEventListener("click", reset);
find("stop").addEventListener("click", () => running?.abort());
find("composer").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
find("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
find("prompt").focus();
refresh();
