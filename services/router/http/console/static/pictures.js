// Pictures on the page: chosen, dropped or pasted ones, those in the conversation, and those the server knows.
import { get } from "./api.js";
import { count, find, make } from "./dom.js";
import { picture } from "./history.js";

const seen = new Map(); // server's name -> what this page can show of it

export class Pending {
  constructor() {
    this.pictures = [];
    const composer = find("composer");
    find("file").addEventListener("change", (event) => this.take(event.target.files).then(() => { event.target.value = ""; }));
    document.addEventListener("paste", (event) => this.take(event.clipboardData.files));
    for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());
    document.addEventListener("dragover", () => composer.classList.add("over"));
    for (const kind of ["dragleave", "drop"]) document.addEventListener(kind, () => composer.classList.remove("over"));
    document.addEventListener("drop", (event) => this.take(event.dataTransfer.files));
  }

  async take(files) {
    for (const file of [...files].filter((each) => each.type.startsWith("image/"))) this.add(picture(file.name, await read(file)));
  }

  add(one) {
    this.pictures.push(one);
    this.show();
  }

  /** Hands the pictures over. */
  empty() {
    const taken = this.pictures;
    this.pictures = [];
    this.show();
    return taken;
  }

  show() {
    const remove = (one) => { this.pictures = this.pictures.filter((each) => each !== one); this.show(); };
    find("pending").replaceChildren(...this.pictures.map((one) => make("li", {}, thumbnail(one, "Remove", remove))));
    find("pending").hidden = !this.pictures.length;
  }
}

function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

/** A picture with a button; `label` says what the button does. */
export function thumbnail(one, label, act) {
  const url = one.url ?? seen.get(one.id);
  const image = url ? make("img", { src: url, alt: one.name }) : make("span", { class: "swatch" }, one.name);
  return make("span", { class: "picture" }, image, make("button", { type: "button", "aria-label": `${label} ${one.name}`, title: label, onclick: () => act(one) }, "×"));
}

/** Remember what a picture looks like, for when the server names it. */
export const remember = (one) => { if (one.id && one.url) seen.set(one.id, one.url); };

/** Fill the list of known pictures; `use` is called with the one that was clicked. */
export async function listKnown(use) {
  const { data } = await get("/v1/images?limit=50");
  find("unknown").hidden = data.length > 0;
  find("known").replaceChildren(...data.map((each) => entry(each, use)));
}

function entry(known, use) {
  const name = `${known.id.slice(0, 8)}, ${known.width} × ${known.height}`;
  const url = seen.get(known.id);
  const face = url ? make("img", { src: url, alt: "" }) : make("span", { class: "swatch" }, known.id.slice(0, 6));
  const add = make("button", { type: "button", title: "Ask about it", "aria-label": `Ask about ${name}`, onclick: () => use(picture(name, null, known.id)) }, face);
  const facts = make("span", {}, name, make("br"), make("span", { class: "quiet" }, `${count(known.tokens, "token")}, ${count(known.uses, "use")}`));
  return make("li", {}, add, facts);
}
