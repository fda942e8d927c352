// Calls to the router: JSON, and streams of server-sent events.

export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered with status ${status}`);
    this.status = status;
    this.code = error?.code;
  }
}

const key = () => sessionStorage.getItem("triptych-key") ?? "";

function headers() {
  return { "content-type": "application/json", ...(key() ? { authorization: `Bearer ${key()}` } : {}) };
}

export async function get(path) {
  const response = await fetch(path, { headers: headers() });
  const body = await response.json();
  if (!response.ok && body.error) throw new ApiError(response.status, body.error);
  return body;
}

/** The events of one answer. Throws ApiError, also for a failure in the middle of the stream. */
export async function* chat(body, signal) {
  const response = await fetch("/v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
  if (!response.ok) throw new ApiError(response.status, (await response.json()).error);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(response.status, event.error);
    yield event;
  }
  throw new ApiError(response.status, { message: "the stream ended before the answer did" });
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}
