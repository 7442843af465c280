// What the modules share: requests, the latest status, and the tenant or endpoint that is selected.

const TIMEOUT_MS = 5000; // of one request

// The latest status, and the token that a protected page was opened with, which is kept nowhere else.
export const session = { status: null, readToken: "" };

export const OTHERS = "other"; // the tenant that stands for what is not distinguished

// only is what is selected; its event "change" says that it is something else.
export const only = Object.assign(new EventTarget(), { tenant: "", endpoint: "" });

// onlyThese is the part of a request that selects it.
export const onlyThese = () => (only.tenant ? `&tenant=${encodeURIComponent(only.tenant)}` : "") + (only.endpoint ? `&endpoint=${encodeURIComponent(only.endpoint)}` : "");

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// The latest response by path, so that what has not changed is not sent again.
const answers = new Map();

// ask returns the response to a request: the same object as before if nothing has changed. One that reads much has several timeouts.
export async function ask(path, options = {}, timeouts = 1) {
  const what = path.split("?")[0];
  const last = options.method || answers.get(what)?.path !== path ? null : answers.get(what);
  const response = await fetch(path, {
    cache: "no-store", credentials: "same-origin", redirect: "error", signal: AbortSignal.timeout(timeouts * TIMEOUT_MS), ...options,
    headers: { ...(session.readToken && { Authorization: `Bearer ${session.readToken}` }), ...(last && { "If-None-Match": last.tag }), ...options.headers },
  });
  if (last && response.status === 304) return last.body;
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Refused(response.status, body?.error ?? `the response was ${response.status}`);
  if (body === null) throw new Error("the response was not JSON");
  const tag = response.headers.get("ETag");
  if (tag) answers.set(what, { path, tag, body });
  return body;
}

// whyNot says why a request brought nothing.
export const whyNot = (err, refused) => (err instanceof Refused ? `${refused}: ${err.message}.` : `No response: ${err.message}.`);

// withToken is the header of a request that needs the token.
export const withToken = () => ({ Authorization: `Bearer ${document.getElementById("token").value}` });
