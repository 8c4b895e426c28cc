// Talks to the service: JSON both ways, a token where one is asked for, problems in plain words.

const TOKEN = "zipfel.token";

/** What went wrong, in words for the user; `refused` where the server took offence at the question itself. */
export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.refused = status === 400;
  }
}

let askForToken = async () => "";
let asking = null; // several answers of 401 at once open one dialog

/** Sets what asks the user for a token; it gets why, and returns the token, or nothing. */
export function onTokenNeeded(handler) {
  askForToken = handler;
}

/** Asks the service; `body` makes it a POST. Raises a Problem, or an AbortError where `signal` was aborted. */
export async function ask(path, { body, signal } = {}) {
  const sent = sessionStorage.getItem(TOKEN);
  const response = await answered(path, body, signal, sent);
  if (response.status === 401 && (await newToken(sent))) return ask(path, { body, signal });
  const content = await response.json().catch(() => null);
  if (!response.ok) throw new Problem(content?.error ?? `The server answered ${response.status}.`, response.status);
  if (content === null) throw new Problem("The server answered something that is not JSON.");
  return content;
}

async function answered(path, body, signal, token) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const method = body === undefined ? "GET" : "POST";
  try {
    return await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer. Is it still running?");
  }
}

async function newToken(sent) {
  if (sessionStorage.getItem(TOKEN) !== sent) return true; // another answer has brought one meanwhile
  asking ??= askForToken(sent ? "That token was not the right one." : "").finally(() => (asking = null));
  const token = await asking;
  if (token) sessionStorage.setItem(TOKEN, token);
  return Boolean(token);
}
