// The conversation as it was, and what of it is sent.

/** A picture: `url` holds its bytes, `id` is the server's name for it once it is known there. */
export function picture(name, url, id = null) {
  return { name, url, id, removed: false };
}

export class History {
  constructor() {
    this.turns = []; // { text, pictures, answer }
    this.session = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  get pictures() {
    return this.turns.flatMap((turn) => turn.pictures);
  }

  /** The pictures that a request holds; `policy` is "all" or how many of the last ones. */
  sent(policy) {
    const kept = this.pictures.filter((each) => !each.removed);
    return policy === "all" ? kept : kept.slice(-Number(policy));
  }

  /** Messages in OpenAI's form. A picture that the server knows travels by its name. */
  messages(policy) {
    const sent = new Set(this.sent(policy));
    return this.turns.flatMap((turn) => {
      const shown = turn.pictures.filter((each) => sent.has(each));
      const parts = shown.map((each) => ({ type: "image_url", image_url: { url: each.id ? `triptych:${each.id}` : each.url } }));
      const user = { role: "user", content: [...parts, { type: "text", text: turn.text }] };
      return turn.answer === null ? [user] : [user, { role: "assistant", content: turn.answer }];
    });
  }

  /** Learn the server's names from the map of the prompt: its runs of pictures are those sent, in order. */
  name(pictures, runs) {
    const ids = runs.map((run) => run.image_id).filter((id, at, all) => id && id !== all[at - 1]);
    if (ids.length === pictures.length) pictures.forEach((each, at) => { each.id = ids[at]; });
  }

  /** The server forgot pictures: send the bytes again, where this page has them. False when it has not. */
  forget() {
    const named = this.pictures.filter((each) => each.id && each.url);
    named.forEach((each) => { each.id = null; });
    return named.length > 0;
  }
}
